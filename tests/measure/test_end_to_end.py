"""A pair of networks timed side by side."""

import pytest
import torch
from sparsefront_kernels import FORMATS, entry
from sparsefront_kernels.linear import SparseLinear
from torch import nn
from torch._dynamo.utils import counters

from sparsefront.measure import end_to_end
from sparsefront.measure.end_to_end import (
    describe_pruned,
    find_dense,
    set_decided_versions,
    set_left_dense,
    time_against_dense,
    time_alone,
    time_pair,
)
from sparsefront.measure.settings import Measure
from sparsefront.measure.timers import summarize, time_interleaved


class Layers(nn.Module):
    """As slow as it is deep, by the clock of the tests."""

    clock = None

    def __init__(self, depth, scale=1.0):
        super().__init__()
        self.scale = scale
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        if self.clock is not None:
            self.clock.sleep(1e-3 * len(self.layers))
        return self.scale * x


@pytest.fixture(autouse=True)
def layers_move_the_clock(request, monkeypatch):
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr(Layers, "clock", request.getfixturevalue("clock"))


class WithKernel(Layers):
    """A layer among them that a kernel could run."""

    def __init__(self, depth, scale=1.0):
        super().__init__(depth, scale)
        linear = nn.Linear(32, 32)
        stored = FORMATS["csr"].from_dense(linear.weight.detach(), torch.ones(32, 32, dtype=torch.bool))
        self.kernel = SparseLinear(entry("csr_reference"), stored, None)


def test_both_sides_keep_all_samples():
    settings = Measure(device="cpu", samples=6, repeats=2, warmup=1)
    found = time_pair(Layers(12).eval(), Layers(1).eval(), {"x": torch.randn(256, 128)}, settings)
    assert {side: [len(repeat) for repeat in repeats] for side, repeats in found.samples_ms.items()} == {
        "dense": [6, 6],
        "sparse": [6, 6],
    }
    assert found.dense.latency.n == found.sparse.n == 12
    assert found.speedup.speedup == pytest.approx(12)
    assert found.dense.execution.name == found.execution.name == "eager"
    assert found.not_timed["sparse/cuda_graph"] == "needs a CUDA device"
    assert set(found.medians_ms) == {"dense/eager", "sparse/eager"}
    assert found.dense.fused_latency is None


def test_fastest_low_precision_in_turn():
    settings = Measure(device="cpu", samples=6, repeats=2, warmup=1)
    low = {"int8": Layers(40).eval(), "fp8": Layers(6).eval()}
    inputs = {"x": torch.randn(256, 128)}
    found = time_pair(Layers(12).eval(), Layers(1).eval(), inputs, settings, low=low)
    assert {side: [len(repeat) for repeat in repeats] for side, repeats in found.samples_ms.items()} == {
        side: [6, 6] for side in ("dense", "dense_low", "sparse")
    }
    timed = found.dense.low
    assert timed.precision == "fp8" and timed.net is low["fp8"] and timed.execution.name == "eager"
    assert timed.latency == summarize(sum(found.samples_ms["dense_low"], []))
    assert found.medians_ms.keys() == {"dense/eager", "dense_low/eager", "sparse/eager"}
    assert found.not_timed["dense_low/cuda_graph"] == "needs a CUDA device"
    alone = time_alone(Layers(12).eval(), inputs, settings, low=low)
    assert alone.low.precision == "fp8" and "dense_low" in alone.samples_ms


@pytest.mark.parametrize(
    ("precision", "runs"), [("none", "dense"), ("fp8", "dense_low"), ("int8", "sparse"), ("fp8_static", "sparse")]
)
def test_network_left_dense(precision, runs):
    """In the precision that it runs in, if that is the one that is reported: int8 is not the fastest here."""
    settings, dense = Measure(device="cpu", samples=6, repeats=2, warmup=1), Layers(12).eval()
    low, left = {"int8": Layers(40).eval(), "fp8": Layers(6).eval()}, Layers(3).eval()
    set_left_dense(left, describe_pruned(dense), precision)
    pair = time_pair(dense, left, {"x": torch.randn(256, 128)}, settings, low=low)
    assert pair.samples_ms["sparse"] == pair.samples_ms[runs] and pair.left_dense == (runs != "sparse")
    expected = {"dense": 12.0, "dense_low": 6.0, "sparse": 3.0}[runs]
    assert pair.sparse.median_ms == pytest.approx(expected)
    assert pair.execution is {"dense": pair.dense, "dense_low": pair.dense.low}.get(runs, pair).execution


