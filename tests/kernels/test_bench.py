"""The operator benchmark's parts that need no GPU: roofline bound, precision, rows, comparison, command line."""

import dataclasses
import math

import pytest
import torch
from sparsefront_kernels.bench import __main__ as command
from sparsefront_kernels.bench.correctness import DTYPES, reference_product, relative_error
from sparsefront_kernels.bench.families import family_masks
from sparsefront_kernels.bench.masks import Masks
from sparsefront_kernels.bench.measurement import Rates, roofline_bound_us
from sparsefront_kernels.bench.peers import PEERS
from sparsefront_kernels.bench.plan import Chosen, Plan
from sparsefront_kernels.bench.problems import any_shape, chosen_shapes
from sparsefront_kernels.bench.report import changes, report, summary
from sparsefront_kernels.bench.rows import COLUMNS, LATER, Results, Row, read_rows, write_rows
from sparsefront_kernels.bench.run import Run
from sparsefront_kernels.bench.timing import time_calls

GATHERED = family_masks("gathered")


def row(**changed):
    """A row as a run writes it."""
    plain = Row(
        family="gathered",
        kernel="gathered_sm90",
        pattern="vector_wise",
        granularity=128,
        distribution="equal",
        mask_settings="",
        group_m=0,
        dtype="fp16",
        shape="M17",
        m=4096,
        k=4096,
        n=4096,
        sparsity=0.5,
        asked_sparsity=0.5,
        layout="feature_major",
        latency_us=100.0,
        p20_us=99.0,
        p80_us=101.0,
        samples=20,
        predicted_us=90.0,
        dense_us=200.0,
        baseline="cusparselt 4",
        baseline_us=150.0,
        speedup=2.0,
        roofline_fraction=0.5,
        relative_error=1e-4,
        correct=True,
        gpu="GPU",
        torch="2",
        triton="3",
        cuda="13",
        commit="abc",
        date="2026-01-01",
    )
    return dataclasses.replace(plain, **changed)


def test_roofline_is_the_larger_bound():
    rates = Rates(dense_tflops=500.0, copy_gb_per_s=4000.0)
    large = roofline_bound_us(4096, 4096, 4096, density=0.5, weight_bytes=0, element_bytes=2, rates=rates)
    assert large == pytest.approx(2 * 4096**3 * 0.5 / 500e6)
    small_m = roofline_bound_us(1, 4096, 4096, density=0.5, weight_bytes=2**24, element_bytes=2, rates=rates)
    assert small_m == pytest.approx((2**24 + 2 * 8192) / 4e6)


def test_nan_never_passes():
    expected = torch.ones(4, dtype=torch.float64)
    assert relative_error(torch.ones(4), expected) == 0
    assert relative_error(torch.tensor([1.0, 1.0, 1.0, math.nan]), expected) == math.inf


def test_large_products_in_some_rows():
    x, weight = torch.randn(40, 8), torch.randn(6, 8)
    right = (x.double() @ weight.double().t()).float()
    assert reference_product(x, weight).rows is None
    known = reference_product(x, weight, largest=10 * 48)
    assert len(known.rows) == 10 and len(known.rows.unique()) == 10
    assert known.error(right) < 1e-6
    wrong = right.clone()
    wrong[known.rows[3], 2] += 100
    assert known.error(wrong) > 1e-2
    unseen = next(row for row in range(40) if row not in known.rows)
    wrong = right.clone()
    wrong[unseen, 0] = math.nan
    assert known.error(wrong) == math.inf


def test_older_files_are_read(tmp_path):
    old = [name for name in COLUMNS if name not in LATER]
    (tmp_path / "old.csv").write_text(",".join(old) + "\n" + ",".join("1" for _ in old) + "\n")
    (found,) = read_rows(tmp_path / "old.csv")
    assert found == dict.fromkeys(old, "1") | dict.fromkeys(LATER, "")


def as_read(*rows, folder):
    write_rows(folder / "rows.csv", rows)
    return read_rows(folder / "rows.csv")


