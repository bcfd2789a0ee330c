"""Terminal tables of one run, of many runs, and of a sweep. Paths and messages are never wrapped."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparsefront.artifacts.durable import below
from sparsefront.errors import printable
from sparsefront.measure.speedup import DENSE_KERNELS, ratio_apart
from sparsefront.options import program_command
from sparsefront.progress import counted, reasons_text
from sparsefront.pruning.collapse import collapse_text
from sparsefront.results.candidates import (
    baseline_side,
    describe_target,
    low_baseline_is_faster,
    metric_of,
    points_lost,
    precision_of,
    processor_text,
    smaller_first,
    speedup_interval,
    too_few_repeats,
)
from sparsefront.results.columns import (
    COLUMNS,
    Column,
    QualityColumn,
    choose_columns,
    find_collapsed,
    find_metric,
    fraction,
    milliseconds,
    percent,
    plain,
    points,
    times,
)
from sparsefront.results.comparable import CPU_NOTE, ComparableResults, model_text, split_comparable, task_text
from sparsefront.results.compare_arguments import MOST_ROWS
from sparsefront.results.latency_table import wins_text
from sparsefront.results.record import Result
from sparsefront.results.run_folder import FAILURE_FILE, failure_message, overrides_command, read_overrides
from sparsefront.results.serving import read_all_serving, serving_texts
from sparsefront.results.statistics import (
    CHOICES,
    PICKED,
    budget_table,
    candidate_table,
    label_picks,
    settings_apart,
    speed_verdict,
)
from sparsefront.results.store import RESULT_FILE, read_results
from sparsefront.results.terminal import (
    add_row,
    least_width,
    plain_table,
    print_table,
    print_text,
    records_table,
    table_console,
)


def results_table(
    results: Sequence[Result],
    notes: Sequence[str] = (),
    *,
    most: int | None = None,
    columns: tuple[list[Column], dict[str, str]] | None = None,
) -> Table:
    """One line per result, in the given order; shared values are in the title, notes below.

    Args:
        notes: one line each.
        most: maximum number of lines; None = all.
        columns: from `choose_columns`, if already computed.
    Raises:
        ValueError: there are no results.
    """
    if not results:
        raise ValueError("nothing to show: there is no result")
    shown, shared = choose_columns(results) if columns is None else columns
    metric = find_metric(results)
    title = " · ".join(f"{field} {text}" for field, text in shared.items())
    timed_on_cpu = any(result.speed.latency_device == "cpu" and result.speed.speedup is not None for result in results)
    table = plain_table(title, [*([f"speedup: {CPU_NOTE}"] if timed_on_cpu else []), *notes])
    lines = [[printable(column.cell(result)) for column in shown] for result in results[:most]]
    for place, column in enumerate(shown):
        # Headings wrap at underscores, so that a dozen columns fit and keep the names that `sort=` accepts. Numbers are never
        # wrapped; in a narrow terminal names (run, kernel) are.
        justify, whole = ("right", True) if column.numeric else ("left", column.field == "pattern")
        words = re.split("[_ ]", heading := printable(column.heading(metric)))
        cells = [line[place] for line in lines] if whole else []
        table.add_column(
            heading.replace("_", "_\n").replace(" ", "\n"),
            justify=justify,
            no_wrap=whole,
            min_width=max(map(len, [*words, *cells])),
            overflow="fold",
        )
    for line in lines:
        add_row(table, *line)
    return table


def layer_lines(result: Result) -> list[dict[str, str]]:
    """Per layer, and for everything else with weights: sparsity, kernel, time, speedup over the dense kernel that was timed in
    turn, and why it stayed dense or other kernels are unsupported.

    The sparsity of a collapsed layer is marked, for the page's highlighting.
    """
    sparsity, kernels, collapsed = result.sparsity, result.kernels, find_collapsed(result)
    dense = sparsity.dense_layers | kernels.dense_weights
    lines = []
    for name in sparsity.sparsity_per_layer | sparsity.dense_layers | kernels.kernel_per_layer | kernels.dense_weights:
        kernel = kernels.kernel_per_layer.get(name, {})
        candidates, latency = kernel.get("candidates") or {}, kernel.get("latency_us")
        dense_us = next((candidates[one] for one in DENSE_KERNELS if candidates.get(one)), None)
        unsupported = "; ".join(f"{other}: {why}" for other, why in (kernel.get("unsupported") or {}).items())
        lines.append(
            {
                "layer": name,
                "sparsity": fraction(sparsity.sparsity_per_layer.get(name)) + " (collapsed)" * (name in collapsed),
                "kernel": plain(kernel.get("chosen")),
                "µs": "–" if latency is None else f"{latency:.1f}",
                "speedup": times(dense_us / latency if dense_us and latency else None),
                "of roofline": fraction(kernel.get("roofline_fraction")),
                "stayed dense, or unsupported because": dense.get(name, kernel.get("why_dense", unsupported)),
            }
        )
    return lines


RUN_WIDTH = 100  # most columns
QUALITIES = {
    "dense": "dense",
    "dense_continued": "dense, trained on",
    "dense_distilled": "dense, trained on with the teacher",
    "dense_low": "dense, in low precision",
    "masked": "masked",
    "sparse": "sparse",
}
QUALITY_COLUMNS = {column.field: column for column in COLUMNS if isinstance(column, QualityColumn)}


def run_table(result: Result) -> Table:
    """What one run found, in at most 100 columns; the page of the run has the rest."""
    table = Table(title=Text(run_title(result)), title_justify="left", box=box.SIMPLE_HEAD, show_header=False)
    table.add_column("")
    table.add_column("value", overflow="fold")
    for section in run_lines(result, brief=True):
        for words, value, _ in section:
            add_row(table, words, value)
        table.add_section()
    return table


_Lines = Iterator[tuple[str, str, str]]


def run_lines(result: Result, *, brief: bool = False) -> list[list[tuple[str, str, str]]]:
    """What one run found, by section: words, value, and the field of the result with the exact value.

    Args:
        brief: without what only the report explains: variants of networks, reasons of layers that were never to be pruned.
    """
    return [list(_quality_lines(result)), list(_speed_lines(result, brief)), list(_other_lines(result, brief))]


def _quality_lines(result: Result) -> _Lines:
    quality, metric = result.quality, metric_of(result)
    for side, words in QUALITIES.items():
        if side in ("dense", "masked", "sparse") or result.value_of(side) is not None:
            name = dense_low_text(result) if side == "dense_low" else words
            yield f"{metric.words}, {name}", QUALITY_COLUMNS[side].cell(result), f"quality.{side}"
    lost = points_lost(result)
    if lost is not None:
        text = metric.format_loss(lost) if metric.less_is_better else points(lost)
        fields = "dense, dense_continued, dense_distilled, sparse"
        yield "points lost", f"{text}, against {QUALITIES[baseline_side(result)]}", fields
    if quality.evaluated_samples is not None:
        limit = "" if quality.evaluate_limit is None else f" (measure.evaluate_limit={quality.evaluate_limit})"
        text = f"{quality.evaluated_samples} test samples{limit}; ± is their standard error"
        yield "evaluated on", text, "evaluated_samples"
    if quality.val_dense is not None:  # on samples that are neither trained on nor reported
        measured = {side: result.value_of(f"val_{side}") for side in ("dense", "masked", "sparse")}
        metrics = ", ".join(f"{side} {metric.text(value)}" for side, value in measured.items() if value is not None)
        use = "for no choice: the checkpoint may have seen them" if quality.val_seen else "for choices"
        text = f"{metrics} of {quality.val_evaluated_samples} samples, {use}"
        yield f"{metric.words}, held out", text, "val_dense, val_masked, val_sparse"


def _speed_lines(result: Result, brief: bool) -> _Lines:
    speed = result.speed
    yield "latency, dense", _latency(result, "dense", brief), "latency_dense_ms"
    if speed.latency_dense_low_ms is not None:
        yield f"latency, {dense_low_text(result)}", _latency(result, "dense_low", brief), "latency_dense_low_ms"
    yield "latency, sparse", _latency(result, "sparse", brief), "latency_sparse_ms"
    if speed.timed_mode is not None:
        yield "text, token by token", _decoding_text(result), "tokens_per_s_*, latency_prefill_*_ms"
    if speed.fused_dense_latency_ms is not None and not brief:
        text = f"{milliseconds(speed.fused_dense_latency_ms)} ms"
        yield "latency, dense, in sparsefront's fused graph", text, "fused_dense_latency_ms"
    yield "speedup", _speedup(result) + ("" if brief else apart_from_medians(result)), "speedup"
    if speed.speedup is not None and (interval := speedup_interval(result)) is not None:
        repeats = "" if speed.repeats is None else f", {counted(speed.repeats, 'repeat')}"
        text = f"{' – '.join(map(times, interval))} (bootstrap 95 % of the ratio of medians{repeats})"
        yield "its interval", text, "speedup_low, speedup_high"
    if speed.speedup_low_precision is not None:
        stronger = "; this dense version is the faster one" if low_baseline_is_faster(result) else ""
        text = f"{times(speed.speedup_low_precision)}{_verdict(result, 'speedup_low_precision')}{stronger}"
        yield f"speedup over {dense_low_text(result)}", text, "speedup_low_precision"
    if speed.dataset_lengths:
        yield "over the data's own batches", _own_lengths(result), "latency_*_dataset_ms, speedup_dataset"
        yield "their lengths", lengths_text(result), "dataset_lengths"
    for entry in speed.parts:
        name = (
            "whole translations" if entry["part"] == "translation" else f"the {entry['part'].replace('_', ' ')} alone"
        )
        yield name, _part_text(entry), "parts"
    if speed.curve:
        yield "sparse wins", wins_text(result), "curve"
    yield "device", _device(result), "latency_device"
    if not brief or precision_of(result) != speed.dtype:
        yield "precision", plain(precision_of(result)), "precision"
    yield "kernel", plain(speed.latency_kernel), "latency_kernel"


def _other_lines(result: Result, brief: bool) -> _Lines:
    identity, sparsity, cost, size = result.identity, result.sparsity, result.cost, result.size
    yield "achieved sparsity", fraction(sparsity.sparsity_achieved), "sparsity_achieved"
    if sparsity.weights_left is not None:
        text = ", ".join(map(fraction, (sparsity.weights_left, sparsity.theoretical_flops_left)))
        yield "left of the dense weights, flops", text, "weights_left, theoretical_flops_left"
    if cost.recovery_steps is not None:
        epochs = "" if cost.recovery_epochs is None else f"{cost.recovery_epochs:.3g}"
        counts = {"step": cost.recovery_steps, "epoch": epochs, "sample": cost.recovery_samples}
        text = ", ".join(counted(number, noun) for noun, number in counts.items())
        yield "recovery", text if cost.recovery_steps else "no training", "recovery_steps"
    collapsed = find_collapsed(result)
    yield "layers left dense", dense_layers_text(result, brief=brief), "dense_layers, dense_weights"
    if not brief or collapsed:
        text = f"{len(collapsed)}: {collapse_text(collapsed)}" if collapsed else "none"
        yield "layers collapsed", text, "collapsed_layers"
    weights = f"{_megabytes(size.weight_bytes_dense)} dense, {_megabytes(size.weight_bytes_sparse)} sparse"
    yield "weights", weights, "weight_bytes_sparse"
    if size.resident_bytes_sparse is not None:
        text = f"{_megabytes(size.resident_bytes_dense)} dense, {_megabytes(size.resident_bytes_sparse)} sparse"
        held = size.dense_bytes_per_layer
        if held:
            text += f" ({_megabytes(sum(held.values()))} in {counted(len(held), 'prunable layer')} left dense)"
        if not (brief and text == weights):
            yield "on the device", text, "resident_bytes_sparse"
    yield "seed", str(identity.seed), "seed"
    if identity.recovery_seed not in (None, identity.seed):
        yield "seed of the recovery", str(identity.recovery_seed), "recovery_seed"


def run_title(result: Result) -> str:
    """Model, data, pattern with granularity or n:m, and target."""
    choice = result.choice
    parts = (smaller_first(result), choice.pattern, choice.granularity, result.sparsity.n_of_m, describe_target(result))
    pattern = " ".join(str(part) for part in parts if part is not None)
    return f"{model_text(result)} on {task_text(result)}: {pattern}"


def dense_layers_text(result: Result, *, brief: bool = False) -> str:
    """How many layers, modules and parameters with weights stayed dense, by reason; for prunable ones, their share of the
    prunable weights.

    Args:
        brief: without the reasons of others than prunable layers.
    """
    prunable, shares = result.sparsity.dense_layers, result.sparsity.dense_weight_shares
    others = result.kernels.dense_weights
    if result.choice.recovery_parameters.get("dense_after") is not None:
        return "all: recovery.dense_after lifted the masks"
    if result.choice.kernel_mode == "none":
        return "all: kernel=none swaps nothing in"
    reasons = prunable | others
    if not reasons:
        return "none"
    held = f" with {percent(sum(shares.values()))} of the prunable weights" if shares else ""
    if others:
        held = f" ({len(prunable) or 'none'} of them prunable{',' * bool(held)}{held})"
    shown = prunable if brief else reasons
    return f"{len(reasons)}{held}" + (f": {reasons_text(shown)}" if shown else "")


def _latency(result: Result, side: str, brief: bool) -> str:
    median, p20, p80 = (result.value_of(f"latency_{side}{percentile}_ms") for percentile in ("", "_p20", "_p80"))
    if median is None:
        return "not measured"
    spread = "" if p20 is None or p80 is None else f" ({milliseconds(p20)} – {milliseconds(p80)})"
    mode = result.value_of(f"execution_mode_{side}")
    way = mode if brief else result.value_of(f"{side}_variant") or mode
    return f"{milliseconds(median)} ms{spread}" + ("" if way is None else f", {way}")


def _speedup(result: Result) -> str:
    speedup = result.speed.speedup
    return "not measured" if speedup is None else f"{times(speedup)}{_verdict(result, 'speedup')}"


def dense_low_text(result: Result) -> str:
    """`dense in fp8`."""
    return f"dense in {result.speed.dense_low_precision or 'low precision'}"


def _decoding_text(result: Result) -> str:
    """Tokens per second, and the time of the prompt."""
    names = {"dense": "dense", "dense_low": dense_low_text(result), "sparse": "sparse"}
    rates = {name: result.value_of(f"tokens_per_s_{side}") for side, name in names.items()}
    texts = [f"{name} {rate:.0f} tokens/s" for name, rate in rates.items() if rate is not None]
    prompts = (result.speed.latency_prefill_dense_ms, result.speed.latency_prefill_sparse_ms)
    if prompts != (None, None):
        taken = ", ".join("not measured" if one is None else f"{milliseconds(one)} ms" for one in prompts)
        texts.append(f"prompt, dense and sparse: {taken}")
    return "; ".join(texts)


def _verdict(result: Result, field: str) -> str:
    """`, faster`, from the interval of a speedup; `, n=3` with too few repeats; empty if none was recorded. None of a CPU, where
    kernels are references.
    """
    if result.speed.latency_device == "cpu":
        return f" ({CPU_NOTE})"
    few = too_few_repeats(result)
    if few:
        return f", n={few}: no interval"
    interval = speedup_interval(result, field)
    return "" if interval is None else f", {speed_verdict(*interval, result.kernels.sparse_flops_share)}"


def _own_lengths(result: Result) -> str:
    """Latency of a batch of the evaluation set."""
    speed = result.speed
    if speed.latency_dense_dataset_ms is None:
        return "not measured: one of their sizes could not be"
    names = {"dense": "dense", "dense_low": dense_low_text(result), "sparse": "sparse"}
    taken = {name: result.value_of(f"latency_{side}_dataset_ms") for side, name in names.items()}
    latencies = ", ".join(f"{name} {milliseconds(value)} ms" for name, value in taken.items() if value is not None)
    if speed.speedup_dataset is None:
        return latencies
    interval = speedup_interval(result, "speedup_dataset")
    ends = "" if interval is None else f" ({' – '.join(map(times, interval))})"
    low = speed.speedup_low_precision_dataset
    over = "" if low is None else f"; {times(low)} over {dense_low_text(result)}"
    return f"{latencies}: {times(speed.speedup_dataset)}{ends}{_verdict(result, 'speedup_dataset')}{over}"


def _part_text(entry: Mapping[str, Any]) -> str:
    """`0.52 ms dense, 0.40 ms sparse: 1.30×`, with the number of rows, and tokens per second if it generates any."""
    if "not_measured" in entry:
        return f"not measured: {entry['not_measured']}"
    rates = [f"{side} {entry[key]:.0f}" for side in ("dense", "sparse") if (key := f"tokens_per_s_{side}") in entry]
    written = f"; {', '.join(rates)} tokens/s" if rates else ""
    what = f"{entry['batch_size']} rows, {entry['sequence_length']} tokens"
    sparse = entry.get("latency_sparse_ms")
    beside = "" if sparse is None else f", {milliseconds(sparse)} ms sparse: {times(entry['speedup'])}"
    return f"{milliseconds(entry['latency_dense_ms'])} ms dense{beside} ({what}){written}"


def lengths_text(result: Result) -> str:
    """`16 tokens in 3 batches, 48 in 7`: numbers of batches of the evaluation set by length."""
    counts: Counter[int] = Counter()
    for entry in result.speed.dataset_lengths:
        counts[entry["sequence_length"]] += entry["batches"]
    (first, batches), *others = sorted(counts.items())
    return ", ".join([f"{first} tokens in {counted(batches, 'batch')}", *(f"{one} in {n}" for one, n in others)])


def apart_from_medians(result: Result) -> str:
    """A clause if the ratio of the displayed latencies differs from the speedup; empty if they agree."""
    speed = result.speed
    return ratio_apart(speed.speedup, speed.latency_dense_ms, speed.latency_sparse_ms)


def _device(result: Result) -> str:
    speed = result.speed
    if speed.latency_device is None:
        return "not timed"
    device = result.identity.gpu or "cuda" if speed.latency_device == "cuda" else speed.latency_device
    if result.identity.processor is not None:
        device = f"{device} ({processor_text(result)})"
    batch = None if speed.batch_size is None else f"batch {speed.batch_size}"
    return ", ".join(filter(None, (device, batch, speed.dtype)))


def _megabytes(size: int | None) -> str:
    return "–" if size is None else f"{size / 1e6:.2f} MB"


# Comparable results in 80 columns: one line per candidate, with the essentials only.

HEADINGS = ("pattern", "sparsity", "recovery", "runs", "test", "lost", "speedup", "picked")
FOLDED = {"pattern": 17, "recovery": 13, "picked": 8}  # maximum width, to leave room for numbers in 80 columns
SHOWN = ("pattern", "sparsity", "recovery")  # settings are shown for lines that are equal in all of these


def compact_table(group: ComparableResults, most: int | None = None) -> Table:
    """The points of a group, best held-out quality first, above their dense networks; an explanation of the last column below.

    Args:
        most: maximum number of points; None = all.
    """
    picked, apart = label_picks(group.candidates), settings_apart(group.candidates, SHOWN)
    notes = [PICKED] if {"winner", "recipe"} & set(picked.values()) else []
    table = plain_table(group.title, notes, show_edge=False, padding=0)
    for heading in HEADINGS:
        style = {"max_width": FOLDED[heading], "overflow": "fold"} if heading in FOLDED else {}
        table.add_column(heading, **(style or {"justify": "right", "no_wrap": True}))
    sign = group.metric.sign
    order = sorted(group.points, key=lambda point: -sign * (point.quality if point.val is None else point.val))
    for point in order[:most]:
        candidate, settings = point.candidate, apart[point.candidate.runs].items()
        # settings that distinguish it are shown below the name they belong to
        of_recovery = [text.removeprefix("recovery.") for key, text in settings if key.startswith("recovery.")]
        others = [text.removeprefix("pattern.") for key, text in settings if not key.startswith("recovery.")]
        lost = [value for value in (points_lost(result) for result in candidate.results) if value is not None]
        add_row(
            table,
            "\n".join((candidate.pattern, *others)),
            f"{candidate.sparsity:g}",
            "\n".join((candidate.recovery, *of_recovery)),
            str(len(candidate.results)),
            f"{point.quality:.2f}" + ("" if point.spread is None else f" ± {point.spread:.2f}"),
            points(fmean(lost) if lost else None),
            times(fmean(candidate.speedups) if candidate.speedups else None),
            picked.get(candidate.runs, ""),
        )
    dense = group.median_quality("dense")
    if dense is not None:
        add_row(table, "dense", "0", "", "", f"{dense:.2f}", "", "", "")
    return table


# Output at the end of a run or sweep. Paths, and messages that contain them, are printed outside of tables, which would
# wrap them, so that they can be copied.


def print_run(result: Result, paths: Sequence[Path], *, checkpoint: str | None = None, is_point: bool = False) -> None:
    """Print the table of a run, then three lines: what happened, where it lies, what to do next.

    Args:
        paths: files of the run.
        checkpoint: where the exported network lies.
        is_point: of a sweep, whose last lines are a table of all: prints what happened and where it lies alone.
    """
    console = Console()
    console.width = min(console.width, RUN_WIDTH) if console.is_terminal else RUN_WIDTH
    folders = {path.parent: [one.name for one in paths if one.parent == path.parent] for path in paths}
    parts = [f"{_short(folder)}/ {', '.join(names)}" for folder, names in folders.items()]
    where = f"in {'; '.join(parts)}" + (f"; the network: {checkpoint}" if checkpoint else "")
    if is_point:
        print(printable(f"{run_title(result)}: {outcome_text(result)}"), where, sep="\n")
        return
    print_table(console, run_table(result))
    folder = next((path.parent for path in paths if path.name == RESULT_FILE), None)
    for served in read_all_serving([result], lambda _: folder).values():
        for line in serving_texts(result, served):
            print_text(console, line)
    print(printable(outcome_text(result)), where, sep="\n")
    if folder:
        steps = [f"{program_command('compare')} {_short(folder.parent)}"]
        steps += [f"{program_command('verify')} {_short(folder / RESULT_FILE)}"]
        command = overrides_command(folder)
        if command:
            run = program_command("run")
            steps += [re.sub(r" seed=\S+", "", command).replace(run, f"{run} -m seed=0,1,2", 1)]
        print(f"next: {printable('  |  '.join(steps))}")


def outcome_text(result: Result) -> str:
    """`75 % zeros: accuracy 97.2 → 96.7 %; 1.31× as fast`, for the last lines of a run."""
    quality, words = result.quality, metric_of(result)
    sparse, how = quality.sparse, "" if quality.sparse is not None else " (masked)"
    after = quality.masked if sparse is None else sparse
    zeros = result.sparsity.sparsity_achieved
    text = "dense network" if not zeros else f"{100 * zeros:.3g} % zeros"
    if quality.dense is not None and after is not None:
        text += f": {words.words} {words.text(quality.dense).removesuffix(' %')} → {words.text(after)}{how}"
    if result.speed.latency_device == "cpu":
        return f"{text}; latency on a CPU says nothing about a GPU"
    return text if result.speed.speedup is None else f"{text}; speedup {_speedup(result)} on {_device(result)}"


def print_group(
    group: ComparableResults,
    verdicts: Sequence[str],
    *,
    most: int | None = MOST_ROWS,
    served: Sequence[Mapping[str, str]] = (),
) -> None:
    """Print comparable results: tables of runs, candidates and losses, with conclusions below; in a narrow terminal a compact
    table instead of the first one.

    Args:
        verdicts: confidence of what was picked, on the reporting split.
        most: maximum number of table lines; None = all.
        served: from `serving_lines`.
    """
    narrow, table = Console(), results_table(group.results, group.notes, most=most, columns=group.columns)
    budgets = budget_table(group)
    if _is_too_narrow(narrow, table):
        print_table(narrow, compact_table(group, most))
        _print_left_out(len(group.points), most, "candidate")
        notes = [f"speedup: {CPU_NOTE}"] if group.device == "cpu" else []
        cells = ("; ".join(f"{name} {cell}" for name, cell in line.items() if cell) for line in budgets)
        for line in [*notes, *group.notes, *verdicts, *(f"- {text}" for text in cells)]:
            print_text(narrow, line)
    else:
        console = table_console(table)
        print_table(console, table)
        _print_left_out(len(group.results), most, "run")
        chosen = candidate_table(group.candidates)
        if chosen:
            print_table(console, records_table(chosen[:most], CHOICES, verdicts))
            _print_left_out(len(chosen), most, "candidate")
        if budgets:
            print_table(table_console(), records_table(budgets, "the fastest that surely loses at most so much"))
    if served:
        title = "as it is served" + (f" ({CPU_NOTE})" if group.device == "cpu" else "")
        print_table(table_console(), records_table(served[:most], title))
        _print_left_out(len(served), most, "run that served")
    print()


def print_results(results: Sequence[Result]) -> None:
    """Print results in one table, comparable or not; in a narrow terminal, compact tables of comparable ones."""
    narrow, table = Console(), results_table(results)
    groups = split_comparable(results)
    if not _is_too_narrow(narrow, table):
        print_table(table_console(table), table)
        for group in groups:
            if any(len(candidate.results) > 1 for candidate in group.candidates):  # mean ± deviation over seeds
                print_table(table_console(), records_table(candidate_table(group.candidates), CHOICES))
        return
    for group in groups:
        print_table(narrow, compact_table(group))
    if any(group.device == "cpu" for group in groups):
        print(f"speedup: {CPU_NOTE}")


def _is_too_narrow(console: Console, table: Table) -> bool:
    return console.is_terminal and console.width < least_width(table)


def _print_left_out(count: int, most: int | None, what: str) -> None:
    if most is not None and count > most:
        print(f"{counted(count - most, f'more {what}')}: in compare.html, or rows=all")


def _short(path: Path) -> str:
    """Relative to the working directory, if it is below it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def print_sweep(directory: Path) -> None:
    """Print tables of a sweep's finished and failed points.

    Args:
        directory: the sweep's folder, one subfolder per point.
    """
    files = sorted(below(directory, RESULT_FILE))
    failures = sorted(below(directory, FAILURE_FILE))
    reading = read_results(files)
    if reading.results:
        print_results(sorted(reading.results, key=lambda one: (one.choice.pattern, one.sparsity.sparsity_target)))
    for problem in reading.problems:
        print(printable(problem))
    if failures:
        print(f"{len(failures)} failed:")
    for file in failures:
        overrides = " ".join(read_overrides(file.parent) or ["not recorded"])
        print(printable(f"  {file.parent.name}: {overrides}"))
        print(f"     {printable(failure_message(file), lines=True)}")
    finished, distinct = len(files) - len(reading.problems), len(reading.results)
    # equivalent points share one result
    shared = f" with {counted(distinct, 'different result')}" if distinct < finished else ""
    print(f"{counted(finished, 'point')} finished{shared}, {len(failures)} failed: {directory}")
