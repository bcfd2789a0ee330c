"""One example per pattern that can be followed on paper."""

import pytest
import torch

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

VECTORS = "3 0 1 5 | 4 0 0 12 | 2 0 0 0 | 0 3 0 0"  # of 2 outputs: norms 5, 0, 1, 13 and 2, 3, 0, 0
TILES = "1 1 1 1 | 4 0 2 1 | 2 0 0 1 | 2 3 5 1"
WANTED = "9 0 0 0 | 4 4 4 4 | 4 4 4 2 | 5 5 0 0"
CHANNELS = "1 3 4 | 0 1 0 | 0 0 2 | 2 3 12"
PAIRS = "8 1 4 1 | 1 2 3 2 | 0 1 0 1 | 9 2 2 3 | 0 1 1 2 | 1 0 1 0"
LISTS = "5 1 1 3 2 | 1 5 0 4 4 | 2 2 1 2 9 | 0 0 0 1 0"
HALVED = "1 2 3 4 1 1 1 1 | 9 9 9 9 0 0 0 0 | 1 0 0 0 5 0 6 0 | 0 0 0 0 0 7 0 7"
EXAMPLES = {
    # Half of 16; the threshold falls among the three 5s, of which the first two in reading order stay.
    "element_wise": (ElementWise(), "9 1 5 2 | 3 8 1 5 | 5 2 7 1 | 6 4 10 12", 0.5, "#.#. .#.# ..#. #.##"),
    # 2:4: the best two of every four along K, ties to the left.
    "n_m": (NM(n=2, m=4), "4 3 2 1 1 1 1 1 | 0 7 0 7 7 9 7 0", 0.5, "##..##.. .#.###.."),
    "vectors": (VectorWise(2), VECTORS, 0.5, "#..# #..# ##.. ##.."),
    # 1:4 in each row of vectors: 13 is the best of the first, 3 of the second, though the first still offers 5.
    "balanced vectors": (VectorWise(2, distribution="balanced", m=4), VECTORS, 0.75, "...# ...# .#.. .#.."),
    # Blocks of 1x2: sums of squares 25 and 2, 8 and 4, 10 and 1, 0 and 9; the best half is 25, 10, 9, 8.
    "blocks": (BlockWise("1x2"), "3 4 1 1 | 2 2 0 2 | 1 3 1 0 | 0 0 0 3", 0.5, "##.. ##.. ##.. ..##"),
    # The root split takes half of the outputs (0 and 2), then half of the inputs of the rest. The survivors 1 and 3 form one
    # tile although they are no neighbors. Its inputs hold 16 + 4, 0 + 9, 4 + 25, 1 + 1: inputs 0 and 2 stay.
    "tile_wise": (TileWise(2, **SOURCES), TILES, 0.75, ".... #.#. .... #.#."),
    # Tiles are pruned to 0.75 as above, then the best 4 of the 12 come back: 3 and 2, one in a tile's output and one in a
    # pruned one, and of the five 1s the first two.
    "overlay": (TileWise(2, element_overlay=0.25, **SOURCES), TILES, 0.5, "##.. #.#. #... ###."),
    # The root split takes one output. Norms are 9, 8, 7.2 and 7.07, so scores alone would take the last. Element-wise pruning
    # keeps 9, 5, 5 and the first five 4s: 1, 4, 1 and 2 weights of the outputs, so the later of those with one goes. Left are
    # tiles {0, 1} and {3} with 2 1 1 1 and 1 1 0 0 of those weights per input; in ascending density go inputs 3 and 2 of the
    # second tile (1 weight each), then input 3 of the first (2).
    "apriori": (TileWise(2, apriori_tuning=1.0, **SOURCES), WANTED, 0.5, "###. ###. .... ##.."),
    # 12 weights are half, so three outputs may go, and of whole tiles one does. Outputs by their norm: 3, 0 | 1, 4 | 2, 5: the
    # last pair goes, 8 weights. Ten more may go, in pairs of inputs of a tile: two pairs. Tile {0, 1} holds 65, 5, 25, 5, tile
    # {3, 4} 81, 5, 5, 13; sorted, inputs 0, 2 | 1, 3 and 0, 3 | 1, 2.
    "whole tiles": (
        TileWise(2, whole_tiles=True, input_multiple=2, aggregate="rms"),
        PAIRS,
        0.75,
        "#.#. #.#. .... #..# #..# ....",
    ),
    # The root split takes one output of four (the last), then 4 of 15 groups of 3: one input of the tile of three fits.
    "tiles": (TileWise(3, **SOURCES), LISTS, 0.5, "##.## ##.## ##.## ....."),
    # Tiles are pruned to 0.5 as above; the list of kept inputs is 0 1 3 4, of which each output keeps its best two.
    "tile_2_4": (Tile24(3), LISTS, 0.75, "#..#. .#.#. #...# ....."),
    # Half of the 2x4 blocks go, the upper right and the lower left; then each output keeps 2 of 4.
    "block_2_4": (Block24("2x4"), HALVED, 0.75, "..##.... ##...... ....#.#. .....#.#"),
    # Outputs hold the norms 5, 1, 2 and 13; inputs 1 + 0 + 0 + 4, 9 + 1 + 0 + 9, 16 + 0 + 4 + 144.
    "outputs": (Channel("outputs"), CHANNELS, 0.5, "### ... ... ###"),
    "inputs": (Channel("inputs"), CHANNELS, 1 / 3, ".## .## .## .##"),
    # As in the paper's figure 1: sort each row (9 3 2 1, 8 7 1 0, 4 3 3 1, 6 2 2 1), take the norm of each column, prune two
    # of four: every row keeps its best two; of the equal 3s of the third row and 2s of the fourth the first.
    "uniform": (Uniform(1), "1 9 2 3 | 7 0 8 1 | 3 1 4 3 | 2 2 1 6", 0.5, ".#.# #.#. #.#. #..#"),
    # 2x2, all weight in one corner: 2 6 4 0 and 3 1 1 5, sorted 6 4 2 0 and 5 3 1 1.
    "uniform blocks": (
        Uniform(2),
        "2 0 6 0 4 0 0 0 | 0 0 0 0 0 0 0 0 | 3 0 1 0 1 0 5 0 | 0 0 0 0 0 0 0 0",
        0.5,
        "..####.. ..####.. ##....## ##....##",
    ),
}


@pytest.mark.parametrize(("pattern", "importance", "sparsity", "drawing"), EXAMPLES.values(), ids=EXAMPLES)
def test_worked_example(pattern, importance, sparsity, drawing):
    """# is kept."""
    mask = pattern.mask(torch.tensor([[float(x) for x in row.split()] for row in importance.split("|")]), sparsity)
    assert ["".join(".#"[keep] for keep in row) for row in mask.tolist()] == drawing.split()
    pattern.check(mask, sparsity)


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
