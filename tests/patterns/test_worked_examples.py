"""One example per pattern that can be followed on paper."""

import pytest
import torch
from torch import Tensor

from sparsefront.patterns.block_wise import BlockWise
from sparsefront.patterns.dense import Dense
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.tile_wise import TileWise
from sparsefront.patterns.vector_wise import VectorWise


def kept(drawing: str) -> Tensor:
    """A mask from its drawing: # is kept."""
    return torch.tensor([[mark == "#" for mark in line.strip()] for line in drawing.strip().splitlines()])


def test_dense():
    assert Dense().mask(torch.zeros(4, 4), 0.75).all()


def test_element_wise():
    """Half of 16; the threshold falls among the three 5s, of which the first two in reading order stay."""
    importance = torch.tensor([[9, 1, 5, 2], [3, 8, 1, 5], [5, 2, 7, 1], [6, 4, 10, 12]]).float()
    assert torch.equal(ElementWise().mask(importance, 0.5), kept("#.#.\n.#.#\n..#.\n#.##"))


def test_n_m():
    """2:4: the best two of every four along K, ties to the left."""
    importance = torch.tensor([[4, 3, 2, 1, 1, 1, 1, 1], [0, 7, 0, 7, 7, 9, 7, 0]]).float()
    assert torch.equal(NM(n=2, m=4).mask(importance, 0.5), kept("##..##..\n.#.###.."))


def test_vector_wise_free():
    """Vectors of 2 outputs at one input. Norms of the first row of vectors: 5, 0, 1, 13; of the second: 2, 3, 0, 0."""
    importance = torch.tensor([[3, 0, 1, 5], [4, 0, 0, 12], [2, 0, 0, 0], [0, 3, 0, 0]]).float()
    assert torch.equal(VectorWise(granularity=2).mask(importance, 0.5), kept("#..#\n#..#\n##..\n##.."))


def test_vector_wise_balanced():
    """1:4 in each row of vectors: 13 is the best of the first, 3 of the second, though the first still offers 5."""
    importance = torch.tensor([[3, 0, 1, 5], [4, 0, 0, 12], [2, 0, 0, 0], [0, 3, 0, 0]]).float()
    mask = VectorWise(granularity=2, distribution="balanced", m=4).mask(importance, 0.75)
    assert torch.equal(mask, kept("...#\n...#\n.#..\n.#.."))


def test_block_wise_free():
    """Blocks of 1x2: sums of squares 25 and 2, 8 and 4, 10 and 1, 0 and 9; the best half is 25, 10, 9, 8."""
    importance = torch.tensor([[3, 4, 1, 1], [2, 2, 0, 2], [1, 3, 1, 0], [0, 0, 0, 3]]).float()
    assert torch.equal(BlockWise(granularity="1x2").mask(importance, 0.5), kept("##..\n##..\n##..\n..##"))


def test_block_wise_balanced():
    """2:4 of 2x2 blocks along K: the blocks hold 1, 5, 3, 5 everywhere, so the second and fourth stay."""
    importance = torch.tensor([1, 5, 3, 5]).repeat_interleave(2).expand(2, 8).float()
    mask = BlockWise(granularity=2, distribution="balanced", m=4).mask(importance, 0.5)
    assert torch.equal(mask, kept("..##..##\n..##..##"))


def test_tile_wise():
    """s = 0.75, g = 2 on 4x4: the root split takes half of the outputs (0 and 2), then half of the inputs of the rest.

    The survivors 1 and 3 form one tile although they are no neighbours. Its inputs hold the sums of squares
    16 + 4, 0 + 9, 4 + 25, 1 + 1: inputs 0 and 2 stay.
    """
    importance = torch.tensor([[1, 1, 1, 1], [4, 0, 2, 1], [2, 0, 0, 1], [2, 3, 5, 1]]).float()
    assert torch.equal(TileWise(granularity=2).mask(importance, 0.75), kept("....\n#.#.\n....\n#.#."))


def test_tile_wise_forms_tiles_from_survivors_and_lets_the_last_be_narrower():
    """s = 0.36 on 5x5: the root split is 0.2, so output 0 goes; 9 - 5 = 4 weights are left to take.

    Tiles {1, 2} and {3, 4} hold constant columns per tile, of l2/length c * sqrt(2) / 2 for the constants below; the
    two lowest groups of 2 weights are input 0 of the first tile (1) and input 4 of the second (2).
    """
    first, second = [1, 9, 8, 7, 6], [9, 8, 7, 6, 2]
    importance = torch.tensor([[0, 0, 0, 0, 1], first, first, second, second]).float()
    mask = TileWise(granularity=2).mask(importance, 0.36)
    assert torch.equal(mask, kept(".....\n.####\n.####\n####.\n####."))

    # With g = 3 the tiles are {1, 2, 3} and {4}: a narrow tile's groups score higher (length 1) and cost 1 weight each.
    mask = TileWise(granularity=3).mask(importance, 0.36)
    TileWise(granularity=3).check(mask, 0.36)
    # Group {1,2,3} of input 0 scores sqrt(1+1+81)/3 = 3.04, of input 4 sqrt(36+36+4)/3 = 2.91; {4} of input 4 scores 2.
    # In ascending order: {4} input 4 (1 weight), {1,2,3} input 4 (3 weights): 4 weights in all.
    assert torch.equal(mask, kept(".....\n####.\n####.\n####.\n####."))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (ElementWise(), ("csr", {})),
        (NM(), ("n_m", {"n": 2, "m": 4})),
        (VectorWise(granularity=4), ("gathered", {"tile": 4, "drop_empty_outputs": False})),
        (BlockWise(granularity="4x8"), ("blocked", {"block": [4, 8]})),
        (TileWise(granularity=4), ("gathered", {"tile": 4, "drop_empty_outputs": True})),
        (Dense(), ("dense", {})),
    ],
)
def test_storage(pattern, expected):
    assert pattern.storage((8, 16), 0.5) == expected
