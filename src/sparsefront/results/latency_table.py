"""Latency curves over batch size and length, and the table of layer times for latency_aware."""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Any

from sparsefront.errors import InvalidSetting
from sparsefront.measure.speedup import DENSE_KERNELS
from sparsefront.options import program_command
from sparsefront.progress import counted, exit_quietly_on_broken_pipe
from sparsefront.results.candidates import too_few_repeats
from sparsefront.results.columns import fraction, milliseconds, plain, times
from sparsefront.results.comparable import CPU_NOTE
from sparsefront.results.plots import DENSE_COLOR, series_styles
from sparsefront.results.record import Result, result_fields
from sparsefront.results.statistics import FASTER, speed_verdict
from sparsefront.results.store import read_results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sparsefront.allocation.latency_aware import LayerTime


# Latency of the same weights at several batch sizes and lengths, and where sparse wins.


@dataclass(frozen=True)
class CurvePoint:
    """One batch size and length; latencies in milliseconds, None if not measured."""

    batch_size: int
    sequence_length: int | None
    values: dict[str, Any]

    @property
    def wins(self) -> bool:
        """Whether sparse counts as faster."""
        low, high = self.values.get("speedup_low"), self.values.get("speedup_high")
        if low is None or high is None:
            return False
        return speed_verdict(low, high, self.values.get("sparse_flops_share")) == FASTER


def curve_points(result: Result) -> list[CurvePoint]:
    """The result's own size and those of its curve, by length and batch size; empty if only one size was timed."""
    if not result.speed.curve or result.speed.batch_size is None:
        return []
    own = {name: getattr(result.speed, name) for name in _OF_THE_RESULT}
    own |= {"kernels": _kernels(result), "sparse_flops_share": result.kernels.sparse_flops_share}
    points = [
        CurvePoint(values["batch_size"], values["sequence_length"], values) for values in [own, *result.speed.curve]
    ]
    if too_few_repeats(result):  # intervals would be too narrow
        points = [replace(point, values=point.values | {"speedup_low": None, "speedup_high": None}) for point in points]
    return sorted(points, key=lambda point: (point.sequence_length or 0, point.batch_size))


def won_batch_sizes(result: Result) -> dict[int | None, list[int]]:
    """Sequence length -> measured batch sizes at which sparse wins, ascending."""
    won: dict[int | None, list[int]] = {}
    for point in curve_points(result):
        won.setdefault(point.sequence_length, []).extend([point.batch_size] if point.wins else [])
    return won


def wins_text(result: Result) -> str:
    """`length 128: at batch 32, 128; length 384: at no batch size`."""
    if result.speed.latency_device == "cpu":
        return f"not decided: {CPU_NOTE}"
    if few := too_few_repeats(result):
        return f"not decided, n={few}: no interval"
    texts = []
    for length, batch_sizes in won_batch_sizes(result).items():
        where = f"at batch {', '.join(map(str, batch_sizes))}" if batch_sizes else "at no batch size"
        texts.append(where if length is None else f"length {length}: {where}")
    return "; ".join(texts)


def curve_lines(result: Result) -> list[dict[str, str]]:
    """A table of the points, heading -> text."""
    lines = []
    for point in curve_points(result):
        values = point.values
        interval = (values.get("speedup_low"), values.get("speedup_high"))
        kernels = ", ".join(f"{count} × {kernel}" for kernel, count in (values.get("kernels") or {}).items())
        lines.append(
            {
                "batch": str(point.batch_size),
                "length": plain(point.sequence_length),
                "dense, ms": milliseconds(values.get("latency_dense_ms")),
                "sparse, ms": milliseconds(values.get("latency_sparse_ms")),
                "speedup": times(values.get("speedup")),
                "interval": "–" if None in interval else " – ".join(map(times, interval)),
                "fused dense, ms": milliseconds(values.get("fused_dense_latency_ms")),
                "fastest dense version": plain(values.get("dense_variant")),
                "share of flops sparse": fraction(values.get("sparse_flops_share")),
                "kernels, or not measured because": values.get("not_measured", kernels or "–"),
            }
        )
    return lines


