"""The search for the fastest way to run a network."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from sparsefront.measure import execution_mode, fastest, search_time
from sparsefront.measure.execution_mode import EXECUTION_MODES
from sparsefront.measure.search_time import SearchTime, searching
from sparsefront.measure.settings import VARIANTS

CPU = torch.device("cpu")


class Net(nn.Module):
    """Takes `seconds` of the clock for each forward pass."""

    def __init__(self, clock, seconds=0.0, scale=1.0):
        super().__init__()
        self.clock = clock
        self.one, self.two, self.seconds, self.scale = nn.Linear(8, 4), nn.Linear(8, 4), seconds, scale

    def forward(self, x):
        self.clock.sleep(self.seconds)
        return self.scale * (self.one(x) - self.two(x))


@pytest.fixture
def net(clock):
    torch.manual_seed(0)
    return Net(clock, 0.004).eval()


@pytest.fixture
def inputs():
    return {"x": torch.randn(6, 8)}


def as_another(net, seconds, scale=1.0):
    """The network's function, slower or faster or wrong."""
    other = Net(net.clock, seconds, scale).eval()
    other.load_state_dict(net.state_dict())
    return other


def find(net, inputs, device=CPU, budget=None, **settings):
    settings = {"execution_modes": EXECUTION_MODES, "variants": VARIANTS, "dtype": torch.float32} | settings
    with searching(budget or SearchTime(60.0)):
        search = fastest.ExecutionSearch(net, inputs, device=device, **settings)
        search.try_likely()
        search.try_others()
        return search.result()


def test_cpu_tries_variants_eagerly(net, inputs):
    found = find(net, inputs)
    assert {"eager", "eager+fused_qkv"} == set(found.medians_ms)
    assert found.name in found.medians_ms and found.fused is None
    assert {found.not_timed[mode] for mode in EXECUTION_MODES if mode != "eager"} == {"needs a CUDA device"}
    assert found.not_timed["sdpa_flash"] == "needs a CUDA device"
    assert "fewer than two convolutions" in found.not_timed["channels_last"]
    assert found.not_timed["fused_graph"] == "no fused graph of this network"
    torch.testing.assert_close(found.fastest.call(), net(**inputs))


def test_faster_fused_graph_is_the_fastest(net, inputs):
    found = find(net, inputs, fuse=lambda given, inputs: as_another(given, 0.0))
    assert found.name == found.fused.name == "eager+fused_graph" and found.variants == ("fused_graph",)
    torch.testing.assert_close(found.fastest.call(), net(**inputs))


def test_variant_is_compared_in_turn(net, inputs, monkeypatch):
    """As on a GPU that slows down: each is timed slower than the one before, whatever it is."""
    real, seconds = fastest.fastest_execution_mode, itertools.count(1)

    def slower(*given, **more):
        found = real(*given, **more)
        return replace(found, medians_ms={found.name: 1e3 * next(seconds)})

    monkeypatch.setattr(fastest, "fastest_execution_mode", slower)
    taken = {"fused_qkv": 0.002, "channels_last": 0.0}
    monkeypatch.setattr(fastest, "make_variant", lambda name, given, inputs, fuse: as_another(given, taken[name]))
    assert set(find(net, inputs, variants=[*taken]).variants) == {*taken}, "the second is added to the first"


def test_slower_fused_graph_is_timed_beside(net, inputs):
    found = find(net, inputs, fuse=lambda given, inputs: as_another(given, 0.02))
    assert "fused_graph" not in found.name
    assert found.fused.name == "eager+fused_graph" and found.medians_ms[found.fused.name] > 20


def test_a_wrong_variant_is_rejected(net, inputs):
    found = find(net, inputs, fuse=lambda given, inputs: as_another(given, 0.0, scale=1.5))
    assert "against eager" in found.not_timed["eager+fused_graph"] and found.fused is None


@pytest.fixture
def pretend_gpu(monkeypatch):
    """Every mode runs eagerly on the CPU, and takes as long as `seconds` says when it is first made."""
    made = []

    def pretend(seconds):
        real_timer = execution_mode.time_interleaved

        def call_in_mode(name, net, static):
            made.append((name, type(net).__name__))
            clock[0] += seconds.get(name, 0.0)
            return torch.inference_mode()(lambda: net(**static))

        clock = [0.0]
        monkeypatch.setattr(search_time, "working_time", lambda: clock[0])
        monkeypatch.setattr(execution_mode, "call_in_mode", call_in_mode)
        for module in (execution_mode, fastest):
            monkeypatch.setattr(
                module, "time_interleaved", lambda functions, *, device, **rest: timed(real_timer, functions, **rest)
            )
        return torch.device("cuda"), made

    def timed(real_timer, functions, **rest):
        return {name: [float(position)] for position, name in enumerate(functions)}

    return pretend


def test_spent_time_leaves_out_the_longest(net, inputs, pretend_gpu):
    device, made = pretend_gpu({"compile_cuda_graph": 20.0})
    modes = ["eager", "compile_cuda_graph", "max_autotune_cuda_graph"]
    found = find(net, inputs, device=device, execution_modes=modes, variants=[], budget=SearchTime(45.0))
    assert ("max_autotune_cuda_graph", "Net") not in made
    assert found.not_timed["max_autotune_cuda_graph"] == (
        "not tried: about 50 s are needed, 25 s of the search are left"
    )


@pytest.mark.parametrize("recorded", [True, False])
def test_spent_budget_leaves_likely_versions_in(net, inputs, pretend_gpu, monkeypatch, recorded):
    """The best unfused form compiled, and the fused graph, which is compiled too where it cannot be recorded."""
    device, made = pretend_gpu({})
    monkeypatch.setattr(fastest, "make_variant", lambda name, given, inputs, fuse: as_another(given, 0.0))
    modes = ["eager", *(["cuda_graph"] if recorded else []), "compile_cuda_graph", "max_autotune_cuda_graph"]
    variants = ["fused_qkv", "fused_graph", "sdpa_flash"]
    budget = SearchTime(0.0)
    found = find(net, inputs, device=device, execution_modes=modes, variants=variants, budget=budget)
    likely = {"eager", "eager+fused_qkv", "compile_cuda_graph+fused_qkv", "eager+fused_graph"}
    likely |= {"cuda_graph", "cuda_graph+fused_graph"} if recorded else {"compile_cuda_graph+fused_graph"}
    assert set(found.medians_ms) == likely
    late = "not tried: about 0 s are needed, 0 s of the search are left"
    assert all(why.endswith(" 0 s of the search are left") for why in budget.left_out.values())
    assert {"fused_qkv+sdpa_flash", "fused_graph+sdpa_flash", "compile_cuda_graph"} <= set(budget.left_out)
    assert found.not_timed.get("compile_cuda_graph+fused_graph") == (late if recorded else None)


def test_original_is_compiled_on_failure(net, inputs, pretend_gpu, monkeypatch):
    device, _ = pretend_gpu({})
    real = execution_mode.call_in_mode

    def call_in_mode(name, form, static):
        if name == "compile_cuda_graph" and form is not net:
            raise RuntimeError("cannot be compiled")
        return real(name, form, static)

    monkeypatch.setattr(execution_mode, "call_in_mode", call_in_mode)
    settings = {"execution_modes": ["eager", "compile_cuda_graph"], "variants": ["fused_qkv"]}
    found = find(net, inputs, device=device, budget=SearchTime(0.0), **settings)
    assert set(found.medians_ms) == {"eager", "eager+fused_qkv", "compile_cuda_graph"}
    assert "cannot be compiled" in found.not_timed["compile_cuda_graph+fused_qkv"]
