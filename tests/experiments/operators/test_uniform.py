"""The uniform-sparsity paper's figures: from the benchmark's rows to means and pictures, and a plan that measures all of it."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from sparsefront_kernels.bench import __main__ as bench
from sparsefront_kernels.bench.rows import write_rows

from experiments.operators import uniform
from experiments.operators.measurements import Weight

from .conftest import as_row

PLAN = Path(uniform.__file__).with_name("uniform.plan")


@pytest.fixture
def results(measured, tmp_path):
    """Write cells, each with the times of some of our kernels and that of cuSPARSE."""

    def write(cells, latencies_us=(10.0, 20.0), peer_us=30.0):
        rows = []
        for cell in cells:
            sizes = {"dtype": cell.dtype, "m": cell.m, "k": cell.k, "n": cell.n, "asked_sparsity": cell.sparsity}
            weight = Weight("ell", "uniform", cell.block, "equal")
            for latency_us in latencies_us:
                one = as_row(measured(weight=weight, latency_us=latency_us, dense_us=5.0, **sizes))
                rows.append(replace(one, baseline="cusparse_csr 1", baseline_us=peer_us))
        write_rows(tmp_path / "uniform.csv", rows)
        return tmp_path / "uniform.csv"

    return write


def test_fastest_own_kernel_against_cusparse(results):
    cell = uniform.Cell("fp32", 128, 128, 128, 0.6)
    assert uniform.read_speedups(results([cell])) == {cell: pytest.approx(3.0)}


def test_the_plan_measures_every_cell():
    planned = set()
    for line in bench._lines(PLAN):
        asked = bench.parser().parse_args(line)
        shapes = [shape for shapes in asked.shape for shape in shapes]
        settings = product(asked.dtype, shapes, asked.sparsity, asked.granularity)
        planned |= {uniform.Cell(dtype, one.m, one.k, one.n, level, block) for dtype, one, level, block in settings}
    assert set(uniform.all_cells()) <= planned


def test_pages_and_pictures(results, tmp_path, capsys):
    """All is measured but one size of ResNet50."""
    cells = set(uniform.all_cells()) - {uniform.Cell("fp16", 128, 64, 64, 0.81)}
    assert uniform.main([str(results(cells)), "-o", str(tmp_path / "out")]) == 0
    page = capsys.readouterr().out
    assert "| Transformer-Big | 1024 | 65% | 1.49 | 1.62 | 3.00 | 3.00 |" in page
    assert "| ResNet50 | 128 | 81% | 1.31 | 1.01 | 3.00 | 1 sizes not measured |" in page
    assert "| 1 | 3.00 | 3.00 | 3.00 | 3.00 |" in page and "| 4 | 3.00" in page
    assert "| 7 | K = N = 1024 | M 16384 | 1.62 | 3.00 |" in page
    assert (tmp_path / "out" / "uniform.svg").exists()
