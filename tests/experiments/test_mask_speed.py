"""The benchmarks of experiments/mask_speed, on a network that is too small to mean anything."""

import argparse
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from sparsefront.datasets.info import DataInfo
from sparsefront.models.bert import Bert
from sparsefront.pruning.masked_weights import MaskedWeights

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "mask_speed"


@pytest.fixture
def script(monkeypatch):
    """script(name) -> the module, which finds its neighbors as when it is run."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"mask_speed_{name}", FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def test_bert_large_has_the_weights_that_the_target_is_about(script):
    shapes = script("measure").layer_shapes("large")
    assert len(shapes) == 144 and sum(n * k for n, k in shapes.values()) == 301_989_888


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("element_wise", [("global_threshold", 0.75)]),
        ("tile_wise", [("global_threshold", 0.75)]),
        ("n_m", [("per_layer", 0.5), ("per_layer", 0.75)]),
    ],
)
def test_each_pattern_is_ranked_together_where_it_can_be(script, pattern, expected):
    cases = script("measure").cases(pattern, "tiny", 1)
    assert [(case.allocation, case.sparsity) for case in cases if not case.settings] == expected


def test_every_pattern_is_among_them(script):
    measure = script("measure")
    assert {"element_wise", "n_m", "vector_wise", "block_wise", "tile_wise"} <= set(measure.PATTERNS)
    for pattern in measure.PATTERNS:
        assert list(measure.cases(pattern, "tiny", 1)), pattern


def test_masks_are_timed_and_a_cpu_is_never_called_a_gpu(script):
    measure = script("measure")
    record = measure.measure(measure.Case("element_wise", "global_threshold", 0.75, "tiny", 2), "cpu", None)
    assert record["device"] == "cpu" and record["threads"] == torch.get_num_threads()
    assert record["weights"] == 393_216 and record["sparsity_achieved"] == 0.75
    assert record["seconds"] > 0 and record["score_seconds"] > 0 and record["peak_extra_ratio"] >= 0


def test_steps_are_timed_with_and_without_masks_and_leave_no_hook(script):
    steps = script("step_overhead")
    arguments = argparse.Namespace(device="cpu", size="tiny", batch=2, length=8, steps=1, rounds=2)
    model = Bert(size="tiny")
    net = model.build(DataInfo("sequence_classification", 2, sequence_length=8))
    layers = model.prunable(net)
    masked = MaskedWeights(net, layers)
    masked.set(steps.random_masks(net, layers))
    built = steps.optimizers(net, fused=True)
    assert list(built) == ["as trained", "fused"]
    record = steps.measure("as trained", built["as trained"], net, masked, arguments)
    assert record["layers"] == 12 and record["device"] == "cpu" and record["precision"] == "fp32"
    assert record["step_ms"] > 0 and record["overhead_p20"] <= record["overhead"] <= record["overhead_p80"]
    assert not built["as trained"]._optimizer_step_post_hooks


def test_records_are_added_only_under_the_same_columns(script, tmp_path):
    records = script("records")
    records.append_records(tmp_path / "made" / "a.csv", [{"x": 1, "y": 2}])
    records.append_records(tmp_path / "made" / "a.csv", [{"x": 3, "y": 4}])
    assert (tmp_path / "made" / "a.csv").read_text() == "x,y\n1,2\n3,4\n"
    with pytest.raises(ValueError, match="has columns x,y, not x,z"):
        records.append_records(tmp_path / "made" / "a.csv", [{"x": 1, "z": 2}])
