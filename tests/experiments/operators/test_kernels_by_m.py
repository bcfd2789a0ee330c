"""Which kernel is fastest at each M, and where the next one takes over: by hand, and from a file."""

import csv
from dataclasses import replace

import pytest
from PIL import Image

from experiments.operators.draw import main
from experiments.operators.measurements import Weight
from experiments.operators.winners import CSV_COLUMNS, FEWEST_SIZES, Times, _largest, times_by_m

WEIGHT = Weight("n_m", "n_m", 4, "balanced")
SIZES = (1, 4, 16, 64, 256, 1024)
TIMES = {  # of a kernel at each of these M, None where it was not measured
    "n_m_small_m": (5, 10, 40, 160, None, None),
    "n_m_mma": (10, 10, 10, 20, None, None),
    "n_m_triton": (90, 90, 90, 90, 90, 180),
}
DENSE = (10, 10, 10, 20, 45, 160)


@pytest.fixture
def rows(measured):
    """The kernels above on one weight, row-major."""
    shape = {"weight": WEIGHT, "k": 4096, "n": 4096, "layout": "row_major"}
    return [
        measured(kernel=kernel, m=m, latency_us=float(time), dense_us=float(dense), **shape)
        for kernel, times in TIMES.items()
        for m, time, dense in zip(SIZES, times, DENSE)
        if time is not None
    ]


def test_the_fastest_and_its_speedup(rows):
    (times,) = times_by_m(rows).values()
    assert [times.fastest(m) for m in (1, 16, 64, 256)] == ["n_m_small_m", "n_m_mma", "n_m_mma", "n_m_triton"]
    assert [times.speedup(m) for m in (1, 16, 1024)] == [2.0, 1.0, pytest.approx(160 / 180)]


def test_kernels_cross_where_they_take_the_same_time(rows):
    (times,) = times_by_m(rows).values()
    first, second = times.crossings()
    assert (first.before, first.after, first.at) == ("n_m_small_m", "n_m_mma", pytest.approx(4.0))
    assert second.text == "n_m_mma → n_m_triton: between 64 and 256"


def test_halfway_in_both_logarithms():
    times = Times({4: {"a": 1.0, "b": 3.0}, 64: {"a": 3.0, "b": 1.0}}, {4: 2.0, 64: 1.0})
    (crossing,) = times.crossings()
    assert crossing.at == pytest.approx(16.0) and crossing.text == "a → b: 16"


def test_dense_takes_over_once(rows):
    (times,) = times_by_m(rows).values()
    (crossing,) = times.dense_crossings()
    assert (crossing.before, crossing.after) == ("sparse", "dense")
    assert crossing.at == pytest.approx(64.0), "a tie at 64, twice as slow at 256"


def test_what_has_few_sizes_or_one_kernel_is_left_out(rows, measured, dense_weight):
    few = [one for one in rows if one.m in SIZES[: FEWEST_SIZES - 1]]
    alone = [one for one in rows if one.kernel == "n_m_triton"]
    dense = [measured(weight=dense_weight, kernel=name, m=m) for name in ("cublas", "cublas_wt") for m in SIZES]
    assert not times_by_m(few) and not times_by_m(alone) and not times_by_m(dense)


def test_the_command_writes_a_table_and_a_picture(rows, results_file, tmp_path):
    assert main([str(results_file(rows)), "-o", str(tmp_path / "out")]) == 0
    with (tmp_path / "out" / "kernels_by_m.csv").open() as file:
        lines = {int(line["m"]): line for line in csv.DictReader(file)}
    assert list(lines[1]) == CSV_COLUMNS and list(lines) == list(SIZES)
    found = [
        (lines[m]["kernel"], lines[m]["speedup"], lines[m]["next_kernel"], lines[m]["crosses_at_m"]) for m in SIZES
    ]
    assert found[0] == ("n_m_small_m", "2", "", "")
    assert ("n_m_mma", "1", "n_m_triton", "") in found, "not measured at both M"
    assert ("n_m_small_m", "1", "n_m_mma", "4") in found
    assert lines[64]["crosses_dense_at_m"] == "64"
    with Image.open(tmp_path / "out" / "kernels_by_m.png") as picture:
        assert picture.width >= 400


def test_the_picture_shows_of_each_layout_the_weight_with_most_lines(rows, measured):
    others = [replace(one, k=512, sparsity=sparsity) for one in rows for sparsity in (0.5, 0.75)]
    panels = _largest(times_by_m([*rows, *others, *(replace(one, layout="feature_major") for one in rows)]))
    assert {key: len(part) for key, part in panels.items()} == {
        ("fp16", "row_major", 512, 4096): 2,
        ("fp16", "feature_major", 4096, 4096): 1,
    }
