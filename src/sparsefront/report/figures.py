"""Interactive plots of comparable results: quality against the cost, and against sparsity."""

import html
from typing import TYPE_CHECKING, Any

from sparsefront.report.axis import Axis
from sparsefront.report.column_kinds import fraction, milliseconds, percent, plain, times
from sparsefront.report.comparable import ComparableResults, Point, by_pattern
from sparsefront.report.series_style import DENSE_COLOR, FRONT_COLOR, SeriesStyle

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


ERROR_BARS = {"type": "data", "thickness": 0.8, "width": 0}


def figures(group: ComparableResults, styles: dict[str, SeriesStyle]) -> list["Figure"]:
    """The latency plot, where anything was timed, and the sparsity plot, where it tells more."""
    figures = []
    if group.timed_points() or group.dense_point() is not None:
        figures.append(_latency_figure(group, styles))
    if group.wants_sparsity_plot():
        figures.append(_sparsity_figure(group, styles))
    return figures


def _latency_figure(group: ComparableResults, styles: dict[str, SeriesStyle]) -> "Figure":
    from plotly.graph_objects import Scatter

    traces = [
        _points_trace(series, styles[pattern], name=pattern, x=[point.x for point in series]).update(
            error_x=_interval_bars(series, group.axis)
        )
        for pattern, series in by_pattern(group.timed_points()).items()
    ]
    if (front := group.front()) and len(front) > 1:
        line = {"color": FRONT_COLOR, "dash": "dash", "width": 1.5, "shape": "hv"}
        x, y = zip(*front)
        traces.insert(0, Scatter(x=x, y=y, mode="lines", name=group.front_label, line=line, hoverinfo="skip"))
    if (dense := group.dense_point()) is not None:
        text = f"{group.axis.text(dense[0])}<br>median of {len(group.results)} run(s)"
        traces.append(_star(dense, "star", "dense baseline", text))
    if (continued := group.continued_point()) is not None:
        traces.append(_star(continued, "star-open", "dense, trained on", "for the recovery's budget"))
    figure = _figure(traces, x_label=group.axis_label, y_label=group.quality_label)
    if group.wants_log_axis():
        figure.update_xaxes(type="log", dtick="D2")
    else:
        figure.update_xaxes(rangemode="tozero")  # a difference of a thousandth must look like one
    return figure


def _star(point: tuple[float, float], symbol: str, name: str, text: str) -> Any:
    from plotly.graph_objects import Scatter

    marker = {"color": DENSE_COLOR, "symbol": symbol, "size": 15}
    star = Scatter(x=[point[0]], y=[point[1]], mode="markers", name=name, marker=marker)
    return star.update(hovertext=f"{name}<br>{point[1]:.2f} % · {text}", hoverinfo="text")


def _sparsity_figure(group: ComparableResults, styles: dict[str, SeriesStyle]) -> "Figure":
    traces = [
        _points_trace(series, styles[pattern], name=pattern, x=[point.sparsity for point in series])
        for pattern, series in by_pattern(group.points()).items()
    ]
    figure = _figure(traces, x_label="achieved sparsity, fraction of zeros", y_label=group.quality_label)
    figure.update_xaxes(range=[0, 1])
    if (dense := group.dense_quality()) is not None:
        figure.add_hline(y=dense, line_dash="dot", line_color=DENSE_COLOR, annotation_text="dense")
    if (continued := group.continued_quality()) is not None:
        figure.add_hline(y=continued, line_dash="dash", line_color=DENSE_COLOR, annotation_text="dense, trained on")
    return figure


def _points_trace(series: list[Point], style: SeriesStyle, *, name: str, x: list[float]) -> Any:
    from plotly.graph_objects import Scatter

    symbols = [style.symbol if point.x is not None else f"{style.symbol}-open" for point in series]
    return Scatter(
        x=x,
        y=[point.quality for point in series],
        mode="markers",
        name=name,
        marker={"color": style.color, "symbol": symbols, "size": 10},
        hovertext=[_hover(point) for point in series],
        hoverinfo="text",
        error_y={"array": [point.standard_error or 0 for point in series], **ERROR_BARS},
    )


def _interval_bars(series: list[Point], axis: Axis) -> dict[str, Any]:
    """The 95 % interval of each point's value on the axis; no bar where there is none."""
    ends = [axis.interval(point.result) or (point.x, point.x) for point in series]
    above = [high - point.x for point, (_, high) in zip(series, ends)]
    below = [point.x - low for point, (low, _) in zip(series, ends)]
    return {"array": above, "arrayminus": below, "symmetric": False, **ERROR_BARS}


def _figure(traces: list, *, x_label: str, y_label: str) -> "Figure":
    from plotly.graph_objects import Figure

    figure = Figure(traces)
    figure.update_layout(
        xaxis_title=x_label,
        yaxis_title=y_label,
        template="plotly_white",
        height=430,
        margin={"l": 60, "r": 20, "t": 40, "b": 50},
        legend={"orientation": "h", "y": -0.2},
        hovermode="closest",
        showlegend=True,
    )
    return figure


def _hover(point: Point) -> str:
    """What the pointer shows over a run; plotly reads a little HTML here, so every value is escaped."""
    result, speed = point.result, point.result.speed
    timed = f"{milliseconds(speed.latency_sparse_ms)} ms, dense {milliseconds(speed.latency_dense_ms)} ms: {times(speed.speedup)}"
    error = "" if point.standard_error is None else f" ± {point.standard_error:.2f}"
    lines = (
        f"pattern {result.choice.pattern}, granularity {plain(result.choice.granularity)}, n:m {plain(result.sparsity.n_of_m)}",
        f"sparsity {fraction(point.sparsity)}",
        f"{result.quality.metric_name} {point.quality:.2f}{error} % (dense {percent(result.quality.dense)})",
        "not timed" if point.x is None else timed,
        f"kernel {plain(speed.latency_kernel)}",
        f"importance {plain(result.choice.importance)}, allocation {plain(result.choice.allocation)}",
        f"schedule {plain(result.choice.schedule)}, recovery {plain(result.choice.recovery)}, seed {result.identity.seed}",
        f"run {result.identity.run_id}",
    )
    return "<br>".join(html.escape(line) for line in lines)
