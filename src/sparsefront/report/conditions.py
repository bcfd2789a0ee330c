"""What must agree, beyond model, data, device, batch and dtype, before two results may share a plot.

Each makes a quality or a speedup another quantity. What a result does not hold, being of an older version, agrees with nothing
that is known.
"""

from sparsefront.counted import counted
from sparsefront.report.candidates import holds_nothing_out
from sparsefront.report.result import Result

BUDGET = "budget"


def conditions(result: Result) -> dict[str, str]:
    """Condition -> what it was, in words; only those that apply to this result."""
    found = {"data": _data(result), "evaluation": _evaluation(result), "held out": _held_out(result)}
    if result.choice.recovery is not None:
        found[BUDGET] = _budget(result)
    if result.speed.latency_device is not None:
        found["search"] = _search(result)
    if result.speed.latency_device == "cpu":
        found["processor"] = processor_text(result)
    return found


def _data(result: Result) -> str:
    digest = result.identity.dataset_digest
    return "data not recorded" if digest is None else f"data {digest}"


def _evaluation(result: Result) -> str:
    samples, limit = result.quality.evaluated_samples, result.quality.evaluate_limit
    if samples is None:
        return "evaluated samples not recorded"
    return f"{samples} test samples" if limit is None else f"{samples} test samples (limit {limit})"


def _held_out(result: Result) -> str:
    """By how many samples choices are made; where nothing is held out, more was trained on."""
    samples = result.quality.val_evaluated_samples
    if samples is not None:
        return f"{samples} held-out samples" + (", maybe seen in training" if result.quality.val_seen else "")
    return "nothing held out" if holds_nothing_out(result) else "held-out samples not recorded"


def _budget(result: Result) -> str:
    """Steps, and what a full one takes. Not the samples: on the same data they differ by an epoch's last, smaller batch alone,
    which rounds that begin anew meet more or less often; `differences` tells them.
    """
    steps = result.cost.recovery_steps
    if steps is None:
        return "recovery steps not recorded"
    if not steps:
        return "no recovery steps"
    of_a_step = _samples_of_a_step(result)
    on = f"on {result.cost.recovery_samples} samples" if of_a_step is None else f"of {of_a_step}"
    return f"recovery of {counted(steps, 'step')} {on}"


def _samples_of_a_step(result: Result) -> str | None:
    """`64 samples × 2 devices`; None where batch size, accumulated batches or devices are not recorded."""
    trainer, batch_size = result.choice.trainer_parameters, result.choice.recipe_parameters.get("batch_size")
    counts = {"batches": trainer.get("accumulate_grad_batches"), "devices": trainer.get("devices")}
    if batch_size is None or None in counts.values():
        return None
    return " × ".join([f"{batch_size} samples", *(f"{count} {what}" for what, count in counts.items() if count != 1)])


def _search(result: Result) -> str:
    modes, variants = result.speed.modes_searched, result.speed.variants_searched
    if modes is None or variants is None:
        return "searched execution modes not recorded"
    return f"fastest of {', '.join(modes)}; variants {', '.join(variants) or 'none'}"


def processor_text(result: Result) -> str:
    """The CPU that was measured on, with its threads."""
    processor, threads = result.identity.processor, result.identity.threads
    if processor is None or threads is None:
        return "processor not recorded"
    return f"{processor}, {counted(threads, 'thread')}"
