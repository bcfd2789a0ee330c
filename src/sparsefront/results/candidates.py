"""Results that differ in their seeds alone, taken together; what must agree before two of them share a plot."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from statistics import fmean
from typing import Any

from sparsefront.measure.settings import DTYPES, FEWEST_REPEATS
from sparsefront.progress import counted
from sparsefront.pruning.collapse import BUDGET_KEYS, misses
from sparsefront.results.metric import Metric
from sparsefront.results.record import Result
from sparsefront.results.store import rank

# On what a result was measured, and where that differs from the results around it.

FIELDS = {
    "gpu": "GPU",
    "driver": "driver",
    "cuda": "CUDA",
    "torch_version": "torch",
    "triton_version": "triton",
    "commit": "commit",
    "dataset_digest": "data",
}
KERNELS = "as of the commit"  # which holds their sources; the versions of torch, triton and CUDA hold what they call
COMMIT_DIGITS = 9


def provenance(result: Result) -> dict[str, str]:
    """What -> its version or name, in words; only what is known."""
    found = {words: result.value_of(field) for field, words in FIELDS.items()}
    found["kernels"] = None if result.identity.commit is None else KERNELS
    found["measured"] = result.identity.time
    return {words: _short(words, value) for words, value in found.items() if value is not None}


def unlike_the_rest(results: Sequence[Result]) -> dict[str, list[str]]:
    """`run_id` -> where the GPU, its software, the commit, and so the kernels, or the data differ from most of these results.

    Only of results that differ; where two versions are as frequent, the one met first counts as the usual one. Which of the
    kernels ran is no difference: it is chosen for each point. What was searched for is a condition of `conditions`.
    """
    unlike: dict[str, list[str]] = {}
    for field, words in FIELDS.items():
        values = [result.value_of(field) for result in results]
        counts = Counter(values).most_common()
        for result, value in zip(results, values):
            if value != counts[0][0]:
                name = f"{words} and kernels" if field == "commit" else words
                told = f"{name} {_short(words, value)}, elsewhere {_short(words, counts[0][0])}"
                unlike.setdefault(result.identity.run_id, []).append(told)
    return unlike


def uncommitted(results: Sequence[Result]) -> list[str]:
    """A line where code was measured that no commit holds: nobody can check it out again."""
    dirty = sum((result.identity.commit or "").endswith("-dirty") for result in results)
    if not dirty:
        return []
    return [f"{dirty} of {len(results)} runs are of code with changes that no commit holds (commit ends in -dirty)"]


def _short(words: str, value: object) -> str:
    text = "unknown" if value is None else str(value)
    if words != "commit" or value is None:
        return text
    return text[:COMMIT_DIGITS] + ("-dirty" if text.endswith("-dirty") else "")


# How sure a speedup is, by the repeats of its timing.


def too_few_repeats(result: Result) -> int | None:
    """How often it was timed, where that is too seldom for an interval; None where it is not, or not recorded."""
    repeats = result.speed.repeats
    return repeats if repeats is not None and repeats < FEWEST_REPEATS else None


def speedup_interval(result: Result, field: str = "speedup") -> tuple[float, float] | None:
    """The 95 % interval of a speedup; None where there is none, or of too few repeats.

    Args:
        field: speedup, speedup_dataset, speedup_low_precision.
    """
    low, high = (result.value_of(f"{field}_{end}") for end in ("low", "high"))
    return None if low is None or high is None or too_few_repeats(result) else (low, high)


# The dense network that a sparse one is held against: the one trained on for the same budget and, where the recovery had a
# teacher, for the same loss, where there is one.

BASELINES = {
    "dense_distilled": "dense trained on with the teacher",
    "dense_continued": "dense trained on",
    "dense": "dense as it was before pruning",
}
"""Field -> in words, the one that is taken first where a result holds several."""


def baseline_side(result: Result, *, held_out: bool = False) -> str:
    """The field of `BASELINES` that points lost are against, without `val_`; `dense` where it holds no other."""
    held = (side for side in BASELINES if result.value_of(_field(side, held_out)) is not None)
    return next(held, "dense")


def baseline_quality(result: Result, *, held_out: bool = False) -> float | None:
    """Its metric, a fraction; without a control that of the network before pruning, which was trained for less.

    Args:
        held_out: of the held-out part of train instead of the reporting split.
    """
    value: float | None = result.value_of(_field(baseline_side(result, held_out=held_out), held_out))
    return value


def points_lost(result: Result, *, held_out: bool = False) -> float | None:
    """What a pruned network lost against its baseline, with the sparse kernels where measured, else masked: percentage points, or
    what `Metric.lost` says of its metric.

    Args:
        held_out: as of `baseline_quality`.
    """
    baseline = baseline_quality(result, held_out=held_out)
    sparse, masked = (result.value_of(_field(side, held_out)) for side in ("sparse", "masked"))
    reached = masked if sparse is None else sparse
    return None if reached is None or baseline is None else metric_of(result).lost(baseline, reached)


def metric_of(result: Result) -> Metric:
    """What its qualities are of."""
    return Metric(result.quality.metric_name)


def two_baselines(results: Sequence[Result]) -> list[str]:
    """A line where these results hold other controls, or only some hold one: their points lost are against other networks."""
    runs = Counter(baseline_side(result) for result in results)
    if len(runs) < 2:
        return []
    told = [f"against {BASELINES[side]} in {counted(runs[side], 'run')}" for side in BASELINES if runs[side]]
    if runs["dense"]:
        told[-1] = f"against {BASELINES['dense']} in the {runs['dense']} without control=dense_continued"
    return [f"points lost are {', and '.join(told)}"]


def _field(side: str, held_out: bool) -> str:
    return f"val_{side}" if held_out else side


# Results that differ in their seeds alone, taken together; and which of them may be chosen among.
#
# Choices are made by the metric on the held-out part of train (`val_*`), never by the one that is reported.

STRUCTURE = ("pattern", "pattern_parameters", "granularity", "kernel_mode")
"""Fields of `choice` that make another network of it, where the others make the same one in another way."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """The runs of one choice at one sparsity, one for each pair of seeds.

    Args:
        results: by seeds; where a pair of seeds was run again, its newest run alone, of those that have the control.
    """

    results: tuple[Result, ...]

    @cached_property
    def pattern(self) -> str:
        """Pattern, with its granularity and n:m where it has them, and its precision where that is a low one."""
        first = self.results[0]
        parts = (first.choice.pattern, first.choice.granularity, first.sparsity.n_of_m, low_precision_of(first))
        return " ".join(str(part) for part in parts if part is not None)

    @property
    def sparsity(self) -> float:
        """The one that was asked for."""
        return self.results[0].sparsity.sparsity_target

    @cached_property
    def achieved(self) -> float | None:
        """Mean over the runs that record it, None where none does."""
        found = [value for result in self.results if (value := result.sparsity.sparsity_achieved) is not None]
        return fmean(found) if found else None

    @cached_property
    def why_apart(self) -> str | None:
        """Why it is not compared with others at its sparsity, in few words: it achieved another one, or was given a budget, for
        which the sparsity is a ceiling. None where it is compared, as is what records no achieved sparsity.
        """
        if self.achieved is not None and misses(self.achieved, self.sparsity):
            return f"{self.achieved:.2f} achieved"
        return "has a budget" if budget_of(self.results[0]) else None

    @property
    def structure(self) -> str:
        """Equal for candidates whose networks differ by training, scores and allocation alone."""
        first = self.results[0]
        chosen = (getattr(first.choice, name) for name in STRUCTURE)
        return _text([first.sparsity.sparsity_target, low_precision_of(first), *chosen])

    @property
    def recovery(self) -> str:
        return recovery_of(self.results[0])

    @property
    def seeds(self) -> tuple[tuple[int, int | None], ...]:
        return tuple(seeds_of(result) for result in self.results)

    @property
    def runs(self) -> tuple[str, ...]:
        """The results' `run_id`s."""
        return tuple(result.identity.run_id for result in self.results)

    @cached_property
    def can_be_chosen(self) -> bool:
        return all(val_quality(result) is not None for result in self.results)

    @cached_property
    def metric(self) -> Metric:
        return metric_of(self.results[0])

    @property
    def merit(self) -> float:
        """What choices go by: the mean on the held-out part, negated where less is better."""
        return self.metric.sign * fmean(self.val)

    @cached_property
    def val(self) -> list[float]:
        """On the held-out part, fractions, of the runs that have it."""
        return [value for result in self.results if (value := val_quality(result)) is not None]

    @cached_property
    def test(self) -> list[float]:
        """On the reporting split, fractions."""
        return [result.value_of(side_of(result)) for result in self.results]

    @property
    def speedups(self) -> list[float]:
        return [result.speed.speedup for result in self.results if result.speed.speedup is not None]

    def settings(self) -> dict[str, Any]:
        """All that was chosen, `part.key` -> value, without seeds."""
        return _choice(self.results[0])


