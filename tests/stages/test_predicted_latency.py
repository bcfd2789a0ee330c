"""The question before training: can this pattern win here at all? Answered from tables that are made up."""

import pytest
import torch
from sparsefront_kernels.performance_model import PerformanceModel
from sparsefront_kernels.performance_model.latency_table import LatencyTable, Measured

from sparsefront.config.validate import validate
from sparsefront.stages import predicted_latency
from sparsefront.stages.predicted_latency import (
    predict_loss,
    warn_where_nothing_wins,
)

VECTORS = ["pattern=vector_wise", "granularity=64", "sparsity=0.5", "measure.dtype=fp32"]


def table(speedup: float, *, largest: int = 1 << 22, large_speedup: float | None = None) -> PerformanceModel:
    """Measurements alone: dense times over `speedup`, for weights of 256 · 256 elements up to `largest` and every usual M."""
    ends = {256 * 256: speedup, largest: speedup if large_speedup is None else large_speedup}
    kernel = "gathered_sm90"
    rows = [
        Measured("gathered", unit, "equal", dtype, m, size // 256, 256, sparsity, kernel, size / gain, float(size))
        for unit in (64, 128)
        for dtype in ("fp32", "fp16")
        for m in (16, 1 << 20)
        for size, gain in ends.items()
        for sparsity in (0.25, 0.9)
    ]
    return measured(rows, {"commit": "abc", "date": "2026-01-31"})


def measured(rows, made_with) -> PerformanceModel:
    return PerformanceModel("Some GPU", None, LatencyTable("Some GPU", made_with, tuple(rows)))


@pytest.fixture
def experiment(composed):
    return lambda *overrides: validate(composed(*VECTORS, *overrides))


def test_prediction_says_what_it_is(experiment):
    text = predict_loss(experiment(), table(0.8))
    assert "\n" not in text and text.startswith("prediction, not measurement: ")
    assert "pattern vector_wise at sparsity 0.5" in text and "(0.80x)" in text
    assert "none of 24 pruned layers is expected to beat dense" in text
    assert "table of Some GPU, measurements of 2026-01-31 at commit abc" in text


def test_silent_where_one_layer_may_win(experiment):
    assert predict_loss(experiment(), table(1.01)) is None
    assert predict_loss(experiment(), table(0.5, largest=256 * 1024, large_speedup=1.01)) is None, "the MLP wins"
    assert predict_loss(experiment(), table(1.0)) is not None, "as fast as dense is no win"


SILENT = {
    "not swapped": ["kernel=none"],
    "the reference": ["kernel=reference"],
    "forced": ["kernel=sparse", "kernel.family=gathered"],
    "no swap stage": ["stages=[dense,prune,recover,export]"],
    "dense": ["pattern=dense", "granularity=null"],
    "element-wise": ["pattern=element_wise", "granularity=null"],
    "n:m": ["pattern=n_m", "granularity=null"],
    "2:4 inside tiles": ["pattern=tile_2_4"],
    "whole outputs": ["pattern=channel", "granularity=null"],
}


@pytest.mark.parametrize("overrides", SILENT.values(), ids=SILENT.keys())
def test_nothing_known_says_nothing(experiment, overrides):
    assert predict_loss(experiment(*overrides), table(0.1)) is None


@pytest.fixture
def on_a_gpu(experiment, monkeypatch):
    """A validated experiment that believes in a GPU."""
    tried = experiment("measure.device=cpu")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    monkeypatch.setattr(type(tried.measure), "torch_device", property(lambda self: torch.device("cuda")))
    return tried


def test_one_warning_for_a_gpu(on_a_gpu, monkeypatch, caplog):
    monkeypatch.setattr(predicted_latency, "performance_model", {"Some GPU": table(0.8)}.get)
    warn_where_nothing_wins(on_a_gpu)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.messages[0].startswith("prediction, not measurement")
