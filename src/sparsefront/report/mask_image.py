"""A mask as pixels: kept and pruned weights in two colors, with lines between the groups of its pattern."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from sparsefront.masks.boundaries import Boundaries

# Neutral, since every other color is a pattern or a series. They differ in lightness, which every kind of color vision sees.
KEPT_COLOR, PRUNED_COLOR = "#5a6b7b", "#d3d8dd"
GROUP_COLOR, WINDOW_COLOR = "#000000", "#ffffff"

EXACT_SIDE = 2048  # pixels; a longer layer is shown as densities
TARGET_SIDE = 768  # pixels; a shorter layer is enlarged by a whole number
LARGEST_CELL = 12  # pixels per side of a weight
LEAST_SPACING = 8  # pixels between two lines; denser ones would hide the mask


@dataclass(frozen=True)
class Scale:
    """How weights become pixels. One of the two numbers is 1.

    Args:
        cell: pixels per side of a weight.
        pooled: weights per side of a pixel, which then shows their density.
    """

    cell: int = 1
    pooled: int = 1

    @classmethod
    def of(cls, shape: tuple[int, int], target_side: int = TARGET_SIDE) -> "Scale":
        """Every weight where the longest side of [N, K] fits into EXACT_SIDE, enlarged towards `target_side`."""
        longest = max(shape)
        if longest > EXACT_SIDE:
            return cls(pooled=-(-longest // EXACT_SIDE))
        return cls(cell=min(LARGEST_CELL, max(1, target_side // longest)))

    @property
    def text(self) -> str:
        """What a pixel is, for a reader."""
        if self.pooled > 1:
            return f"a pixel is the mean density of {self.pooled} x {self.pooled} weights"
        return "a weight is a pixel" if self.cell == 1 else f"a weight is {self.cell} x {self.cell} pixels"


@dataclass(frozen=True)
class VisibleLines:
    """The lines of one direction that a picture has room for: a pixel in front of each of these places."""

    groups: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()

    def insert(self, pixels: np.ndarray, axis: int) -> np.ndarray:
        """The pixels [height, width, 3] with a line of pixels inserted in front of each place; none is covered."""
        groups, windows = dict.fromkeys(self.groups, GROUP_COLOR), dict.fromkeys(self.windows, WINDOW_COLOR)
        # Where both fall on one place the coarser is shown: windows of blocks, or blocks of windows.
        color_at = groups | windows if len(windows) <= len(groups) else windows | groups
        places = sorted(color_at)
        lines = np.array([rgb(color_at[place]) for place in places], dtype=np.uint8).reshape(len(places), 3)
        across = (len(places), pixels.shape[1], 3) if axis == 0 else (pixels.shape[0], len(places), 3)
        return np.insert(pixels, places, np.broadcast_to(lines[:, None] if axis == 0 else lines, across), axis=axis)


@dataclass(frozen=True)
class MaskImage:
    """Pixels uint8 [height, width, 3] of a mask, and what they show."""

    pixels: np.ndarray
    scale: Scale
    rows: VisibleLines
    columns: VisibleLines

    @property
    def line_text(self) -> str:
        """Which lines there are, for a reader."""
        drawn = {
            "black lines: groups": self.rows.groups or self.columns.groups,
            "white lines: windows": self.columns.windows,
        }
        return ", ".join(text for text, places in drawn.items() if places)


def mask_image(mask: Tensor, boundaries: Boundaries, scale: Scale) -> MaskImage:
    """Draw a mask.

    Args:
        mask: bool [N, K], True = kept, on any device.
        boundaries: drawn as lines of their own pixels, so that no weight is covered; left out where they lie closer
            than LEAST_SPACING.
        scale: of the picture.
    Returns:
        exactly KEPT_COLOR and PRUNED_COLOR where a pixel is a weight or part of one, mixed by density otherwise.
    """
    density = pixel_density(mask, scale).numpy()[..., None]
    pixels = np.rint(density * rgb(KEPT_COLOR) + (1 - density) * rgb(PRUNED_COLOR)).astype(np.uint8)
    rows = VisibleLines(groups=_places(boundaries.rows, scale))
    columns = VisibleLines(groups=_places(boundaries.columns, scale), windows=_places(boundaries.windows, scale))
    return MaskImage(columns.insert(rows.insert(pixels, axis=0), axis=1), scale, rows, columns)


def pixel_density(mask: Tensor, scale: Scale) -> Tensor:
    """Kept fraction under each pixel of the mask alone: float32 [height, width] on the CPU.

    The last pixels of a pooled layer average over what there is.
    """
    kept = mask.float()
    if scale.pooled > 1:
        return avg_pool2d(kept[None], scale.pooled, ceil_mode=True, count_include_pad=False)[0].cpu()
    return kept.repeat_interleave(scale.cell, dim=0).repeat_interleave(scale.cell, dim=1).cpu()


def rgb(color: str) -> np.ndarray:
    """A color "#rrggbb" as uint8 [3]."""
    return np.frombuffer(bytes.fromhex(color.removeprefix("#")), dtype=np.uint8)


def _places(boundaries: Sequence[int], scale: Scale) -> tuple[int, ...]:
    """Boundaries between weights as places between pixels, the nearest where pixels hold several; () if too dense."""
    if not len(boundaries):
        return ()
    places = torch.tensor([0, *boundaries]) * scale.cell
    places = torch.div(places + scale.pooled // 2, scale.pooled, rounding_mode="floor")
    return tuple(places[1:].tolist()) if int(places.diff().min()) >= LEAST_SPACING else ()
