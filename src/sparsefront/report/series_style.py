"""Color and marker of a series. A pattern has the same color, and a recovery the same marker, in every plot and page; what is
no pattern has other colors.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from zlib import crc32

COLORS = ("#0b6fb8", "#d1495b", "#2a9d6f", "#e08e0b", "#7b5ea7", "#5c5c5c", "#17a2b8", "#a0522d", "#c04fa0", "#8a9a1b")
# Of what is no pattern: kernels, weights, sizes. Each is at least 25 apart from all colors of patterns, as CIELAB measures.
SERIES_COLORS = tuple("#7890fc #9c0c00 #60d86c #fc7848 #6c0078 #fca8cc #605400 #00d8cc #184818 #e4c054".split())
MARKERS = (
    ("o", "circle"),
    ("s", "square"),
    ("^", "triangle-up"),
    ("D", "diamond"),
    ("v", "triangle-down"),
    ("P", "cross"),
    ("X", "x"),
    ("<", "triangle-left"),
    (">", "triangle-right"),
    ("p", "pentagon"),
)
DENSE_COLOR = "#111111"
FRONT_COLOR = "#999999"
DOMINATED_COLOR = "#c4c4c4"

_PATTERN_COLORS = dict(
    zip(("tile_wise", "vector_wise", "block_wise", "n_m", "element_wise", "dense", "uniform", "channel"), COLORS),
    shuffled_block=COLORS[8],
    tile_2_4=COLORS[9],
    block_2_4="#3d4fd1",
    mixed="#e6007e",
)
_OWN_PATTERN_COLORS = ("#00707a", "#b06a00", "#6b8e23", "#8b2f5a", "#40557a", "#9a5fd0")
_RECOVERY_MARKERS = dict(
    zip(("finetune", "none", "distill", "lr_rewind", "weight_rewind", "obs_update", "sr_ste"), MARKERS),
    square_head=MARKERS[7],
    sparse_swaps=MARKERS[8],
    cast=MARKERS[9],
)
_OWN_RECOVERY_MARKERS = (("h", "hexagon"), ("d", "thin-diamond"))


@dataclass(frozen=True)
class SeriesStyle:
    """One series; `marker` by matplotlib's name, `symbol` by the page's."""

    color: str
    marker: str
    symbol: str


def series_styles(names: Iterable[str]) -> dict[str, SeriesStyle]:
    """A style for each of some series that are no patterns, by its place: colors and markers repeat after 10."""
    return {
        name: SeriesStyle(SERIES_COLORS[place % len(SERIES_COLORS)], *MARKERS[place % len(MARKERS)])
        for place, name in enumerate(names)
    }


def pattern_color(pattern: str) -> str:
    """By the name alone; a pattern from outside the repository gets one of six further colors."""
    return _PATTERN_COLORS.get(pattern) or _OWN_PATTERN_COLORS[_number(pattern) % len(_OWN_PATTERN_COLORS)]


def recovery_marker(recovery: str | None) -> tuple[str, str]:
    """By the name alone: (matplotlib's, the page's); a recovery from outside the repository gets one of two further markers."""
    name = recovery or "none"
    return _RECOVERY_MARKERS.get(name) or _OWN_RECOVERY_MARKERS[_number(name) % len(_OWN_RECOVERY_MARKERS)]


def _number(name: str) -> int:
    """The same in every process, unlike `hash`."""
    return crc32(name.encode(errors="backslashreplace"))
