"""The rates of the run, read back from the roofline bounds that they gave, and the picture."""

import pytest
from PIL import Image

from experiments.operators.plots import copy_rate, dense_rate, write_roofline_png

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
def test_drawn(floored, measured, tmp_path, sizes):
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


def test_nothing_to_draw(tmp_path, measured):
    with pytest.raises(ValueError, match="one dtype, not of bf16, fp16"):
        write_roofline_png([measured(), measured(dtype="bf16")], tmp_path / "roofline.png")
    with pytest.raises(ValueError, match="nothing to draw"):
        write_roofline_png([], tmp_path / "roofline.png")
