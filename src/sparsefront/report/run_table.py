"""The table of one run for the terminal."""

from collections import Counter
from functools import partial

from rich import box
from rich.table import Table
from rich.text import Text

from sparsefront.counted import counted
from sparsefront.pruning.collapse import collapse_text, collapsed_layers
from sparsefront.report.baseline import points_lost
from sparsefront.report.candidates import asked_of
from sparsefront.report.column_kinds import fraction, milliseconds, percent, plain, points, times
from sparsefront.report.columns import COLUMNS
from sparsefront.report.comparable import CPU_NOTE, model_text, task_text
from sparsefront.report.conditions import processor_text
from sparsefront.report.latency_curve import wins_text
from sparsefront.report.result import Result, Sparsity
from sparsefront.report.speed_verdict import speed_verdict
from sparsefront.report.table import add_row

QUALITIES = {
    "dense": "dense",
    "dense_continued": "dense, trained on",
    "masked": "masked",
    "sparse": "sparse",
}


QUALITY_COLUMNS = {column.field: column for column in COLUMNS if column.error is not None}


def run_table(result: Result) -> Table:
    """What one run found, each line with the field of the result that holds the exact value."""
    quality, speed = result.quality, result.speed
    table = Table(title=Text(run_title(result)), title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column("value", overflow="fold")
    table.add_column("field of the result", style="dim", overflow="fold")
    add = partial(add_row, table)
    metric = quality.metric_name.replace("_", " ")
    for side, words in QUALITIES.items():
        if side == "dense_continued" and quality.dense_continued is None:
            continue
        add(f"{metric}, {words}", QUALITY_COLUMNS[side].cell(result), f"quality.{side}")
    if (lost := points_lost(result)) is not None:
        against = "dense" if quality.dense_continued is None else "dense, trained on"
        add("points lost", f"{points(lost)}, against {against}", "dense, dense_continued, sparse")
    if quality.evaluated_samples is not None:
        add("evaluated on", _evaluation(result), "evaluated_samples")
    if quality.val_dense is not None:
        add(f"{metric}, held out", _held_out(result), "val_dense, val_masked, val_sparse")
    table.add_section()
    add("latency, dense", _latency(result, "dense"), "latency_dense_ms")
    add("latency, sparse", _latency(result, "sparse"), "latency_sparse_ms")
    if speed.fused_dense_latency_ms is not None:
        add(
            "latency, dense, our fused graph",
            f"{milliseconds(speed.fused_dense_latency_ms)} ms",
            "fused_dense_latency_ms",
        )
    add("speedup", _speedup(result), "speedup")
    if (interval := _interval(result)) is not None:
        add("its interval", interval, "speedup_low, speedup_high")
    if speed.curve:
        add("sparse wins", wins_text(result), "curve")
    add("device", _device(result), "latency_device")
    add("kernel", plain(speed.latency_kernel), "latency_kernel")
    table.add_section()
    add("achieved sparsity", fraction(result.sparsity.sparsity_achieved), "sparsity_achieved")
    if result.cost.recovery_steps is not None:
        add("recovery", _budget(result), "recovery_steps")
    add("layers left dense", dense_layers_text(result.sparsity), "dense_layers")
    add("layers collapsed", collapsed_layers_text(result), "collapsed_layers")
    add("weights", _weights(result), "weight_bytes_sparse")
    if result.size.resident_bytes_sparse is not None:
        add("on the device", _resident(result), "resident_bytes_sparse")
    add("seed", str(result.identity.seed), "seed")
    if result.identity.recovery_seed not in (None, result.identity.seed):
        add("seed of the recovery", str(result.identity.recovery_seed), "recovery_seed")
    return table


def run_title(result: Result) -> str:
    """Model, data, pattern with its granularity or n:m, and what was asked for."""
    choice = result.choice
    unit = "".join(f" {part}" for part in (choice.granularity, result.sparsity.n_of_m) if part is not None)
    pattern = f"{choice.pattern}{unit} {asked_of(result)}"
    return f"{model_text(result)} on {task_text(result)}: {pattern}"


def dense_layers_text(sparsity: Sparsity) -> str:
    """How many layers stayed dense, with which part of the prunable weights, and how many of them for which reason."""
    dense_layers, shares = sparsity.dense_layers, sparsity.dense_weight_shares
    if not dense_layers:
        return "none"
    held = f" with {percent(sum(shares.values()))} of the prunable weights" if shares else ""
    reasons = Counter(dense_layers.values()).most_common()  # the commonest first
    return f"{len(dense_layers)}{held}: " + "; ".join(f"{count} × {reason}" for reason, count in reasons)


def collapsed_layers_text(result: Result) -> str:
    """How many layers keep nearly nothing of the target density, and which."""
    collapsed = collapsed_layers(result.sparsity.sparsity_per_layer, result.sparsity.sparsity_target)
    return f"{len(collapsed)}: {collapse_text(collapsed)}" if collapsed else "none"


def _latency(result: Result, side: str) -> str:
    median, p20, p80 = (result.value_of(f"latency_{side}{percentile}_ms") for percentile in ("", "_p20", "_p80"))
    if median is None:
        return "not measured"
    spread = "" if p20 is None or p80 is None else f" ({milliseconds(p20)} – {milliseconds(p80)})"
    way = result.value_of(f"{side}_variant") or result.value_of(f"execution_mode_{side}")
    return f"{milliseconds(median)} ms{spread}" + ("" if way is None else f", {way}")


def _speedup(result: Result) -> str:
    speed = result.speed
    if speed.speedup is None:
        return "not measured"
    note = f" ({CPU_NOTE})" if speed.latency_device == "cpu" else ""
    if speed.speedup_low is None or speed.speedup_high is None:
        return times(speed.speedup) + note
    verdict = speed_verdict(speed.speedup_low, speed.speedup_high, result.kernels.sparse_flops_share)
    return f"{times(speed.speedup)}, {verdict}{note}"


def _interval(result: Result) -> str | None:
    """The ends of the speedup's interval, and what kind of interval it is: see `measure.speedup.speedup_of`."""
    speed = result.speed
    if None in (speed.speedup, speed.speedup_low, speed.speedup_high):
        return None
    repeats = "" if speed.repeats is None else f" over {counted(speed.repeats, 'repeat')}"
    return f"{times(speed.speedup_low)} – {times(speed.speedup_high)}, bootstrap 95 % interval of the ratio of medians{repeats}"


def _evaluation(result: Result) -> str:
    """How many samples, and what ± means."""
    quality = result.quality
    limit = "" if quality.evaluate_limit is None else f" (measure.evaluate_limit={quality.evaluate_limit})"
    return f"{quality.evaluated_samples} test samples{limit}; ± is their standard error"


def _held_out(result: Result) -> str:
    """What choices go by: never trained on, and not the samples that are reported."""
    sides = ("dense", "masked", "sparse")
    measured = {side: value for side in sides if (value := result.value_of(f"val_{side}")) is not None}
    told = ", ".join(f"{side} {percent(value)}" for side, value in measured.items())
    use = "for no choice: the checkpoint may have seen them" if result.quality.val_seen else "for choices"
    return f"{told} of {result.quality.val_evaluated_samples} samples, {use}"


def _device(result: Result) -> str:
    speed = result.speed
    if speed.latency_device is None:
        return "not timed"
    device = result.identity.gpu or "cuda" if speed.latency_device == "cuda" else speed.latency_device
    if result.identity.processor is not None:
        device = f"{device} ({processor_text(result)})"
    batch = None if speed.batch_size is None else f"batch {speed.batch_size}"
    return ", ".join(filter(None, (device, batch, speed.dtype)))


def _budget(result: Result) -> str:
    """What the recovery took, as its training loop counted."""
    cost = result.cost
    if not cost.recovery_steps:
        return "no training"
    counts = {"step": cost.recovery_steps, "epoch": f"{cost.recovery_epochs:.3g}", "sample": cost.recovery_samples}
    return ", ".join(counted(number, noun) for noun, number in counts.items())


def _weights(result: Result) -> str:
    return f"{_megabytes(result.size.weight_bytes_dense)} dense, {_megabytes(result.size.weight_bytes_sparse)} sparse"


def _resident(result: Result) -> str:
    """What both networks keep there, and how much of the sparse one's are prunable layers that stayed dense."""
    text = (
        f"{_megabytes(result.size.resident_bytes_dense)} dense, {_megabytes(result.size.resident_bytes_sparse)} sparse"
    )
    held = result.size.dense_bytes_per_layer
    return text + (f" ({_megabytes(sum(held.values()))} in {counted(len(held), 'layer')} left dense)" if held else "")


def _megabytes(size: int | None) -> str:
    return "–" if size is None else f"{size / 1e6:.2f} MB"
