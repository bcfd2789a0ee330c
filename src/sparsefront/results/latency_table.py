"""Latency curves over batch size and length, and the table of layer times for latency_aware."""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsefront.errors import InvalidSetting
from sparsefront.measure.speedup import DENSE_KERNELS
from sparsefront.options import program_command
from sparsefront.progress import counted, exit_quietly_on_broken_pipe
from sparsefront.results.candidates import too_few_repeats
from sparsefront.results.columns import fraction, milliseconds, plain, times
from sparsefront.results.comparable import CPU_NOTE
from sparsefront.results.plots import DENSE_COLOR, SERIES_COLORS, new_figure
from sparsefront.results.record import Result, result_fields
from sparsefront.results.statistics import FASTER, speed_verdict
from sparsefront.results.store import read_results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sparsefront.allocation.latency_aware import LayerTime


# Latency of the same weights at several batch sizes and lengths, and where sparse wins.

_OF_THE_RESULT = (
    *(
        "batch_size",
        "sequence_length",
        "latency_dense_ms",
        "latency_sparse_ms",
        "speedup",
        "speedup_low",
        "speedup_high",
    ),
    *("dense_variant", "fused_dense_latency_ms"),
)


def curve_sizes(result: Result) -> list[dict[str, Any]]:
    """The result's own size and those of its curve, as entries of `Speed.curve`, by length and batch size; empty if only one
    size was timed.
    """
    if not result.speed.curve or result.speed.batch_size is None:
        return []
    chosen = [layer.get("chosen") for layer in result.kernels.kernel_per_layer.values()]
    own = {name: getattr(result.speed, name) for name in _OF_THE_RESULT}
    own["kernels"] = {kernel: chosen.count(kernel) for kernel in dict.fromkeys(chosen) if kernel is not None}
    own["sparse_flops_share"] = result.kernels.sparse_flops_share
    # with too few repeats, intervals would be too narrow
    few = {"speedup_low": None, "speedup_high": None} if too_few_repeats(result) else {}
    sizes = [{**size, **few} for size in (own, *result.speed.curve)]
    return sorted(sizes, key=lambda size: (size["sequence_length"] or 0, size["batch_size"]))


def is_win(size: Mapping[str, Any]) -> bool:
    """Whether sparse counts as faster at a size."""
    low, high = size.get("speedup_low"), size.get("speedup_high")
    return None not in (low, high) and speed_verdict(low, high, size.get("sparse_flops_share")) == FASTER


def won_batch_sizes(result: Result) -> dict[int | None, list[int]]:
    """Sequence length -> measured batch sizes at which sparse wins, ascending."""
    won: dict[int | None, list[int]] = {}
    for size in curve_sizes(result):
        won.setdefault(size["sequence_length"], []).extend([size["batch_size"]] if is_win(size) else [])
    return won


def wins_text(result: Result) -> str:
    """`length 128: at batch 32, 128; length 384: at no batch size`."""
    if result.speed.latency_device == "cpu":
        return f"not decided: {CPU_NOTE}"
    few = too_few_repeats(result)
    if few:
        return f"not decided, n={few}: no interval"
    texts = []
    for length, batch_sizes in won_batch_sizes(result).items():
        where = f"at batch {', '.join(map(str, batch_sizes))}" if batch_sizes else "at no batch size"
        texts.append(where if length is None else f"length {length}: {where}")
    return "; ".join(texts)


def curve_lines(result: Result) -> list[dict[str, str]]:
    """A table of the sizes, heading -> text."""
    lines = []
    for size in curve_sizes(result):
        interval = (size.get("speedup_low"), size.get("speedup_high"))
        kernels = ", ".join(f"{count} × {kernel}" for kernel, count in (size.get("kernels") or {}).items())
        lines.append(
            {
                "batch": str(size["batch_size"]),
                "length": plain(size["sequence_length"]),
                "dense, ms": milliseconds(size.get("latency_dense_ms")),
                "sparse, ms": milliseconds(size.get("latency_sparse_ms")),
                "speedup": times(size.get("speedup")),
                "interval": "–" if None in interval else " – ".join(map(times, interval)),
                "fused dense, ms": milliseconds(size.get("fused_dense_latency_ms")),
                "fastest dense version": plain(size.get("dense_variant")),
                "share of flops sparse": fraction(size.get("sparse_flops_share")),
                "kernels, or not measured because": size.get("not_measured", kernels or "–"),
            }
        )
    return lines


