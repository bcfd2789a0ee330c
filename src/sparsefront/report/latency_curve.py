"""Latency of the same weights at several batch sizes and sequence lengths, and at which of them sparse wins."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparsefront.report.column_kinds import fraction, milliseconds, plain, times
from sparsefront.report.result import Result
from sparsefront.report.series_style import DENSE_COLOR, series_styles
from sparsefront.report.speed_verdict import FASTER, speed_verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class CurvePoint:
    """One batch size and length; latencies in milliseconds, None where not measured."""

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
    """The result's own size and those of its curve, by length and batch size; empty where only one size was timed."""
    if not result.speed.curve or result.speed.batch_size is None:
        return []
    own = {name: getattr(result.speed, name) for name in _OF_THE_RESULT}
    own |= {"kernels": _kernels(result), "sparse_flops_share": result.kernels.sparse_flops_share}
    points = [
        CurvePoint(values["batch_size"], values["sequence_length"], values) for values in [own, *result.speed.curve]
    ]
    return sorted(points, key=lambda point: (point.sequence_length or 0, point.batch_size))


def won_batch_sizes(result: Result) -> dict[int | None, list[int]]:
    """Sequence length -> the measured batch sizes at which sparse wins, the smallest first."""
    won: dict[int | None, list[int]] = {}
    for point in curve_points(result):
        won.setdefault(point.sequence_length, []).extend([point.batch_size] if point.wins else [])
    return won


def wins_text(result: Result) -> str:
    """`length 128: at batch 32, 128; length 384: at no batch size`."""
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
    """Latency against batch size, both logarithmic: one line per side and length, dense dashed."""
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
    """Name -> (batch size, milliseconds) of what was timed, and a color, the same for both sides of a length."""
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
    """Kernel -> number of layers, as a point of the curve has it."""
    chosen = [layer.get("chosen") for layer in result.kernels.kernel_per_layer.values()]
    return {kernel: chosen.count(kernel) for kernel in dict.fromkeys(chosen) if kernel is not None}
