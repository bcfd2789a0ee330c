"""Pictures of masks: one PNG per chosen layer, and a chart of all densities."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from sparsefront.artifacts.durable import whole_file
from sparsefront.errors import InvalidSetting, plot_text
from sparsefront.masks.groups import Boundaries
from sparsefront.masks.weight_view import Permutation, as_matrix
from sparsefront.patterns.base import Pattern
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.results.plots import KEPT_COLOR, PRUNED_COLOR

MOST_CHOSEN = 6


def choose_layers(shapes: Mapping[str, tuple[int, int]], expressions: Sequence[str] | None) -> list[str]:
    """Select the layers to draw, in network order.

    Args:
        shapes: pruned layer -> [N, K].
        expressions: regular expressions; layers whose name matches one are drawn. None: the first layer of each kind
            (names that differ only in their numbers, with equal shapes), for the first six kinds.
    Raises:
        InvalidSetting: an expression of `mask_layers` matches no pruned layer.
    """
    if expressions is None:
        first_of_kind: dict[tuple, str] = {}
        for name, shape in shapes.items():
            first_of_kind.setdefault((re.sub(r"\d+", "*", name), shape), name)
        return list(first_of_kind.values())[:MOST_CHOSEN]
    for expression in expressions:
        if not any(re.search(expression, name) for name in shapes):
            names = list(shapes)
            listed = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
            raise InvalidSetting("mask_layers", expression, f"finds no layer that is pruned; there are {listed}")
    return [name for name in shapes if any(re.search(expression, name) for expression in expressions)]


# Masks as pixels: kept and pruned weights in two colors, with lines between groups.

GROUP_COLOR, WINDOW_COLOR = "#000000", "#ffffff"

EXACT_SIDE = 2048  # pixels; longer layers are shown as densities
TARGET_SIDE = 768  # pixels; shorter layers are enlarged by an integer
LARGEST_CELL = 12  # pixels per side of a weight
LEAST_SPACING = 8  # pixels between two lines; denser ones would hide the mask


@dataclass(frozen=True)
class Scale:
    """The scale from weights to pixels; one of the two numbers is 1.

    Args:
        cell: pixels per side of a weight.
        pooled: weights per side of a pixel, which then shows their density.
    """

    cell: int = 1
    pooled: int = 1

    @classmethod
    def of(cls, shape: tuple[int, int], target_side: int = TARGET_SIDE) -> "Scale":
        """Show every weight if the longest side of [N, K] fits into EXACT_SIDE, enlarged towards `target_side`."""
        longest = max(shape)
        if longest > EXACT_SIDE:
            return cls(pooled=-(-longest // EXACT_SIDE))
        return cls(cell=min(LARGEST_CELL, max(1, target_side // longest)))

    @property
    def text(self) -> str:
        """Describe a pixel for readers."""
        if self.pooled > 1:
            return f"a pixel is the mean density of {self.pooled} x {self.pooled} weights"
        return "a weight is a pixel" if self.cell == 1 else f"a weight is {self.cell} x {self.cell} pixels"


@dataclass(frozen=True)
class MaskImage:
    """Pixels uint8 [height, width, 3] of a mask, and their description."""

    pixels: np.ndarray
    text: str


def mask_image(mask: Tensor, boundaries: Boundaries, scale: Scale) -> MaskImage:
    """Draw a mask.

    Args:
        mask: bool [N, K], True = kept, on any device.
        boundaries: drawn as inserted lines, so that no weight is covered; omitted if closer than LEAST_SPACING.
        scale: of the picture.
    Returns:
        exactly KEPT_COLOR and PRUNED_COLOR for pixels that are a weight or part of one, else mixed by density.
    """
    density = pixel_density(mask, scale).numpy()[..., None]
    pixels = np.rint(density * rgb(KEPT_COLOR) + (1 - density) * rgb(PRUNED_COLOR)).astype(np.uint8)
    rows, columns = line_places(boundaries.rows, scale), line_places(boundaries.columns, scale)
    windows = line_places(boundaries.windows, scale)
    groups, between = dict.fromkeys(columns, GROUP_COLOR), dict.fromkeys(windows, WINDOW_COLOR)
    pixels = _with_lines(pixels, dict.fromkeys(rows, GROUP_COLOR), axis=0)
    # If both share a position, show the coarser one: windows of blocks, or blocks of windows.
    pixels = _with_lines(pixels, groups | between if len(windows) <= len(columns) else between | groups, axis=1)
    drawn = {"black lines: groups": rows or columns, "white lines: windows": windows}
    return MaskImage(pixels, ", ".join([*(text for text, places in drawn.items() if places), scale.text]))


def _with_lines(pixels: np.ndarray, color_at: Mapping[int, str], axis: int) -> np.ndarray:
    """Insert a line of pixels into [height, width, 3] before each position, without covering any."""
    places = sorted(color_at)
    lines = np.array([rgb(color_at[place]) for place in places], dtype=np.uint8).reshape(len(places), 3)
    across = (len(places), pixels.shape[1], 3) if axis == 0 else (pixels.shape[0], len(places), 3)
    return np.insert(pixels, places, np.broadcast_to(lines[:, None] if axis == 0 else lines, across), axis=axis)


def pixel_density(mask: Tensor, scale: Scale) -> Tensor:
    """Kept fraction under each pixel of the mask: float32 [height, width] on the CPU.

    The last pixels of a pooled layer average over the remaining weights.
    """
    keeps = mask.float()
    if scale.pooled > 1:
        return avg_pool2d(keeps[None], scale.pooled, ceil_mode=True, count_include_pad=False)[0].cpu()
    return keeps.repeat_interleave(scale.cell, dim=0).repeat_interleave(scale.cell, dim=1).cpu()


def rgb(color: str) -> np.ndarray:
    """Convert a color "#rrggbb" to uint8 [3]."""
    return np.frombuffer(bytes.fromhex(color.removeprefix("#")), dtype=np.uint8)


def line_places(boundaries: Sequence[int], scale: Scale) -> tuple[int, ...]:
    """Convert boundaries between weights to positions between pixels, rounded if pixels are pooled; () if too dense."""
    if not len(boundaries):
        return ()
    places = torch.tensor([0, *boundaries]) * scale.cell
    places = torch.div(places + scale.pooled // 2, scale.pooled, rounding_mode="floor")
    return tuple(places[1:].tolist()) if int(places.diff().min()) >= LEAST_SPACING else ()


DPI = 100
MARGIN, GAP = 12, 24  # pixels around and between images
LINE_HEIGHT, LETTER_WIDTH = 16, 6.5  # pixels of text


@dataclass(frozen=True, eq=False)
class PrunedLayers:
    """The data for a run's mask pictures.

    Args:
        masks: pruned layer -> bool, [N, K] or shaped like its weight, in the network's order; True = kept.
        pattern: of the masks.
        pattern_text: the pattern and its settings, for titles.
        sparsity: final target of the whole network.
        spec: permutation and sparsity of each layer.
    """

    masks: Mapping[str, Tensor]
    pattern: Pattern
    pattern_text: str
    sparsity: float
    spec: MaskSpec = field(default_factory=MaskSpec)

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Layer -> [N, K]."""
        return {name: tuple(as_matrix(mask).shape) for name, mask in self.masks.items()}