def candidates_of(results: Iterable[Result]) -> list[Candidate]:
    """Pruned results by what was chosen, in the order in which they are first met."""
    found: dict[str, dict[tuple, Result]] = {}
    for result in results:
        if side_of(result) is None:
            continue
        of_choice = found.setdefault(_text([result.sparsity.sparsity_target, _choice(result)]), {})
        before = of_choice.get(seeds_of(result))
        if before is None or rank(result) > rank(before):
            of_choice[seeds_of(result)] = result
    return [Candidate(tuple(runs[seeds] for seeds in sorted(runs, key=str))) for runs in found.values()]


def seeds_of(result: Result) -> tuple[int, int | None]:
    """Of the dense network and of its recovery."""
    again = result.identity.recovery_seed
    return result.identity.seed, result.identity.seed if again is None else again


def asked_of(result: Result) -> str:
    """What its allocation had to reach: a sparsity, or the speedup or latency for which the sparsity is a ceiling."""
    if budget := budget_of(result):
        return f"with {budget}"
    return f"at sparsity {result.sparsity.sparsity_target:g}"


def budget_of(result: Result) -> str | None:
    """The speedup or latency that its allocation was given, as a setting; None where a sparsity was asked for."""
    given = result.choice.allocation_parameters
    found = (f"allocation.{key}={given[key]:g}" for key in BUDGET_KEYS if given.get(key) is not None)
    return next(found, None)