def test_network_is_timed_beside_pairs(monkeypatch):
    """A slower fused graph takes its turn too: without it a GPU would be cooler, and the sparse network faster."""
    turns = []

    def noted(calls, **how):
        turns.append(set(calls))
        return time_interleaved(calls, **how)

    monkeypatch.setattr(end_to_end, "time_interleaved", noted)
    settings, inputs = Measure(device="cpu", samples=6, repeats=1, warmup=1), {"x": torch.randn(256, 128)}
    dense, fused, sparse = Layers(2, scale=0.0).eval(), Layers(24, scale=0.0).eval(), WithKernel(2, scale=0.0).eval()
    time_pair(dense, sparse, inputs, settings, fuse=lambda net, inputs: fused)
    execution = find_dense(dense, inputs, settings, lambda net, inputs: fused)
    pruned, beside = time_against_dense(sparse, execution, inputs, settings)
    assert pruned.n == beside.n == 6
    assert beside.median_ms == pytest.approx(2), "of the dense versions the fastest counts"
    assert turns == [{"dense", "fused_dense", "sparse"}] * 2


@pytest.mark.parametrize(("depth", "timed"), [(2, ("eager+fused_graph",)), (48, ("eager", "eager+fused_graph"))])
def test_dense_versions_need_no_search(depth, timed, monkeypatch):
    """All that was timed in turn, for another network of the architecture."""
    settings, inputs = Measure(device="cpu", samples=6, repeats=1, warmup=1), {"x": torch.randn(256, 128)}
    fused = Layers(depth, scale=0.0).eval()
    versions = time_alone(Layers(12, scale=0.0).eval(), inputs, settings, fuse=lambda net, inputs: fused).versions
    assert versions == timed
    monkeypatch.setattr(end_to_end, "ExecutionSearch", None)
    decided, fuse = Layers(12, scale=0.0).eval(), lambda net, inputs: fused
    set_decided_versions(decided, inputs, settings, versions, fuse)
    found = find_dense(decided, inputs, settings, fuse)
    assert found.versions == timed and found.fused.fastest.net is fused
    assert torch.equal(found.fastest.call(), torch.zeros(256, 128))


@pytest.mark.parametrize(("depth", "wins"), [(2, True), (48, False)])
def test_sparsity_against_the_fastest_dense(depth, wins):
    """A fused graph that wins is the dense baseline; one that loses is reported beside it."""
    settings = Measure(device="cpu", samples=6, repeats=2, warmup=1)
    dense, x = Layers(12, scale=0.0).eval(), torch.randn(256, 128)
    fused = Layers(depth, scale=0.0).eval()  # the same outputs, zeros, for other work
    sparse = WithKernel(12, scale=0.0).eval()
    found = time_pair(dense, sparse, {"x": x}, settings, fuse=lambda net, inputs: fused)
    assert (found.dense.execution.name == "eager+fused_graph") == wins
    assert found.not_timed["sparse/fused_graph"].startswith("with kernels, blocks are rewritten by the swap")
    timed = [sum(found.samples_ms[side], []) for side in ("dense", "sparse")]
    assert found.dense.latency == summarize(timed[0]) and found.sparse == summarize(timed[1])
    if wins:
        assert found.dense.fused_latency == found.dense.latency
        assert found.speedup.speedup == pytest.approx(1 / 6)
    else:
        assert found.dense.fused_latency.median_ms > found.dense.latency.median_ms


@pytest.mark.gpu
def test_compiled_dense_versions_are_made_again():
    """Networks that are timed beside them compile code of their own, and dense code is not compiled once more."""
    settings = Measure(device="cuda", samples=10, variants=[], autotune_seconds=0.0, execution_modes=["compile"])
    nets = [Layers(depth).eval().to("cuda", torch.float16) for depth in (12, 12, 3)]
    inputs = {"x": torch.randn(32, 128, device="cuda", dtype=torch.float16)}
    versions = time_alone(nets[0], inputs, settings).versions
    assert versions == ("compile",)
    dense = find_dense(nets[1], inputs, settings)
    assert dense.known
    time_against_dense(nets[2], dense, inputs, settings)
    compiled = counters["stats"]["unique_graphs"]
    dense.fastest.call()
    assert counters["stats"]["unique_graphs"] == compiled > 0 and dense.versions == versions
