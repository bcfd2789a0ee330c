"""The n:m that layers really have, by their shapes and own sparsities."""

import pytest

from sparsefront.patterns.block_wise import BlockWise
from sparsefront.patterns.blocks import windows_text
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.tile_wise import SOURCES, TileWise

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