def curve_figure(result: Result) -> "Figure":
    """Log-log plot of latency against batch size: one line per side and length, dense dashed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set(xscale="log", yscale="log", xlabel="batch size", ylabel="latency of a batch, ms")
    for name, (line, color) in _lines(curve_points(result)).items():
        axes.plot(*zip(*line), color=color, linestyle="--" if name.startswith("dense") else "-", marker="o", label=name)
    sizes = sorted({point.batch_size for point in curve_points(result)})
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8)
    return figure


def _lines(points: list[CurvePoint]) -> dict[str, tuple[list[tuple[int, float]], str]]:
    """Name -> timed (batch size, milliseconds) and a color, the same for both sides of a length."""
    lengths = list(dict.fromkeys(point.sequence_length for point in points))
    styles = series_styles(map(str, lengths))
    lines = {}
    for length in lengths:
        for side in ("dense", "sparse"):
            timed = [
                (point.batch_size, point.values[f"latency_{side}_ms"])
                for point in points
                if point.sequence_length == length and point.values.get(f"latency_{side}_ms") is not None
            ]
            color = DENSE_COLOR if len(lengths) == 1 and side == "dense" else styles[str(length)].color
            if timed:
                lines[side if length is None else f"{side}, length {length}"] = timed, color
    return lines


_OF_THE_RESULT = (
    "batch_size",
    "sequence_length",
    "latency_dense_ms",
    "latency_sparse_ms",
    "speedup",
    "speedup_low",
    "speedup_high",
    "dense_variant",
    "fused_dense_latency_ms",
)


def _kernels(result: Result) -> dict[str, int]:
    """Kernel -> number of layers, as in a point of the curve."""
    chosen = [layer.get("chosen") for layer in result.kernels.kernel_per_layer.values()]
    return {kernel: chosen.count(kernel) for kernel in dict.fromkeys(chosen) if kernel is not None}


# Convert the results of a sweep to the table of layer times for allocation=latency_aware.
#
# python -m sparsefront.results.latency_table results/SWEEP -o table.csv [--only FIELD=VALUE ...]

# Times are only combined in a table if all of these agree.
SAME = (
    "model",
    "model_variant",
    "dataset",
    "dataset_task",
    "pattern",
    "pattern_parameters",
    "gpu",
    "dtype",
    "layout",
    "batch_size",
    "sequence_length",
    "timed_image_size",
    "timed_mode",
    "cache_length",
    "kernel_mode",
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
    by_layer: dict[str, dict[float, list[_Measured]]] = {}
    for result in results:
        for layer, entry in result.kernels.kernel_per_layer.items():
            dense = next((name for name in DENSE_KERNELS if name in entry["candidates"]), None)
            if dense is None:
                raise InvalidSetting("results", result.identity.run_id, f"has no dense time of layer {layer}")
            levels = by_layer.setdefault(layer, {})
            levels.setdefault(0.0, []).append(_Measured(entry["candidates"][dense], dense, entry, result))
            chosen = _Measured(entry["latency_us"], entry["chosen"], entry, result)
            levels.setdefault(result.sparsity.sparsity_target, []).append(chosen)
    return [
        median_low(measured).line(layer, level)
        for layer, levels in by_layer.items()
        for level, measured in sorted(levels.items())
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


@dataclass(frozen=True)
class _Measured:
    """One time of a layer, and its result."""

    latency_us: float
    kernel: str
    entry: dict[str, Any]
    result: Result

    def __lt__(self, other: "_Measured") -> bool:
        return self.latency_us < other.latency_us

    def line(self, layer: str, level: float) -> "LayerTime":
        from sparsefront.allocation.latency_aware import LayerTime  # here and below: allocations import torch

        granularity = self.result.choice.pattern_parameters.get("granularity", "")
        sides = {side: str(self.entry.get(side, "")) for side in ("m", "k", "n")}
        return LayerTime(
            layer,
            level,
            self.latency_us,
            self.kernel,
            **sides,
            dtype=self.result.speed.dtype or "",
            device=self.result.identity.gpu or "",
            pattern=self.result.choice.pattern,
            granularity=str(granularity),
        )


def _make(request: argparse.Namespace) -> None:
    from sparsefront.allocation.latency_aware import write_table

    reading = read_results([Path(path) for path in request.results])
    for problem in reading.problems:
        print(f"left out: {problem}", file=sys.stderr)
    results = [
        result for result in reading.results if all(_agrees(result, *filter_text(text)) for text in request.only)
    ]
    usable = []
    for result in results:
        if (why := unusable(result)) is None:
            usable.append(result)
        else:
            print(f"left out: run {result.identity.run_id}: {why}", file=sys.stderr)
    if not usable:
        why = f"no result gives layer times, of {len(reading.results)} read"
        raise InvalidSetting("results", " ".join(request.results), why)
    _require_same_conditions(usable)
    out = Path(request.out)
    try:
        write_table(out, layer_times(usable))
    except OSError as error:
        raise InvalidSetting("out", out, f"cannot be written: {error}") from None
    _show(out)


def filter_text(text: str) -> tuple[str, str]:
    """Split FIELD=VALUE of --only.

    Raises:
        InvalidSetting: no such field.
    """
    field, equals, value = text.partition("=")
    names = [entry.name for entry in result_fields()]
    if not equals or field not in names:
        raise InvalidSetting(
            "--only", text, f"is FIELD=VALUE with a field of the result; {', '.join(SAME)} are useful here"
        )
    return field, value


def _text(result: Result, field: str) -> str:
    value = result.value_of(field)
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else str(value)


def _agrees(result: Result, field: str, value: str) -> bool:
    return _text(result, field) == value


def _require_same_conditions(results: Sequence[Result]) -> None:
    """Raise InvalidSetting if the results differ in what times depend on."""
    for field in SAME:
        values = sorted({_text(result, field) for result in results})
        if len(values) > 1:
            raise InvalidSetting(
                "results", field, f"results differ: {', '.join(values)}; choose one with --only '{field}={values[0]}'"
            )


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
