"""Speedup against M: which weights are shown, and which kernel counts."""

import pytest
from PIL import Image

from experiments.operators.measurements import Weight
from experiments.operators.plots import MOST_PANELS, sweeps, write_sweeps_png

SIZES = (1, 16, 256, 1024, 4096)
BLOCKS = Weight("blocked", "block_wise", 64, "equal")


def test_the_fastest_kernel_of_the_granularity_with_most_sizes(measured, dense_weight):
    rows = [measured(2.0, m=m) for m in SIZES] + [measured(3.0, m=256, kernel="faster"), measured(weight=dense_weight)]
    rows += [measured(9.0, m=m, weight=Weight("gathered", "vector_wise", 32, "equal")) for m in SIZES[:4]]
    rows += [measured(1.5, m=256, weight=BLOCKS, layout="row_major"), measured(1.2, m=256, weight=BLOCKS)]
    rows += [measured(9.0, m=m, weight=Weight("gathered", "tile_wise", 128, "uneven")) for m in SIZES]
    (found,) = sweeps(rows)
    assert (found.granularity, found.layout, found.sizes) == (128, "feature_major", set(SIZES))
    assert found.ours[0.5][256] == pytest.approx(3.0) and found.ours[0.5][1] == pytest.approx(2.0)
    assert found.peers == {0.5: {256: pytest.approx(1.5)}}


def test_few_sizes_are_no_sweep(measured, tmp_path):
    rows = [measured(2.0, m=m) for m in SIZES[:4]]
    assert sweeps(rows) == []
    with pytest.raises(ValueError, match="no weight was measured with 5 values of M"):
        write_sweeps_png(rows, tmp_path / "sweep.png")


def test_drawn(measured, tmp_path):
    rows = [measured(2.0, m=m, k=k, asked_sparsity=0.5) for m in SIZES for k in (256, 512, 1024, 2048, 4096)]
    rows += [measured(2.0, m=m, layout="row_major") for m in SIZES]
    assert len(sweeps(rows)) == MOST_PANELS + 1
    path = write_sweeps_png(rows, tmp_path / "new" / "sweep.png")
    with Image.open(path) as picture:
        assert picture.width > 1200 and picture.height > 500, "two layouts"