def write_mask_pictures(pruned: PrunedLayers, folder: Path, layers: Sequence[str] | None) -> list[Path]:
    """Write `<layer>.png` for each chosen layer.

    Args:
        layers: regular expressions, see `choose_layers`.
    Raises:
        InvalidSetting: an expression matches no pruned layer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in choose_layers(pruned.shapes, layers):
        mask = as_matrix(pruned.masks[name])
        path = folder / f"{name}.png"
        write_mask_png(
            mask,
            path,
            pattern=pruned.spec.pattern_of(name, pruned.pattern),
            sparsity=pruned.spec.sparsity_of(name, pruned.sparsity),
            permutation=pruned.spec.permutations.get(name),
            title=f"{name}  [{mask.shape[0]} x {mask.shape[1]}]",
            subtitle=f"{pruned.pattern_text}, sparsity {1 - mask.float().mean():.4f}",
        )
        written.append(path)
    return written


def write_mask_png(
    mask: Tensor,
    path: Path,
    *,
    pattern: Pattern,
    sparsity: float,
    permutation: Permutation | None = None,
    title: str,
    subtitle: str,
) -> None:
    """Draw one mask; if it obeys its pattern under a permutation, both orders are shown next to each other.

    Args:
        mask: bool [N, K] in the network's order.
        sparsity: the layer's target, which determines its windows.
        permutation: under which it obeys the pattern; None = identity.
    """
    scale = Scale.of((mask.shape[0], mask.shape[1]))
    permuted = mask if permutation is None else permutation.apply(mask)
    image = mask_image(permuted, pattern.boundaries(permuted, sparsity), scale)
    panels = {"": image}
    if permutation is not None:
        panels = {"in the network's order": mask_image(mask, Boundaries(), scale), "in the pattern's order": image}
    write_panels(panels, path, heading=(title, subtitle, f"dark gray: kept, light gray: pruned, {image.text}"))


def write_panels(panels: Mapping[str, MaskImage], path: Path, *, heading: Sequence[str] = ()) -> None:
    """Write images next to each other as one PNG file, each with a caption, below the heading's lines.

    Args:
        panels: caption -> image; "" = no caption. Every pixel of an image is one pixel of the file.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    images = [image.pixels for image in panels.values()]
    captioned = any(panels)
    tallest = max(image.shape[0] for image in images)
    longest_line = round(LETTER_WIDTH * max(map(len, heading), default=0))
    width = 2 * MARGIN + max(longest_line, sum(image.shape[1] for image in images) + GAP * (len(images) - 1))
    height = 2 * MARGIN + tallest + LINE_HEIGHT * (len(heading) + captioned)
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    FigureCanvasAgg(figure)

    def write(text: str, left: int, line: int, **style: object) -> None:
        figure.text(
            left / width, 1 - (MARGIN + LINE_HEIGHT * line) / height, plot_text(text), va="top", fontsize=8, **style
        )

    for line, text in enumerate(heading):
        write(text, MARGIN, line, fontweight="bold" if line == 0 else "normal")
    left = MARGIN
    for caption, image in zip(panels, images):
        write(caption, left, len(heading), color="#555555")
        # figimage copies without resampling, unlike axes; the position is the lower left corner
        figure.figimage(image, left, MARGIN + tallest - image.shape[0], origin="upper")
        left += image.shape[1] + GAP
    with whole_file(path) as new:
        figure.savefig(new, dpi=DPI, format="png")
