"""Few rows of X: the plan can be run, and what a file lacks is no column of its tables."""

from pathlib import Path

import pytest
from sparsefront_kernels.bench import __main__ as command
from sparsefront_kernels.bench.plan import Chosen

from experiments.operators import few_rows
from experiments.operators.few_rows import attainable_share, tables

PLAN = Path(few_rows.__file__).with_suffix(".plan")
NONE = {
    "kernel": "n_m_mma",
    "family": "n_m",
    "granularity": "4",
    "m": "1",
    "roofline_fraction": "0.5",
    "latency_us": "4.4",
}


def test_every_line_of_the_plan_runs():
    masks = ["--distribution", "pattern", "--masks", "sparsefront.pruning.operator_masks:pattern_masks"]
    lines = [command.parser().parse_args([*masks, *line]) for line in command._lines(PLAN)]
    kernels = set()
    for line in lines:
        assert command._masks(line) and {shape.m for shape in command._shapes(line)} <= {1, 4, 16, 32, 64}
        chosen = Chosen(tuple(line.kernels), tuple(line.layout), tuple(line.family))
        kernels |= {kernel.name for dtype in line.dtype for kernel, _ in chosen.entries(dtype)}
    blocked = {"blocked_sm90", "blocked_gathered_sm90"}
    assert kernels == {"gathered_small_m", "gathered_sm90", "n_m_small_m", "n_m_mma"} | blocked


def test_matrix_vector_columns_of_each_dtype():
    rows = [
        NONE | {"k": "4096", "n": n, "dtype": dtype, "asked_sparsity": "0.5", "speedup": speedup}
        for n, dtype, speedup in (("4096", "fp16", "1.5"), ("4096", "fp16", "1.7"), ("1024", "fp32", "1.25"))
    ]
    assert attainable_share(rows[0]) == pytest.approx(1.0)
    assert tables(rows)[-4:-1] == [
        "| --- | --- | --- | --- |",
        "| 4096 → 4096 | 0.5 | 1.70 |  |",
        "| 4096 → 1024 | 0.5 |  | 1.25 |",
    ]
