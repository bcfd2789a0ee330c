"""Speedup against M, and predictions beside measurements."""

from pytest import approx

from experiments.operators.measurements import Weight
from experiments.operators.plots import MOST_PANELS, draw_predictions, draw_sweeps, sweeps

SIZES = (1, 16, 256, 1024, 4096)
BLOCKS = Weight("blocked", "block_wise", 64, "equal")


def test_fastest_kernel_of_the_granularity(measured, dense_weight):
    rows = [measured(2.0, m=m) for m in SIZES] + [measured(3.0, m=256, kernel="faster"), measured(weight=dense_weight)]
    rows += [measured(9.0, m=m, weight=Weight("gathered", "vector_wise", 32, "equal")) for m in SIZES[:4]]
    rows += [measured(1.5, m=256, weight=BLOCKS, layout="row_major"), measured(1.2, m=256, weight=BLOCKS)]
    rows += [measured(9.0, m=m, weight=Weight("gathered", "tile_wise", 128, "uneven")) for m in SIZES]
    (found,) = sweeps(rows)
    assert (found.granularity, found.layout, found.sizes) == (128, "feature_major", set(SIZES))
    assert found.ours[0.5][256] == approx(3.0) and found.ours[0.5][1] == approx(2.0)
    assert found.peers == {0.5: {256: approx(1.5)}}


def test_sweeps_are_drawn(measured, tmp_path):
    rows = [measured(2.0, m=m, k=k, asked_sparsity=0.5) for m in SIZES for k in (256, 512, 1024, 2048, 4096)]
    rows += [measured(2.0, m=m, layout="row_major") for m in SIZES]
    assert len(sweeps(rows)) == MOST_PANELS + 1
    assert draw_sweeps(rows, tmp_path / "new" / "sweep.svg").exists()


def test_predictions_are_drawn(measured, tmp_path):
    rows = [measured(predicted_us=30.0 + m, m=m) for m in (1, 8, 64, 512, 4096)]
    rows += [measured(predicted_us=30.0, kernel=f"kernel {number}") for number in range(5)]
    assert draw_predictions(rows, tmp_path / "new" / "predictions.svg").exists()
    assert draw_predictions([measured()], tmp_path / "none.svg") is None
