"""The whole program on digits: a latency in, a model out."""

import json
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig

from sparsefront.errors import InvalidSetting
from sparsefront.export.checkpoint import read_export
from sparsefront.latency_search import table
from sparsefront.results.record import Result

MIXED = ["pattern=mixed", "pattern.candidates=[n_m,vector_wise:8]", "pattern.sparsities=[0.5,0.75]", "sparsity=0.75"]
SEARCH = [
    "allocation=latency_search",
    "allocation.generations=3",
    "allocation.batches=2",
    "model.dim=32",
    "model.depth=2",
    "recipe.lr=1e-9",  # the weights are as good as drawn: what is found does not depend on how versions of torch round
]


def outputs() -> Path:
    return Path(HydraConfig.get().runtime.output_dir)


@pytest.mark.parametrize("schedule", ["one_shot", "iterative", "gradual"])
def test_run_with_a_speedup(full_run, run, clock, schedule):
    make = full_run if schedule == "one_shot" else run
    row = make(*MIXED, *SEARCH, "allocation.speedup=1.6", f"schedule={schedule}")
    given = row.sparsity.pattern_per_layer
    assert set(given.values()) - {"dense"} == {"n_m", "vector_wise:8"}  # or this looks at one pattern
    assert row.speed.latency_predicted_ms is not None and row.speed.latency_sparse_ms is not None
    assert row.choice.pattern == "mixed" and row.choice.allocation == "latency_search"
    assert {layer for layer, sparsity in row.sparsity.sparsity_per_layer.items() if not sparsity} == {
        layer for layer, pattern in given.items() if pattern == "dense"
    }
    left_dense = {layer: "it keeps every weight" for layer, pattern in given.items() if pattern == "dense"}
    assert row.sparsity.dense_layers == left_dense and set(row.sparsity.dense_weight_shares) == set(left_dense)
    assert set(row.sparsity.sparsity_per_layer.values()) <= {0.0, 0.5, 0.75}
    export = read_export(outputs() / "checkpoint")
    families = {"n_m": "n_m", "vector_wise:8": "gathered", "dense": "dense"}
    assert {layer: record.family for layer, record in export.manifest.layers.items()} == {
        layer: families[pattern] for layer, pattern in given.items()
    }
    assert {layer: record.pattern or "dense" for layer, record in export.manifest.layers.items()} == given
    assert row.kernels.sparse_flops_share > 0
    assert Result.from_json(row.to_json()) == row


def test_latencies_share_measurements(run, clock, monkeypatch):
    made, measure = [], table.measure_times

    def noted(*arguments, **more):
        made.append(arguments)
        return measure(*arguments, **more)

    monkeypatch.setattr("sparsefront.latency_search.search.measure_times", noted)
    slow, fast = (run(*MIXED, *SEARCH, f"allocation.speedup={speedup}") for speedup in (1.1, 1.5))
    assert len(made) == 1
    run(*MIXED, *SEARCH, "allocation.speedup=1.1", "seed=1", "recipe.lr=2e-3")
    assert len(made) == 1, "another network of this architecture"
    run(*MIXED, *SEARCH, "allocation.speedup=1.1", "model.depth=1")
    assert len(made) == 2
    assert slow.sparsity.sparsity_achieved < fast.sparsity.sparsity_achieved
    assert slow.speed.latency_predicted_ms > fast.speed.latency_predicted_ms


def test_search_writes_what_it_did(run, clock, tmp_path):
    row = run(*MIXED, *SEARCH, "allocation.latency_ms=0.3")
    (file,) = (tmp_path / "cache" / "prune").glob("*/search.json")
    found = json.loads(file.read_text())
    assert found["latency_predicted_ms"] == row.speed.latency_predicted_ms <= found["latency_budget_ms"] == 0.3
    assert found["corrections"] and found["assignments_evaluated"] > 0
    assert found["held_out_loss"]["after"] <= found["held_out_loss"]["before"]
    assert {layer: choice["pattern"] for layer, choice in found["layers"].items()} == row.sparsity.pattern_per_layer


def test_latency_out_of_reach(run, clock):
    with pytest.raises(InvalidSetting, match=r"^allocation\.latency_ms=0\.01: out of reach: .*need 0\.\d+ ms at least"):
        run(*MIXED, *SEARCH, "allocation.latency_ms=0.01")
