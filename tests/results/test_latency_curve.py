"""Curves of results: their points in order, where sparse wins, and what the page and the terminal say."""

import pytest
from rich.console import Console

from sparsefront.results.latency_table import curve_lines, curve_points, wins_text, won_batch_sizes
from sparsefront.results.page.run import write_run_page
from sparsefront.results.record import Result
from sparsefront.results.tables import run_table


def point(batch_size, length, speedup):
    return {
        "batch_size": batch_size,
        "sequence_length": length,
        "latency_dense_ms": 2.0 * batch_size,
        "latency_sparse_ms": 2.0 * batch_size / speedup,
        "speedup": speedup,
        "speedup_low": speedup - 0.05,
        "speedup_high": speedup + 0.05,
        "dense_variant": "cuda_graph+fused_qkv",
        "kernels": {"gathered_sm90": 5},
        "sparse_flops_share": 0.75,
    }


@pytest.fixture
def result(make_result):
    """Own size 32 x 128, a win; batch 1 loses, batch 8 wins too little; at length 384 nothing wins."""
    curve = [point(1, 128, 0.6), point(8, 128, 1.02), point(128, 128, 1.4), point(1, 384, 0.5), point(32, 384, 0.9)]
    return make_result(
        batch_size=32,
        sequence_length=128,
        speedup=1.2,
        speedup_low=1.1,
        speedup_high=1.3,
        curve=curve,
        latency_device="cuda",
    )


def test_a_win_needs_its_whole_interval(result):
    assert won_batch_sizes(result) == {128: [32, 128], 384: []}
    assert wins_text(result) == "length 128: at batch 32, 128; length 384: at no batch size"


def test_a_win_needs_sparse_kernels_and_more_than_noise(result):
    by_noise = {"speedup": 1.008, "speedup_low": 1.004, "speedup_high": 1.009}
    curve = [point(1, 128, 1.5) | {"sparse_flops_share": 0.2}, point(8, 128, 1.0) | by_noise]
    assert [one.wins for one in curve_points(result.with_values({"curve": curve}))] == [False, False, True]


def test_the_table_holds_every_point(result, make_result):
    lines = curve_lines(result)
    assert [line["batch"] for line in lines] == ["1", "8", "32", "128", "1", "32"]
    assert lines[1]["speedup"] == "1.02×" and lines[1]["kernels, or not measured because"] == "5 × gathered_sm90"
    assert lines[2]["kernels, or not measured because"] == "1 × gathered_reference"
    assert curve_lines(make_result()) == []


def test_page_and_terminal_tell_it(result, make_result, tmp_path):
    page = write_run_page(result, tmp_path / "page.html", title="run").read_text()
    assert "Latency over batch size" in page and "cuda_graph+fused_qkv" in page
    assert "sparse wins, with its whole interval, length 128: at batch 32, 128" in page
    assert (
        "Latency over batch size" not in write_run_page(make_result(), tmp_path / "page.html", title="run").read_text()
    )
    console = Console(width=200, record=True)
    console.print(run_table(result))
    assert "at batch 32, 128" in console.export_text()


def test_a_curve_survives_json_and_csv(result):
    assert Result.from_json(result.to_json()) == result
    cells = {name: "" if value is None else str(value) for name, value in result.flat().items()}
    assert Result.from_flat(cells) == result
