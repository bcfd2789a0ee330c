"""From results to a table of layer times, as a user calls it.

Curves of results: their points in order, where sparse wins, and what the page and the terminal say.
"""

import re
from pathlib import Path

import pytest

from sparsefront.allocation.latency_aware import LatencyAware, read_table
from sparsefront.patterns.n_m import NM
from sparsefront.results.latency_table import curve_lines, curve_sizes, is_win, main, wins_text, won_batch_sizes
from sparsefront.results.store import append_result, write_result_json

ON_GPU = {
    "gpu": "NVIDIA H200",
    "latency_device": "cuda",
    "dtype": "fp16",
    "allocation": "per_layer",
    "kernel_mode": "auto",
}
ON_GPU |= {"pattern": "n_m", "pattern_parameters": {"n": None, "m": None}, "granularity": None}


def layer(dense: float, chosen: str, latency_us: float, **more: object) -> dict:
    candidates = {"dense_linear": dense, "n_m_rebuilt": 99.0}
    return {"candidates": candidates, "chosen": chosen, "latency_us": latency_us} | more


@pytest.fixture
def sweep(tmp_path: Path, make_result) -> Path:
    """Two levels of two layers; the second layer runs dense at 0.5."""
    times = {
        0.5: {"fc1": layer(10.0, "n_m_rebuilt", 8.0, m=64, k=16, n=32), "fc2": layer(6.0, "dense_linear", 6.0)},
        0.75: {"fc1": layer(10.5, "n_m_rebuilt", 4.0, m=64, k=16, n=32), "fc2": layer(6.2, "n_m_rebuilt", 5.0)},
    }
    for level, layers in times.items():
        result = make_result(run_id=f"at {level}", sparsity_target=level, kernel_per_layer=layers, **ON_GPU)
        write_result_json(tmp_path / "sweep" / str(level) / "row.json", result)
    return tmp_path / "sweep"


def test_largest_speedup_can_be_had(sweep, tmp_path):
    main([str(sweep), "-o", str(tmp_path / "table.csv")])
    allocation = LatencyAware(str(tmp_path / "table.csv"), 1.777)
    assert allocation.check_layers(NM(), {"fc1": (32, 16), "fc2": (16, 32)}, 0.75) is None


def test_several_results_give_the_lower_median(sweep, tmp_path, make_result):
    for number, latency_us in enumerate((3.0, 5.0, 7.0)):
        layers = {"fc1": layer(20.0, "n_m_rebuilt", latency_us)}
        result = make_result(run_id=str(number), seed=number, sparsity_target=0.75, kernel_per_layer=layers, **ON_GPU)
        append_result(tmp_path / "again.csv", result)
    main([str(sweep), str(tmp_path / "again.csv"), "-o", str(tmp_path / "table.csv")])
    assert read_table(str(tmp_path / "table.csv")).times["fc1"] == {0.0: 20.0, 0.5: 8.0, 0.75: 4.0}


@pytest.mark.parametrize(
    ("field", "other", "given"),
    [
        ("pattern", "block_wise", "n_m"),
        ("model", "bert", "vit_small"),
        ("dtype", "bf16", "fp16"),
        ("gpu", "Tesla T4", "NVIDIA H200"),
        ("batch_size", 128, "64"),
        ("kernel_mode", "sparse", "auto"),
        ("pattern_parameters", {"n": None, "m": 16}, '{"m": null, "n": null}'),
    ],
)
def test_differing_results_are_rejected(sweep, tmp_path, make_result, capsys, field, other, given):
    layers = {"fc1": layer(10.0, "n_m_rebuilt", 1.0)}
    changed = ON_GPU | {field: other}
    write_result_json(
        sweep / "other" / "row.json", make_result(sparsity_target=0.875, kernel_per_layer=layers, **changed)
    )
    table = tmp_path / "table.csv"
    assert main([str(sweep), "-o", str(table)]) == 1 and not table.exists()
    assert f"results={field}: results differ" in (said := capsys.readouterr().err) and f"--only '{field}=" in said
    assert main([str(sweep), "-o", str(table), "--only", f"{field}={given}"]) == 0
    assert 0.875 not in read_table(str(table)).times["fc1"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"latency_device": "cpu", "gpu": None}, "measured on a CPU.*measure.device=cuda"),
        ({"kernel_per_layer": {}, "kernel_mode": "none"}, r"no layer times \(pattern=n_m, kernel=none\)"),
        ({"allocation": "global_threshold"}, "allocation=global_threshold: .*use allocation=per_layer"),
        ({"kernel_per_layer": {"fc1": {"chosen": "n_m_rebuilt"}}}, "no time of layer fc1"),
    ],
    ids=["cpu", "masked", "allocation", "untimed"],
)
def test_results_without_layer_times(tmp_path, make_result, capsys, changes, reason):
    layers = {"kernel_per_layer": {"fc1": layer(10.0, "n_m_rebuilt", 8.0)}}
    write_result_json(tmp_path / "row.json", make_result(**(ON_GPU | layers | changes)))
    assert main([str(tmp_path), "-o", str(tmp_path / "table.csv")]) == 1
    said = capsys.readouterr().err
    assert re.search(f"left out: run run-0: .*{reason}", said) and "no result gives layer times, of 1 read" in said


def test_a_filter_that_names_no_field(sweep, tmp_path, capsys):
    assert main([str(sweep), "-o", str(tmp_path / "table.csv"), "--only", "patern=n_m"]) == 1
    assert "--only=patern=n_m: is FIELD=VALUE" in capsys.readouterr().err


def point(batch_size, length, speedup):
    dense = {"batch_size": batch_size, "sequence_length": length, "latency_dense_ms": 2.0 * batch_size}
    ends = {"speedup": speedup, "speedup_low": speedup - 0.05, "speedup_high": speedup + 0.05}
    ran = {"dense_variant": "cuda_graph+fused_qkv", "kernels": {"gathered_sm90": 5}, "sparse_flops_share": 0.75}
    return dense | ends | ran | {"latency_sparse_ms": 2.0 * batch_size / speedup}


@pytest.fixture
def result(make_result):
    """Own size 32 x 128, a win; batch 1 loses, batch 8 wins too little; at length 384 nothing wins."""
    curve = [point(1, 128, 0.6), point(8, 128, 1.02), point(128, 128, 1.4), point(1, 384, 0.5), point(32, 384, 0.9)]
    own = {"batch_size": 32, "sequence_length": 128, "speedup": 1.2, "speedup_low": 1.1, "speedup_high": 1.3}
    return make_result(**own, curve=curve, latency_device="cuda")


def test_a_win_needs_its_whole_interval(result):
    assert won_batch_sizes(result) == {128: [32, 128], 384: []}
    assert wins_text(result) == "length 128: at batch 32, 128; length 384: at no batch size"


def test_win_needs_sparse_kernels(result):
    by_noise = {"speedup": 1.008, "speedup_low": 1.004, "speedup_high": 1.009}
    curve = [point(1, 128, 1.5) | {"sparse_flops_share": 0.2}, point(8, 128, 1.0) | by_noise]
    assert [is_win(size) for size in curve_sizes(result.with_values({"curve": curve}))] == [False, False, True]


def test_the_table_holds_every_point(result, make_result):
    lines = curve_lines(result)
    assert [line["batch"] for line in lines] == ["1", "8", "32", "128", "1", "32"]
    assert lines[1]["speedup"] == "1.02×" and lines[1]["kernels, or not measured because"] == "5 × gathered_sm90"
    assert lines[2]["kernels, or not measured because"] == "1 × gathered_reference"
    assert curve_lines(make_result()) == []
