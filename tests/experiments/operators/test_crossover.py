"""The lowest sparsity that beats dense: by hand, against a scan, and as it is written."""

import csv
import math

import pytest

from experiments.operators.crossover import (
    CSV_COLUMNS,
    Crossover,
    crossovers,
    write_csv,
)
from experiments.operators.measurements import Weight

WEIGHT = Weight("gathered", "vector_wise", 128, "equal")


def crossover(*curve: tuple[float, float]) -> Crossover:
    """From (sparsity, speedup)."""
    return Crossover(WEIGHT, "fp16", "row_major", 256, 1, [(at, math.log(speedup)) for at, speedup in curve])


VERDICTS = {
    "from the start": ([(0.5, 1.1), (0.9, 3.0)], "below 50 %"),
    "never": ([(0.5, 0.2), (0.875, 0.9)], "never, up to 87.5 %"),
    "a tie is no win": ([(0.5, 0.2), (0.9, 1.0)], "never, up to 90 %"),
    "from a tie on": ([(0.5, 1.0), (0.9, 2.0)], "50 %"),
    "a dip afterwards": ([(0.5, 0.5), (0.7, 2.0), (0.9, 0.5)], "60 %"),
    "a win, then a loss": ([(0.5, 1.5), (0.7, 0.5), (0.9, 1.5)], "below 50 %"),
    "one point, faster": ([(0.5, 1.02)], "wins at 50 %"),
    "one point, slower": ([(0.5, 0.98)], "loses at 50 %"),
}


@pytest.mark.parametrize(("curve", "verdict"), VERDICTS.values(), ids=VERDICTS.keys())
def test_verdicts(curve, verdict):
    assert crossover(*curve).verdict == verdict


def test_fastest_kernel_of_each_shape(measured):
    found = crossovers(
        [
            measured(0.5, k=1024),
            measured(0.8, k=1024, kernel="other"),
            measured(0.2, k=2048),
            measured(3.0, k=1024, sparsity=0.75),
            measured(2.0, k=2048, sparsity=0.75),
            measured(9.0, weight=Weight("dense", "dense", 0, "")),
            measured(2.0, layout="row_major"),
            measured(2.0, m=1),
            measured(2.0, weight=WEIGHT._replace(granularity=64)),
        ]
    )
    assert [(one.weight.granularity, one.layout, one.m, one.shapes) for one in found] == [
        (128, "feature_major", 1, 1),
        (128, "feature_major", 4096, 2),
        (128, "row_major", 4096, 1),
        (64, "feature_major", 4096, 1),
    ]
    (_, at_half), (_, at_three_quarters) = found[1].curve
    assert math.exp(at_half) == pytest.approx(math.sqrt(0.8 * 0.2))
    assert math.exp(at_three_quarters) == pytest.approx(math.sqrt(6.0))


def test_written_beside_the_paper(measured, tmp_path):
    rows = [measured(0.5), measured(2.0, sparsity=0.75), measured(1.5, m=256), measured(2.0, m=256, sparsity=0.75)]
    rows.append(measured(0.5, weight=Weight("csr", "element_wise", 1, "")))
    with write_csv(crossovers(rows), tmp_path / "crossover.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == CSV_COLUMNS and len(lines) == 3
    assert [line["crossover"] for line in lines] == ["", "", "0.6250"]
    assert lines[2]["speedup_there"] == "0.5" and lines[2]["speedup_at_end"] == "2"
    assert [line["verdict"] for line in lines] == ["loses at 50 %", "below 50 %", "63 %"]
    assert [line["paper"] for line in lines] == ["", "TW-128: 40 %", "TW-128: 40 %"]