def test_comparison_names_what_became_slower(tmp_path):
    before = as_read(row(), row(m=256, speedup=1.0), row(m=1, speedup=3.0), folder=tmp_path)
    after = as_read(row(speedup=1.6), row(m=256, speedup=1.02), row(m=8, speedup=1.0), folder=tmp_path)
    assert [round(change.ratio, 3) for change in changes(before, after)] == [1.25, 0.98]
    text, worse = report(before, after)
    assert worse
    assert "slower x1.25: kernel=gathered_sm90" in text and "no longer measured" in text and "m=256" not in text
    assert report(before, before) == ("3 in both, geomean x1.000", False)


def test_summary_takes_geometric_means():
    text = summary([row(), row(shape="M20", speedup=8.0, roofline_fraction=0.125), row(shape="M9", correct=False)])
    assert "x4.00 over dense, roofline 0.25, 2 shapes" in text
    assert "WRONG: gathered_sm90 M9" in text


def test_a_plan_is_several_runs(tmp_path):
    path = tmp_path / "all.plan"
    path.write_text("# first\n--m 256 --kernels 'gathered_sm90*'  # fast\n\n--shapes 'small_m*'\n")
    assert command._lines(path) == [["--m", "256", "--kernels", "gathered_sm90*"], ["--shapes", "small_m*"]]
    path.write_text("--m 3\n")
    with pytest.raises(ValueError, match="no shape passes the filters"):
        command.main(["--plan", str(path)])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--sparsity", "50"],
        ["--dtype", "int8"],
        ["--peers", "mkl"],
        ["--batch", "3"],
        ["--layout", "diagonal"],
        ["--peer-shapes", "mkl=M1"],
        ["--peer-shapes", "triton_bsr"],
        ["--shape", "77x4096"],
        ["--family", "dense"],
        ["--mask-settings", "whole"],
    ],
)
def test_command_line_rejects_bad_values(arguments, capsys):
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert "error" in capsys.readouterr().err


def test_a_cpu_times_nothing():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(RuntimeError, match="timed on a CUDA device"):
        time_calls([lambda: None])
    with pytest.raises(RuntimeError, match="timed on a CUDA device"):
        command.main(["--m", "256"])


@pytest.mark.gpu
def test_small_run_is_right(tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    plan = Plan(
        shapes=tuple(chosen_shapes(["M9"])),
        dtypes=("fp16", "bf16", "fp32", "tf32"),
        sparsities=(0.5,),
        granularities=(32,),
        distributions=("uneven",),
        peers=tuple(PEERS),
        chosen=Chosen((), ("row_major", "feature_to_row")),
        tune=True,
        samples=3,
        masks=Masks(GATHERED),
    )
    results = Results.opened(tmp_path / "rows.csv", gpu=torch.cuda.get_device_name(), commit="test", append=False)
    measuring = Run(results, print)
    measuring.measure(plan)
    rows = measuring.rows
    assert len(read_rows(tmp_path / "rows.csv")) == len(rows)
    wrong = {(one.kernel, one.dtype): one.relative_error for one in rows if not one.correct}
    # cuSPARSE's bf16 exceeds the bound by a little (6.1e-3 of 5e-3); the benchmark says so and does not time it.
    assert wrong.keys() <= {("cusparse_csr", "bf16")}, wrong
    assert all(one.latency_us > 0 and one.dense_us > 0 for one in rows if one.correct)
    assert {"cublas", "cusparselt", "triton_bsr", "gathered_triton"} <= {one.kernel for one in rows}
    assert {one.layout for one in rows if one.family == "gathered"} == {"row_major", "feature_to_row"}
    assert {one.dtype for one in rows} == set(DTYPES)


@pytest.mark.parametrize(
    ("names", "filters", "message"),
    [
        (["M99"], {}, "no shape is called M99; there are M1, M2"),
        ([], {"m": [3]}, "no shape passes the filters"),
        (["M1"], {"batch": [8]}, "no shape passes the filters"),
    ],
)
def test_filters_that_fit_nothing_are_rejected(names, filters, message):
    with pytest.raises(ValueError, match=message):
        chosen_shapes(names, **filters)


@pytest.mark.parametrize("text", ["77x4096", "0x8x8", "8*8*8", "8x8x8x8", "8x-8x8", ""])
def test_shapes_that_are_none(text):
    with pytest.raises(ValueError, match="a shape is MxKxN in whole numbers"):
        any_shape(text)