def curve_figure(result: Result) -> "Figure":
    """Log-log plot of latency against batch size: one line per side and length, dense dashed."""
    figure = new_figure(9, 4.4)
    axes = figure.subplots()
    axes.set(xscale="log", yscale="log", xlabel="batch size", ylabel="latency of a batch, ms")
    sizes = curve_sizes(result)
    lengths = list(dict.fromkeys(size["sequence_length"] for size in sizes))
    for (place, length), side in product(enumerate(lengths), ("dense", "sparse")):
        of_length = [size for size in sizes if size["sequence_length"] == length]
        name, field = side if length is None else f"{side}, length {length}", f"latency_{side}_ms"
        timed = [(size["batch_size"], size[field]) for size in of_length if size.get(field) is not None]
        color = DENSE_COLOR if len(lengths) == 1 and side == "dense" else SERIES_COLORS[place % len(SERIES_COLORS)]
        if timed:
            axes.plot(*zip(*timed), color=color, linestyle="--" if side == "dense" else "-", marker="o", label=name)
    ticks = sorted({size["batch_size"] for size in sizes})
    axes.set_xticks(ticks, [str(size) for size in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8)
    return figure


# Convert the results of a sweep to the table of layer times for allocation=latency_aware.
#
# python -m sparsefront.results.latency_table results/SWEEP -o table.csv [--only FIELD=VALUE ...]

# Times are only combined in a table if all of these agree.
SAME = (
    *("model", "model_variant", "dataset", "dataset_task", "pattern", "pattern_parameters", "gpu", "dtype", "layout"),
    *("batch_size", "sequence_length", "timed_image_size", "timed_mode", "cache_length", "kernel_mode"),
)


@exit_quietly_on_broken_pipe()
def main(arguments: Sequence[str]) -> int:
    """Write the table; returns the exit status: 0, or 1 with one message on stderr."""
    request = _parser().parse_args(arguments)
    try:
        _make(request)
    except InvalidSetting as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def layer_times(results: Iterable[Result]) -> list["LayerTime"]:
    """The lines of the table: per layer its dense time, then one time per sparsity, ascending.

    A level is the target sparsity of a result, which reproduces the same mask. Its time is that of the kernel chosen by the
    run, dense if that was faster. If several results timed the same, the (lower) median is used.

    Args:
        results: usable ones (see `unusable`) that agree in all of SAME.
    """
    from sparsefront.allocation.latency_aware import LayerTime  # here and below: allocations import torch

    by_layer: dict[str, dict[float, list[LayerTime]]] = {}
    for result in results:
        for layer, entry in result.kernels.kernel_per_layer.items():
            dense = next((name for name in DENSE_KERNELS if name in entry["candidates"]), None)
            if dense is None:
                raise InvalidSetting("results", result.identity.run_id, f"has no dense time of layer {layer}")
            levels = by_layer.setdefault(layer, {})
            measured = {
                0.0: (entry["candidates"][dense], dense),
                result.sparsity.sparsity_target: (entry["latency_us"], entry["chosen"]),
            }
            for level, (latency_us, kernel) in measured.items():
                time = LayerTime(
                    *(layer, level, latency_us, kernel),
                    **{side: str(entry.get(side, "")) for side in ("m", "k", "n")},
                    dtype=result.speed.dtype or "",
                    device=result.identity.gpu or "",
                    pattern=result.choice.pattern,
                    granularity=str(result.choice.pattern_parameters.get("granularity", "")),
                )
                levels.setdefault(level, []).append(time)
    return [
        sorted(times, key=lambda time: time.latency_us)[(len(times) - 1) // 2]
        for levels in by_layer.values()
        for _, times in sorted(levels.items())
    ]


def unusable(result: Result) -> str | None:
    """Why a result provides no layer times; None if it does."""
    if result.speed.latency_device == "cpu":
        return "measured on a CPU, where layers run a reference and are not timed one by one; use measure.device=cuda"
    if not result.kernels.kernel_per_layer:
        return f"has no layer times (pattern={result.choice.pattern}, kernel={result.choice.kernel_mode})"
    if result.choice.allocation != "per_layer":
        return f"allocation={result.choice.allocation}: layers have sparsities of their own; use allocation=per_layer"
    untimed = [name for name, entry in result.kernels.kernel_per_layer.items() if not entry.get("latency_us")]
    return f"has no time of layer {untimed[0]}" if untimed else None


def _make(request: argparse.Namespace) -> None:
    from sparsefront.allocation.latency_aware import write_table

    reading = read_results([Path(path) for path in request.results])
    problems, filters = list(reading.problems), [_parse_filter(text) for text in request.only]
    usable = []
    for result in reading.results:
        if all(_text(result, field) == value for field, value in filters):
            why = unusable(result)
            if why is None:
                usable.append(result)
            else:
                problems.append(f"run {result.identity.run_id}: {why}")
    for problem in problems:
        print(f"left out: {problem}", file=sys.stderr)
    if not usable:
        why = f"no result gives layer times, of {len(reading.results)} read"
        raise InvalidSetting("results", " ".join(request.results), why)
    for field in SAME:
        values = sorted({_text(result, field) for result in usable})
        if len(values) > 1:
            differ = f"results differ: {', '.join(values)}; choose one with --only '{field}={values[0]}'"
            raise InvalidSetting("results", field, differ)
    out = Path(request.out)
    try:
        write_table(out, layer_times(usable))
    except OSError as error:
        raise InvalidSetting("out", out, f"cannot be written: {error}") from None
    _show(out)


def _parse_filter(text: str) -> tuple[str, str]:
    """Split FIELD=VALUE of --only. Raises InvalidSetting if there is no such field."""
    field, equals, value = text.partition("=")
    if not equals or field not in (entry.name for entry in result_fields()):
        allowed = f"is FIELD=VALUE with a field of the result; {', '.join(SAME)} are useful here"
        raise InvalidSetting("--only", text, allowed)
    return field, value


def _text(result: Result, field: str) -> str:
    value = result.value_of(field)
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else str(value)


def _show(out: Path) -> None:
    """Print the speedups that the table allows."""
    from sparsefront.allocation.latency_aware import read_table

    times = read_table(str(out)).times
    dense = sum(levels[0.0] for levels in times.values())
    fastest = sum(min(levels.values()) for levels in times.values())
    print(f"{out}: {counted(len(times), 'layer')}, dense together {dense:.1f} us")
    for level in sorted({level for levels in times.values() for level in levels} - {0.0}):
        together = sum(levels.get(level, levels[0.0]) for levels in times.values())
        print(f"  every layer at sparsity {level:g}: {dense / together:.3f}x")
    print(f"  every layer at its fastest: {dense / fastest:.3f}x, the largest allocation.speedup")
    print(f"{program_command('run')} allocation=latency_aware allocation.table={out} allocation.speedup=...")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sparsefront.results.latency_table",
        description="Collect per-layer times from the results of a sweep over sparsities into a table for "
        "allocation=latency_aware. The results come from a GPU, with allocation=per_layer.",
    )
    parser.add_argument("results", nargs="+", help="folders (searched for row.json), CSV files or row.json files")
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="the table, a CSV file")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="keep only results with this value, such as pattern=n_m or batch_size=32; may be given several times",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
