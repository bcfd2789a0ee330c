"""The fastest kernel at each M of one weight, and where it changes."""

import csv

import pytest

from experiments.operators.draw import main
from experiments.operators.kernels_by_m import CSV_COLUMNS, times_by_m
from experiments.operators.measurements import Weight

BY_M_WEIGHT = Weight("n_m", "n_m", 4, "balanced")
SIZES = (1, 4, 16, 64, 256, 1024)
TIMES = {  # of a kernel at each of these M, None where it was not measured
    "n_m_small_m": (5, 10, 40, 160, None, None),
    "n_m_mma": (10, 10, 10, 20, None, None),
    "n_m_rebuilt": (90, 90, 90, 90, 90, 180),
}
DENSE = (10, 10, 10, 20, 45, 160)


@pytest.fixture
def rows(measured):
    """The kernels above on one weight, row-major."""
    shape = {"weight": BY_M_WEIGHT, "k": 4096, "n": 4096, "layout": "row_major"}
    return [
        measured(kernel=kernel, m=m, latency_us=float(time), dense_us=float(dense), **shape)
        for kernel, times in TIMES.items()
        for m, time, dense in zip(SIZES, times, DENSE)
        if time is not None
    ]


def test_kernels_cross_at_equal_times(rows):
    (times,) = times_by_m(rows).values()
    first, second = times.crossings()
    assert (first.before, first.after, first.at) == ("n_m_small_m", "n_m_mma", pytest.approx(4.0))
    assert (second.before, second.after, second.low, second.high, second.at) == (
        "n_m_mma",
        "n_m_rebuilt",
        64,
        256,
        None,
    )


def test_the_command_writes_a_table(rows, results_file, tmp_path):
    assert main([str(results_file(rows)), "-o", str(tmp_path / "out")]) == 0
    with (tmp_path / "out" / "kernels_by_m.csv").open() as file:
        lines = {int(line["m"]): line for line in csv.DictReader(file)}
    assert list(lines[1]) == CSV_COLUMNS and list(lines) == list(SIZES)
    found = [
        (lines[m]["kernel"], lines[m]["speedup"], lines[m]["next_kernel"], lines[m]["crosses_at_m"]) for m in SIZES
    ]
    assert found[0] == ("n_m_small_m", "2", "", "")
    assert ("n_m_mma", "1", "n_m_rebuilt", "") in found, "not measured at both M"
    assert ("n_m_small_m", "1", "n_m_mma", "4") in found
    assert lines[64]["crosses_dense_at_m"] == "64"