def recovery_of(result: Result) -> str:
    """As the setting `recovery` takes it; `none` where nothing was recovered."""
    return result.choice.recovery or "none"


def side_of(result: Result) -> str | None:
    """With the sparse kernels running where that was measured, else masked; None where nothing was pruned."""
    return next((side for side in ("sparse", "masked") if result.value_of(side) is not None), None)


def is_pruned(result: Result) -> bool:
    """Whether the quality of a pruned network was measured."""
    return side_of(result) is not None


def val_quality(result: Result) -> float | None:
    """What a choice goes by; None where nothing may be chosen by this result."""
    side = None if offers_no_choice(result) else side_of(result)
    return None if side is None else result.value_of(f"val_{side}")


def holds_nothing_out(result: Result) -> bool:
    """Whether it was trained on all of train on purpose."""
    return result.choice.dataset_parameters.get("valid_fraction") == 0


def offers_no_choice(result: Result) -> bool:
    """Whether nothing of train was held out on purpose, or the checkpoint may have seen what is."""
    return holds_nothing_out(result) or bool(result.quality.val_seen)


def why_not_picked(results: Iterable[Result]) -> list[str]:
    """One line for each reason why some of these results may decide nothing, on purpose or since data was seen."""
    pruned = [result for result in results if is_pruned(result)]
    full = sum(map(holds_nothing_out, pruned))
    seen = sum(bool(result.quality.val_seen) for result in pruned)
    lines = []
    if full:
        lines.append(
            f"{full} of {len(pruned)} results hold nothing out (dataset.valid_fraction=0): none of them is picked"
        )
    if seen:
        lines.append(
            f"{seen} of {len(pruned)} results are of a checkpoint that may have been trained on the held-out part "
            "(val_seen): none of them is picked"
        )
    return lines


