"""Few rows of X: what the page says is in the file, and what the file lacks is no column of its tables."""

import pytest
from sparsefront_kernels.bench import __main__ as command
from sparsefront_kernels.bench.plan import Chosen
from sparsefront_kernels.bench.rows import read_rows

from experiments.operators.few_rows import FILE, attainable_share, tables

ROWS = read_rows(FILE)
NONE = {
    "kernel": "n_m_mma",
    "family": "n_m",
    "granularity": "4",
    "m": "1",
    "roofline_fraction": "0.5",
    "latency_us": "4.4",
}


def test_the_page_holds_what_was_measured():
    page = (FILE.parent / "README.md").read_text()
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in tables(ROWS)[2:]]
    for kernel, granularity, at_one, at_64 in (
        ("gathered_small_m", 128, True, False),
        ("gathered_sm90", 128, False, True),
        ("blocked_sm90", 128, False, True),
        ("blocked_sm90", 64, False, True),
    ):
        cells = {
            m: (over, share) for of, m, _, over, share in lines if of == f"`{kernel}_feature_major`, {granularity}"
        }
        one, many = (
            f"{cells[m][0]} ({cells[m][1]})" if with_share else cells[m][0]
            for m, with_share in (("1", at_one), ("64", at_64))
        )
        assert f"| `{kernel}`, {granularity} | {one} | {many} |" in page


def test_every_row_was_right_and_names_its_commit():
    assert {row["commit"] for row in ROWS} == {"1f8b1f5"} and all(row["correct"] == "True" for row in ROWS)


def test_every_line_of_the_plan_can_be_run():
    masks = ["--distribution", "pattern", "--masks", "sparsefront.pruning.operator_masks:pattern_masks"]
    lines = [command.parser().parse_args([*masks, *line]) for line in command._lines(FILE.with_suffix(".plan"))]
    kernels = set()
    for line in lines:
        assert command._masks(line) and {shape.m for shape in command._shapes(line)} <= {1, 4, 16, 32, 64}
        chosen = Chosen(tuple(line.kernels), tuple(line.layout), tuple(line.family))
        kernels |= {kernel.name for dtype in line.dtype for kernel, _ in chosen.entries(dtype)}
    blocked = {"blocked_sm90", "blocked_gathered_sm90"}
    assert kernels == {"gathered_small_m", "gathered_sm90", "n_m_small_m", "n_m_mma"} | blocked


def test_matrix_vector_products_have_a_column_for_each_dtype():
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
