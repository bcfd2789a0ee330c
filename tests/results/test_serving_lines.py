"""`serving.json` in tables and pages, and when a pruning pays for itself."""

import json
from dataclasses import asdict

import pytest

from sparsefront.__main__ import compare
from sparsefront.measure.serving import Served
from sparsefront.results.packed import SERVING
from sparsefront.results.record import Cost
from sparsefront.results.serving import Network, payback_text, read_all_serving
from sparsefront.results.store import write_result_json


def network(joules_per_call: float | None, *rates: Served) -> dict:
    within = [one.rate for one in rates if one.p99_ms is not None and one.p99_ms <= 20]
    energy = {"joules_per_call": joules_per_call, "samples_of_energy": 10, "idle_watts": None}
    energy["no_energy"] = "NVML: Not Supported" if joules_per_call is None else None
    measured = {"execution_mode": "cuda_graph", "rates": [asdict(one) for one in rates]}
    return measured | energy | {"requests_per_s_at_p99": max(within, default=None)}


SLOW = network(20.0, Served(100.0, 900, 3.0, 8.0, 15.0, 99.5, 1.5), Served(400.0, 900, not_reached="the queue grew"))
FAST = network(10.0, Served(100.0, 900, 2.0, 4.0, 6.0, 99.5, 1.5), Served(400.0, 900, 4.0, 9.0, 18.5, 399.0, 6.0))
SERVED = {"device": "cuda", "gpu": "H200", "p99_ms": 20, "dense": SLOW, "sparse": FAST}
ENERGY = {"prune_joules": 1000.0, "recover_joules": 9000.0}


@pytest.fixture
def served_run(tmp_path, make_result):
    result = make_result(gpu="H200", latency_device="cuda", **ENERGY)
    write_result_json(tmp_path / "runs" / "0" / "row.json", result)
    (tmp_path / "runs" / "0" / SERVING).write_text(json.dumps(SERVED))
    return result


def test_comparison_has_served_requests(served_run, tmp_path, capsys):
    assert compare([str(tmp_path / "runs"), f"out={tmp_path}"]) == 0
    page = (tmp_path / "compare.html").read_text()
    for text in (page, capsys.readouterr().out):
        whole = " ".join(text.replace("│", " ").split())
        assert "dense 100; pruned 400 (p99 ≤ 20 ms)" in whole
        assert "pruned 4.00 / 9.00 / 18.5 at 400/s" in whole and "3.00 / 8.00 / 15.0 at 100/s" in whole
        assert "dense 2000; pruned 1000" in whole and "after 10,000 requests" in whole
    assert '{"name":"_requests_per_s","constant":400.0}' in page


@pytest.mark.parametrize("content", ["{", "[]", '{"device": "cuda"}', json.dumps(SERVED | {"p99_ms": "20"})])
def test_damaged_file_is_left_out(served_run, tmp_path, caplog, content):
    (tmp_path / "runs" / "0" / SERVING).write_text(content)
    assert read_all_serving([served_run], lambda result: tmp_path / "runs" / "0") == {}
    assert f"{SERVING}: not shown: " in caplog.text


@pytest.mark.parametrize(
    ("cost", "dense", "sparse", "text"),
    [
        (ENERGY, SLOW, FAST, "after 10,000 requests"),
        (ENERGY, FAST, SLOW, "never: it saves no energy"),
        ({"no_joules": "recover: resumed after a kill"}, SLOW, FAST, "not known (recover: resumed after a kill)"),
        (ENERGY, SLOW, network(None), "not known (NVML: Not Supported)"),
        ({}, SLOW, FAST, "not known (joules of the training were not measured)"),
    ],
)
def test_pruning_pays_after_requests(cost, dense, sparse, text):
    assert payback_text(Cost(**cost), *map(Network.model_validate, (dense, sparse))) == text
