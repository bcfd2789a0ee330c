"""docs/patterns/<pattern>.png: what each pattern keeps of one corner of a real layer.

    python -m experiments.pattern_retention.pattern_pictures --model DIR        (DIR as for measure.py)

All at one sparsity, magnitude, on the first 64 outputs x 64 inputs of a query layer; groups are a quarter of their usual
size or less, so that several fit.
"""

import argparse
from pathlib import Path

from torch import Tensor

from experiments.pattern_retention.measure import HERE, composed, read_importance
from sparsefront.config.settings import build_settings
from sparsefront.masks.groups import Boundaries
from sparsefront.masks.weight_view import Permutation
from sparsefront.patterns.base import Pattern
from sparsefront.results.mask_pictures import Scale, mask_image, write_panels

FOLDER = HERE.parents[1] / "docs" / "patterns"
LAYER, SIDE, SPARSITY = "bert.encoder.layer.0.attention.self.query", 64, 0.75
SCALE = Scale(cell=3)

# Name of the file -> the overrides of run.py that give the pattern.
PICTURES = {
    "element_wise": "pattern=element_wise",
    "n_m": "pattern=n_m pattern.m=4",
    "vector_wise": "pattern=vector_wise granularity=8",
    "block_wise": "pattern=block_wise granularity=8",
    "tile_wise": "pattern=tile_wise granularity=16",
    "tile_wise_overlay": "pattern=tile_wise granularity=16 pattern.element_overlay=0.05",
    "uniform": "pattern=uniform granularity=2",
    "channel": "pattern=channel",
    "shuffled_block": "pattern=shuffled_block granularity=8",
    "tile_2_4": "pattern=tile_2_4 granularity=16",
    "block_2_4": "pattern=block_2_4 granularity=16",
}


def draw(corner: Tensor, pattern: Pattern, path: Path) -> None:
    """The mask in the corner's own order and, where the pattern has another, in that one beside it."""
    mask = pattern.mask(corner, SPARSITY)
    permutation = pattern.find_permutation(corner, SPARSITY)
    permuted = (permutation or Permutation()).apply(mask)
    panels = {"": mask_image(permuted, pattern.boundaries(permuted, SPARSITY), SCALE)}
    if permutation is not None:
        panels = {"network's order": mask_image(mask, Boundaries(), SCALE), "pattern's order": panels[""]}
    write_panels(panels, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of a BERT, as save_pretrained writes it")
    corner = read_importance(parser.parse_args().model.resolve())[LAYER][:SIDE, :SIDE].contiguous()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, overrides in PICTURES.items():
        pattern = build_settings("pattern", composed(*overrides.split()).pattern)
        draw(corner, pattern, FOLDER / f"{name}.png")


if __name__ == "__main__":
    main()
