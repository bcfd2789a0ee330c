"""Where the groups of a mask begin, as pictures draw it.

The n:m that layers really have, by their shapes and own sparsities.
"""

import pytest
import torch
from every_pattern import NAMES, scores

from sparsefront.patterns.block_wise import BlockWise
from sparsefront.patterns.blocks import windows_text
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.tile_wise import SOURCES, TileWise
from sparsefront.patterns.vector_wise import VectorWise


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sparsity", [0.5, 0.75])
def test_lines_lie_inside_and_ascend(from_yaml, name, sparsity):
    pattern = from_yaml(name, granularity=4)
    importance = scores(16, 32)
    mask = pattern.mask(importance, sparsity)
    permutation = pattern.find_permutation(importance, sparsity)
    permuted = mask if permutation is None else permutation.apply(mask)
    rows, columns, windows = lines(pattern, permuted, sparsity)
    for places, count in ((rows, 16), (columns, 32), (windows, 32)):
        assert places == sorted(set(places)) and all(0 < place < count for place in places)


def lines(pattern, mask, sparsity) -> tuple[list[int], list[int], list[int]]:
    found = pattern.boundaries(mask, sparsity)
    return list(found.rows), list(found.columns), list(found.windows)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (ElementWise(), ([], [], [])),
        (NM(n=2, m=4), ([], [], [4, 8, 12])),
        (NM(transposable=True), ([4], [], [4, 8, 12])),
        (VectorWise(granularity=4), ([4], [], [])),
        (VectorWise(granularity=4, distribution="balanced", m=8), ([4], [], [8])),
        (BlockWise(granularity="4x2"), ([4], [2, 4, 6, 8, 10, 12, 14], [])),
        (BlockWise(granularity=2, distribution="balanced", m=4), ([2, 4, 6], [2, 4, 6, 8, 10, 12, 14], [8])),
    ],
    ids=str,
)
def test_lines_of_a_grid(pattern, expected):
    assert lines(pattern, torch.ones(8, 16, dtype=torch.bool), 0.5) == expected


LINEAR, CONV, ODD = (128, 256), (64, 32, 3, 3), (128, 96)


@pytest.mark.parametrize(
    ("pattern", "layers", "text"),
    [
        (NM(), {"a": (LINEAR, 0.5), "b": (CONV, 0.5)}, "2:4"),
        (NM(m=8), {"a": (LINEAR, 0.5)}, "4:8"),
        (NM(), {"a": (LINEAR, 0.75), "b": (LINEAR, 0.75), "c": (LINEAR, 0.5)}, "1:4 in 2, 2:4 in 1"),
        (NM(), {"a": (LINEAR, 0.5), "dense": (LINEAR, 0.0)}, "2:4"),
        (NM(transposable=True), {"a": (LINEAR, 0.5)}, "2:4"),
        (BlockWise(granularity=16, distribution="balanced"), {"a": (LINEAR, 0.75)}, "1:4"),
        (BlockWise(granularity=16), {"a": (LINEAR, 0.75)}, None),
        (TileWise(16, **SOURCES), {"a": (ODD, 0.75)}, None),
    ],
)
def test_windows(pattern, layers, text):
    assert windows_text(pattern, layers) == text
