"""Pictures of a run's masks: a PNG file per chosen layer, and the densities of all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from sparsefront.artifacts.durable import whole_file
from sparsefront.masks.boundaries import Boundaries
from sparsefront.masks.permutation import Permutation
from sparsefront.masks.weight_view import as_matrix
from sparsefront.patterns.base import Pattern
from sparsefront.printable import plot_text
from sparsefront.pruning.mask_layout import MaskLayout
from sparsefront.report.layer_choice import choose_layers
from sparsefront.report.mask_image import MaskImage, Scale, mask_image

DPI = 100
MARGIN, GAP = 12, 24  # pixels around and between images
LINE_HEIGHT, LETTER_WIDTH = 16, 6.5  # pixels of text


@dataclass(frozen=True, eq=False)
class PrunedLayers:
    """What the pictures of a run are drawn from.

    Args:
        masks: pruned layer -> bool, [N, K] or shaped like its weight, in the network's order; True = kept.
        pattern: that they obey.
        pattern_text: the pattern and its settings, for titles.
        sparsity: final target of the whole network.
        layout: the permutation and the sparsity of each layer.
    """

    masks: Mapping[str, Tensor]
    pattern: Pattern
    pattern_text: str
    sparsity: float
    layout: MaskLayout = field(default_factory=MaskLayout)

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Layer -> [N, K]."""
        return {name: tuple(as_matrix(mask).shape) for name, mask in self.masks.items()}


def write_mask_pictures(pruned: PrunedLayers, folder: Path, layers: Sequence[str] | None) -> list[Path]:
    """Write `<layer>.png` for each chosen layer.

    Args:
        layers: regular expressions, see `choose_layers`.
    Raises:
        InvalidSetting: an expression that finds no pruned layer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in choose_layers(pruned.shapes, layers):
        mask = as_matrix(pruned.masks[name])
        path = folder / f"{name}.png"
        write_mask_png(
            mask,
            path,
            pattern=pruned.layout.pattern_of(name, pruned.pattern),
            sparsity=pruned.layout.sparsity_of(name, pruned.sparsity),
            permutation=pruned.layout.permutations.get(name),
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
    """Draw one mask; where it obeys its pattern in another order than its own, both orders stand side by side.

    Args:
        mask: bool [N, K] in the network's order.
        sparsity: the layer's target, from which its windows follow.
        permutation: the order in which it obeys the pattern; None = its own.
    """
    scale = Scale.of((mask.shape[0], mask.shape[1]))
    if permutation is None:
        panels = {"": mask_image(mask, pattern.boundaries(mask, sparsity), scale)}
    else:
        permuted = permutation.apply(mask)
        panels = {
            "in the network's order": mask_image(mask, Boundaries(), scale),
            "in the pattern's order": mask_image(permuted, pattern.boundaries(permuted, sparsity), scale),
        }
    write_panels(panels, path, heading=(title, subtitle, _key(list(panels.values()))))


def _key(images: Sequence[MaskImage]) -> str:
    """What colors and pixels mean, in one line."""
    return ", ".join(filter(None, ("dark gray: kept, light gray: pruned", images[-1].line_text, images[-1].scale.text)))


def write_panels(panels: Mapping[str, MaskImage], path: Path, *, heading: Sequence[str] = ()) -> None:
    """Write images beside each other as one PNG file, each under its caption, all under the heading's lines.

    Args:
        panels: caption -> image; "" is no caption. Every pixel of an image is one pixel of the file.
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
        # Copied without the resampling that axes do; the place is that of the lower left corner.
        figure.figimage(image, left, MARGIN + tallest - image.shape[0], origin="upper")
        left += image.shape[1] + GAP
    with whole_file(path) as new:
        figure.savefig(new, dpi=DPI, format="png")
