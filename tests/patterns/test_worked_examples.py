"""One example per pattern that can be followed on paper."""

import pytest
import torch
from torch import Tensor

from sparsefront.patterns.block_2_4 import Block24
from sparsefront.patterns.block_wise import BlockWise
from sparsefront.patterns.channel import Channel
from sparsefront.patterns.dense import Dense
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.tile_2_4 import Tile24
from sparsefront.patterns.tile_wise import SOURCES, TileWise
from sparsefront.patterns.uniform import Uniform
from sparsefront.patterns.vector_wise import VectorWise


def kept(drawing: str) -> Tensor:
    """A mask from its drawing: # is kept."""
    return torch.tensor([[mark == "#" for mark in line.strip()] for line in drawing.strip().splitlines()])


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

    The survivors 1 and 3 form one tile although they are no neighbors. Its inputs hold the sums of squares
    16 + 4, 0 + 9, 4 + 25, 1 + 1: inputs 0 and 2 stay.
    """
    importance = torch.tensor([[1, 1, 1, 1], [4, 0, 2, 1], [2, 0, 0, 1], [2, 3, 5, 1]]).float()
    assert torch.equal(TileWise(granularity=2, **SOURCES).mask(importance, 0.75), kept("....\n#.#.\n....\n#.#."))


def test_tile_wise_with_an_overlay():
    """s = 0.5 and delta = 0.25: tiles are pruned to 0.75 as in `test_tile_wise`, then the best 4 of the 12 come back.

    Those are 3 and 2, one in a tile's output and one in a pruned one, and of the five 1s the first two.
    """
    importance = torch.tensor([[1, 1, 1, 1], [4, 0, 2, 1], [2, 0, 0, 1], [2, 3, 5, 1]]).float()
    mask = TileWise(granularity=2, element_overlay=0.25, **SOURCES).mask(importance, 0.5)
    assert torch.equal(mask, kept("##..\n#.#.\n#...\n###."))


def test_tile_wise_with_apriori_tuning():
    """s = 0.5 on 4x4: the root split takes one output. Norms are 9, 8, 7.2 and 7.07, so scores alone would take the last.

    Element-wise pruning keeps 9, 5, 5 and the first five 4s: 1, 4, 1 and 2 weights of the outputs. With a = 1 the later of
    the two outputs with one weight goes. Left are tiles {0, 1} and {3} with 2 1 1 1 and 1 1 0 0 of those weights per
    input; in ascending density go inputs 3 and 2 of the second tile (1 weight each), then input 3 of the first (2).
    """
    importance = torch.tensor([[9, 0, 0, 0], [4, 4, 4, 4], [4, 4, 4, 2], [5, 5, 0, 0]]).float()
    assert not TileWise(granularity=2, **SOURCES).mask(importance, 0.5)[3].any()
    mask = TileWise(granularity=2, apriori_tuning=1.0, **SOURCES).mask(importance, 0.5)
    assert torch.equal(mask, kept("###.\n###.\n....\n##.."))


def test_tile_wise_with_whole_tiles_and_multiples_of_inputs():
    """s = 0.75, g = 2, inputs in pairs, on 6x4: 12 weights are half, so three outputs may go, and of whole tiles one does.

    Outputs by their norm: 3, 0, 1 | 4, 2, 5; sorted in pairs, 3 and 0 | 1 and 4 | 2 and 5. The last pair goes: 8 weights.
    Ten more may go, in pairs of inputs of a tile, 4 weights each: two pairs. Tile {0, 1} holds the sums of squares 64 + 1,
    1 + 4, 16 + 9, 1 + 4, tile {3, 4} 81 + 0, 4 + 1, 4 + 1, 9 + 4; sorted, inputs 0, 2 | 1, 3 and 0, 3 | 1, 2.
    """
    importance = torch.tensor(
        [[8, 1, 4, 1], [1, 2, 3, 2], [0, 1, 0, 1], [9, 2, 2, 3], [0, 1, 1, 2], [1, 0, 1, 0]]
    ).float()
    pattern = TileWise(granularity=2, whole_tiles=True, input_multiple=2, aggregate="rms")
    mask = pattern.mask(importance, 0.75)
    assert torch.equal(mask, kept("#.#.\n#.#.\n....\n#..#\n#..#\n...."))
    pattern.check(mask, 0.75)


def test_tile_2_4():
    """s = 0.75, so tiles are pruned to 0.5: the root split takes one output of four (the last), then 4 of 15 groups of 3.

    5 of 20 weights are gone, 5 more may go, and one input of the tile of three fits: input 2 with the sum 1 + 0 + 1. The
    list of kept inputs is 0 1 3 4: one window of four, of which each output keeps its best two.
    """
    importance = torch.tensor([[5, 1, 1, 3, 2], [1, 5, 0, 4, 4], [2, 2, 1, 2, 9], [0, 0, 0, 1, 0]]).float()
    assert torch.equal(TileWise(granularity=3, **SOURCES).mask(importance, 0.5), kept("##.##\n##.##\n##.##\n....."))
    mask = Tile24(granularity=3).mask(importance, 0.75)
    assert torch.equal(mask, kept("#..#.\n.#.#.\n#...#\n....."))


def test_block_2_4():
    """s = 0.75, so half of the 2x4 blocks go, the upper right and the lower left; then each output keeps 2 of 4."""
    importance = torch.tensor(
        [[1, 2, 3, 4, 1, 1, 1, 1], [9, 9, 9, 9, 0, 0, 0, 0], [1, 0, 0, 0, 5, 0, 6, 0], [0, 0, 0, 0, 0, 7, 0, 7]]
    ).float()
    mask = Block24(granularity="2x4").mask(importance, 0.75)
    assert torch.equal(mask, kept("..##....\n##......\n....#.#.\n.....#.#"))


def test_channel():
    """Outputs hold the norms 5, 1, 2 and 13; inputs 1 + 0 + 0 + 4, 9 + 1 + 0 + 9, 16 + 0 + 4 + 144 as sums of squares."""
    importance = torch.tensor([[1, 3, 4], [0, 1, 0], [0, 0, 2], [2, 3, 12]]).float()
    assert torch.equal(Channel(axis="outputs").mask(importance, 0.5), kept("###\n...\n...\n###"))
    assert torch.equal(Channel(axis="inputs").mask(importance, 1 / 3), kept(".##\n.##\n.##\n.##"))


def test_uniform():
    """Half of a 4x4 matrix, as in the paper's figure 1: sort each row, take the l2 norm of each column, prune two of four.

    Sorted: 9 3 2 1, 8 7 1 0, 4 3 3 1, 6 2 2 1. The last two columns hold the smallest norms, so every row keeps its best
    two, put back where they were; of the equal 3s of the third row and 2s of the fourth the first.
    """
    importance = torch.tensor([[1, 9, 2, 3], [7, 0, 8, 1], [3, 1, 4, 3], [2, 2, 1, 6]]).float()
    assert torch.equal(Uniform(granularity=1).mask(importance, 0.5), kept(".#.#\n#.#.\n#.#.\n#..#"))


def test_uniform_with_blocks():
    """Blocks of 2x2 with the norms 2, 6, 4, 0 and 3, 1, 1, 5 (all weight in one corner); sorted 6 4 2 0 and 5 3 1 1."""
    corners = torch.tensor([[2, 6, 4, 0], [3, 1, 1, 5]]).float()
    importance = torch.zeros(4, 8)
    importance[::2, ::2] = corners
    assert torch.equal(Uniform(granularity=2).mask(importance, 0.5), kept("..####..\n..####..\n##....##\n##....##"))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (ElementWise(), ("csr", {})),
        (NM(), ("n_m", {"n": 2, "m": 4})),
        (VectorWise(granularity=4), ("gathered", {"tile": 4, "drop_empty_outputs": False})),
        (BlockWise(granularity="4x8"), ("blocked", {"block": [4, 8]})),
        (TileWise(granularity=4), ("gathered", {"tile": 4, "drop_empty_outputs": True})),
        (TileWise(granularity=4, element_overlay=0.01), ("gathered_overlay", {"tile": 4})),
        (Tile24(granularity=4), ("gathered_2_4", {"tile": 4})),
        (Block24(granularity=4), ("blocked_2_4", {"block": [4, 4]})),
        (Uniform(granularity=2), ("ell", {"block": 2})),
        (Channel(), ("gathered", {"tile": 8, "drop_empty_outputs": True})),
        (Dense(), ("dense", {})),
    ],
)
def test_storage(pattern, expected):
    assert pattern.storage((8, 16), 0.5) == expected
