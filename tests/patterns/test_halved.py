"""block_2_4 and tile_2_4: groups first, then 2:4 inside."""

import pytest
import torch
from every_pattern import scores

from sparsefront.allocation.per_layer import PerLayer
from sparsefront.patterns.block_2_4 import Block24
from sparsefront.patterns.block_wise import BlockWise
from sparsefront.patterns.tile_2_4 import Tile24
from sparsefront.patterns.tile_wise import SOURCES, TileWise
from sparsefront.pruning.make_masks import make_masks

PATTERNS = [(Block24(8), BlockWise(8)), (Tile24(8), TileWise(8, **SOURCES))]
with_outer = pytest.mark.parametrize(("pattern", "outer"), PATTERNS, ids=lambda pattern: pattern.name)


def density(mask: torch.Tensor) -> float:
    return mask.float().mean().item()


def drawn(*lines: str) -> torch.Tensor:
    return torch.tensor([[mark == "#" for mark in line] for line in lines])


@with_outer
def test_units_go_first(pattern, outer):
    """Units until 2s - 1 = 0.5 are gone; then windows tighten, a share of them at a time."""
    masks, densities = None, []
    for update, sparsity in enumerate((0.3, 0.5, 0.63, 0.75)):
        importance = {"layer": scores(32, 64, seed=update)}
        masks = make_masks(importance, pattern, PerLayer(), sparsity, final_sparsity=0.75, previous=masks)
        densities.append(density(masks["layer"]))
        if sparsity <= 0.5:
            outer.check(masks["layer"], sparsity)
    assert densities == pytest.approx([0.7, 0.5, 0.37, 0.25], abs=0.04)


def test_window_of_another_count_is_named():
    mask = Block24(4).mask(scores(8, 8), 0.5)
    window = mask[5, 4:]
    window[window.nonzero()[0]] = False
    with pytest.raises(ValueError, match="window 0 of output 1 in the block at row 1, column 1 .* keeps 1 of 4, not 2"):
        Block24(4).check(mask, 0.5)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (drawn("##..", "#..."), "outputs of tile 0 keep 1 to 2 inputs, not equally many"),
        (drawn("##.##...", "#.##..#."), None),
        (drawn("##.#.#..", "#..#.#.#"), "input 3 of tile 0 lies in window 0 of one output and 1 of another"),
        (drawn("##...##", "..##.##"), None),
        (drawn("#.#..##", ".#.#.##"), None),
        (drawn("##.....##", "...##..##", "#....#.##"), "window 0 of tile 0 needs 5 inputs, not 4"),
        (drawn("##....##", "....##.#"), "equally many"),
        (drawn("##..##....", "......####"), "windows of tile 0 overlap"),
    ],
)
def test_tiles_without_a_panel_are_named(mask, message):
    pattern = Tile24(4)
    if message is None:
        pattern.check(mask, 0.5)
        return
    with pytest.raises(ValueError, match=message):
        pattern.check(mask, 0.5)


def test_dropped_input_leaves_windows():
    """Inputs 0 and 5 go everywhere. Counted by fours, what is left would be windows of 1 2 3 4 and 6 7."""
    importance = torch.tensor([[0, 9, 8, 1, 5, 0, 6, 1], [0, 1, 9, 8, 1, 0, 6, 5]]).float()
    pattern = Tile24(2)
    mask = pattern.mask(importance, 0.5)
    assert torch.equal(mask, drawn(".##.#.#.", "..##..##"))
    pattern.check(mask, 0.5)
    again = make_masks({"a": scores(2, 8)}, pattern, PerLayer(), 0.5, previous={"a": mask})["a"]
    assert torch.equal(again, mask)