def mean_and_deviation(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean, and standard deviation over runs (n - 1 in the denominator); None where there are too few values."""
    if not values:
        return None, None
    middle = fmean(values)
    squares = sum((value - middle) ** 2 for value in values)
    return middle, sqrt(squares / (len(values) - 1)) if len(values) > 1 else None


def _choice(result: Result) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in vars(result.choice).items():
        if name == "control":  # it adds a network beside the pruned one, which stays the same
            continue
        if not isinstance(value, dict):
            flat[name] = value
            continue
        part = name.removesuffix("_parameters")
        flat |= {f"{part}.{key}": held for key, held in value.items() if (part, key) != ("importance", "seed")}
    return flat | {"precision": precision_of(result)}


def precision_of(result: Result) -> str | None:
    """Of the products with the prunable weights; results of before version 10 ran all in one dtype."""
    return result.speed.dtype if result.speed.precision is None else result.speed.precision


def low_precision_of(result: Result) -> str | None:
    """fp8, fp8_static or int8; None where products ran in 16 bits or more."""
    found = precision_of(result)
    return None if found in DTYPES else found


def low_baseline_is_faster(result: Result, field: str = "latency_dense{}_ms") -> bool:
    """Whether the dense network in low precision is faster than the 16-bit one, so that it is the one to beat.

    Args:
        field: of the latencies, with {} for what tells the two apart.
    """
    low, dense = result.value_of(field.format("_low")), result.value_of(field.format(""))
    return low is not None and dense is not None and low < dense


def _text(content: Any) -> str:
    return json.dumps(content, sort_keys=True, default=str)


# What must agree, beyond model, data, device, batch and dtype, before two results may share a plot.
#
# Each makes a quality or a speedup another quantity. What a result does not hold, being of an older version, agrees
# with nothing that is known.

BUDGET, SPLIT = "budget", "split"


def conditions(result: Result) -> dict[str, str]:
    """Condition -> what it was, in words; only those that apply to this result."""
    found = {"data": _data(result), "evaluation": _evaluation(result), "held out": _held_out(result)}
    if (split := split_of(result)) is not None:
        found[SPLIT] = f"split {split}"
    if result.choice.recovery is not None:
        found[BUDGET] = _budget(result)
    if result.speed.latency_device is not None:
        found["search"] = _search(result)
    if result.speed.timed_image_size is not None:
        found["image size"] = f"timed at {result.speed.timed_image_size} pixels"
    if result.speed.timed_mode is not None:
        found["timed"] = f"a token behind a prompt, with a cache of {result.speed.cache_length}"
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


def split_of(result: Result) -> str | None:
    """The rule by which rows of train were held out; None where none were. Before it was recorded each was held out by itself."""
    return None if holds_nothing_out(result) else result.choice.dataset_split or "rows"


def splits_apart(results: Iterable[Result]) -> list[str]:
    """A line for each data set of which different rows were held out: what such results chose by is not the same."""
    found: dict[str, Counter[str]] = {}
    for result in results:
        if (split := split_of(result)) is not None:
            subject = " ".join(filter(None, (result.choice.dataset, result.choice.dataset_task)))
            found.setdefault(subject, Counter())[split] += 1
    return [
        f"{subject}: not ranked against each other, since other rows of train were held out: "
        + ", ".join(f"{counted(count, 'result')} of the split {split}" for split, count in sorted(counts.items()))
        for subject, counts in found.items()
        if len(counts) > 1
    ]


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
    modes, variants = result.speed.modes_autotuned, result.speed.variants_autotuned
    if modes is None or variants is None:
        return "searched execution modes not recorded"
    return f"fastest of {', '.join(modes)}; variants {', '.join(variants) or 'none'}"


def processor_text(result: Result) -> str:
    """The CPU that was measured on, with its threads."""
    processor, threads = result.identity.processor, result.identity.threads
    if processor is None or threads is None:
        return "processor not recorded"
    return f"{processor}, {counted(threads, 'thread')}"
