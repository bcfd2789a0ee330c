"""Color and marker of a pattern, the same in the PNG and in the page."""

from dataclasses import dataclass

COLORS = ("#0b6fb8", "#d1495b", "#2a9d6f", "#e08e0b", "#7b5ea7", "#5c5c5c", "#17a2b8", "#a0522d", "#c04fa0", "#8a9a1b")
MARKERS = (
    ("o", "circle"),
    ("s", "square"),
    ("^", "triangle-up"),
    ("D", "diamond"),
    ("v", "triangle-down"),
    ("P", "cross"),
    ("X", "x"),
)
DENSE_COLOR = "#111111"
FRONT_COLOR = "#999999"


@dataclass(frozen=True)
class SeriesStyle:
    """One series; `marker` by matplotlib's name, `symbol` by plotly's."""

    color: str
    marker: str
    symbol: str


def series_styles(patterns: list[str]) -> dict[str, SeriesStyle]:
    """A style for each pattern by its place in the list: colors repeat after 10, color with marker after 70."""
    return {
        pattern: SeriesStyle(COLORS[place % len(COLORS)], *MARKERS[place % len(MARKERS)])
        for place, pattern in enumerate(patterns)
    }
