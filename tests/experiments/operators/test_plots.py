"""Rooflines with the rates of their run, speedup against M, and predictions beside measurements."""

import pytest
from PIL import Image

from experiments.operators.measurements import Weight
from experiments.operators.plots import (
    MOST_PANELS,
    copy_rate,
    dense_rate,
    predictions,
    sweeps,
    write_predictions_png,
    write_roofline_png,
    write_sweeps_png,
)

DENSE_RATE, COPY_RATE = 700e12, 4e12


@pytest.fixture
def floored(measured, dense_weight):
    """A dense product whose roofline bound follows from the two rates."""

    def make(m: int, rate: float = DENSE_RATE, **changes):
        one = measured(weight=dense_weight, sparsity=0.0, m=m, k=4096, n=4096, **changes)
        bound = max(one.useful_flops / rate, one.bytes_moved / COPY_RATE) * 1e6
        return measured(weight=dense_weight, sparsity=0.0, m=m, k=4096, n=4096, roofline_bound_us=bound, **changes)

    return make


def test_rates_come_back(floored):
    measurements = [floored(1), floored(64), floored(4096)]
    assert dense_rate(measurements) == pytest.approx(DENSE_RATE)
    assert copy_rate(measurements) == pytest.approx(COPY_RATE)


def test_a_slower_run_is_not_taken_for_bound_by_bytes(floored):
    assert copy_rate([floored(4096), floored(2048, rate=0.96 * DENSE_RATE)]) is None
    assert dense_rate([floored(4096, rate=0.96 * DENSE_RATE), floored(4096)]) == pytest.approx(DENSE_RATE)


@pytest.mark.parametrize("sizes", [(1, 4096), (4096, 8192)], ids=["both bounds", "compute only"])
def test_rooflines_are_drawn(floored, measured, tmp_path, sizes):
    measurements = [floored(m) for m in sizes]
    measurements += [
        floored(8192, layout="row_major"),
        measured(roofline_bound_us=20.0),
        measured(layout="row_to_feature"),
    ]
    path = write_roofline_png(measurements, tmp_path / "new" / "roofline.png")
    with Image.open(path) as picture:
        assert picture.width > 900 and picture.height > 700, "three layouts in two rows"
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 10


def test_a_roofline_is_of_one_dtype(tmp_path, measured):
    with pytest.raises(ValueError, match="one dtype, not of bf16, fp16"):
        write_roofline_png([measured(), measured(dtype="bf16")], tmp_path / "roofline.png")
    with pytest.raises(ValueError, match="nothing to draw"):
        write_roofline_png([], tmp_path / "roofline.png")


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


def test_sweeps_are_drawn(measured, tmp_path):
    rows = [measured(2.0, m=m, k=k, asked_sparsity=0.5) for m in SIZES for k in (256, 512, 1024, 2048, 4096)]
    rows += [measured(2.0, m=m, layout="row_major") for m in SIZES]
    assert len(sweeps(rows)) == MOST_PANELS + 1
    path = write_sweeps_png(rows, tmp_path / "new" / "sweep.png")
    with Image.open(path) as picture:
        assert picture.width > 1200 and picture.height > 500, "two layouts"


def test_panels_are_what_constants_are_of(measured):
    rows = [
        measured(predicted_us=45.0),
        measured(predicted_us=55.0, kernel="gathered_sm90", layout="row_major"),
        measured(predicted_us=40.0, kernel="cublas"),
        measured(predicted_us=40.0, kernel="cublas", dtype="fp32"),
        measured(kernel="triton_bsr"),
    ]
    found = predictions(rows)
    assert {panel: len(shown) for panel, shown in found.items()} == {
        ("cublas", "fp16"): 1,
        ("cublas", "fp32"): 1,
        ("gathered_sm90", "fp16"): 2,
    }


def test_predictions_are_drawn(measured, tmp_path):
    rows = [measured(predicted_us=30.0 + m, m=m) for m in (1, 8, 64, 512, 4096)]
    rows += [measured(predicted_us=30.0, kernel=f"kernel {number}") for number in range(5)]
    path = write_predictions_png(rows, tmp_path / "new" / "predictions.png")
    with Image.open(path) as picture:
        assert picture.width > 900 and picture.height > 500, "six panels in two rows"
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 10


def test_without_predictions_nothing_is_drawn(measured, tmp_path):
    with pytest.raises(ValueError, match="no measurement has a prediction"):
        write_predictions_png([measured()], tmp_path / "predictions.png")
