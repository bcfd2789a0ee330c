"""Execution modes: eager everywhere, graphs and compiled code on a GPU only, none of them trusted unchecked."""

import gc
import weakref

import pytest
import torch
from torch import nn

from sparsefront.measure import execution_mode
from sparsefront.measure.execution_mode import EXECUTION_MODES, fastest_execution_mode

CPU = torch.device("cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(x)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def inputs():
    return {"x": torch.randn(6, 8, generator=torch.Generator().manual_seed(0))}


def test_cpu_runs_eager_and_says_why(net, inputs):
    found = fastest_execution_mode(net, inputs, execution_modes=list(EXECUTION_MODES), device=CPU, dtype=torch.float32)
    assert found.name == "eager"
    assert found.not_timed == {name: "needs a CUDA device" for name in EXECUTION_MODES if name != "eager"}
    assert list(found.medians_ms) == ["eager"]
    torch.testing.assert_close(found.call(), net(**inputs))


def test_inputs_are_copied(net, inputs):
    found = fastest_execution_mode(net, inputs, execution_modes=["eager"], device=CPU, dtype=torch.float32)
    expected = net(**inputs)
    inputs["x"].zero_()
    torch.testing.assert_close(found.call(), expected)


@pytest.fixture
def pretend_gpu(monkeypatch):
    """Let the CPU try every execution mode with `make` instead of the real one, timed by the CPU's clock."""

    def pretend(make):
        real_timer = execution_mode.time_interleaved
        monkeypatch.setattr(execution_mode, "call_in_mode", lambda name, net, static: make(name, net, static))
        monkeypatch.setattr(
            execution_mode,
            "time_interleaved",
            lambda functions, *, device, **rest: real_timer(functions, device=CPU, **rest),
        )
        return torch.device("cuda")

    return pretend


def eager_of(net, static):
    return torch.inference_mode()(lambda: net(**static))


def test_stale_execution_mode_is_not_used(net, inputs, pretend_gpu):
    def make(name, net, static):
        eager = eager_of(net, static)
        first = eager().clone()
        return {"eager": eager, "cuda_graph": lambda: first, "compile": lambda: eager() * 1.5}[name]

    found = fastest_execution_mode(
        net, inputs, execution_modes=["eager", "cuda_graph", "compile"], device=pretend_gpu(make), dtype=torch.float32
    )
    assert found.name == "eager"
    assert all("against eager" in found.not_timed[name] for name in ("cuda_graph", "compile"))
    torch.testing.assert_close(found.call(), net(**inputs))  # the check has put the inputs back


def test_failed_execution_mode_is_replaced(net, inputs, pretend_gpu):
    def make(name, net, static):
        if name == "compile":
            raise NotImplementedError("no backend\nwith a long trace")
        return eager_of(net, static)

    found = fastest_execution_mode(
        net, inputs, execution_modes=["compile", "cuda_graph"], device=pretend_gpu(make), dtype=torch.float32
    )
    assert found.name == "cuda_graph"
    assert found.not_timed == {"compile": "NotImplementedError: no backend"}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_every_execution_mode_agrees_on_gpu(net, inputs, dtype):
    device = torch.device("cuda")
    net = net.to(device, dtype)
    inputs = {"x": inputs["x"].to(device, dtype)}
    found = fastest_execution_mode(net, inputs, execution_modes=list(EXECUTION_MODES), device=device, dtype=dtype)
    assert found.not_timed == {}
    assert set(found.medians_ms) == set(EXECUTION_MODES)
    with torch.inference_mode():
        torch.testing.assert_close(found.call(), net(**inputs), rtol=1e-2, atol=1e-2)


def test_recorded_graph_keeps_its_inputs(monkeypatch):
    """A graph replays addresses: memory that nothing else holds would be given to others."""

    class Graph:
        def replay(self) -> None:
            pass

    monkeypatch.setattr(execution_mode, "record", lambda calls, **settings: (Graph(), [call() for call in calls]))
    net, static = nn.Linear(4, 4), {"input": torch.randn(2, 4)}
    held = [weakref.ref(net), weakref.ref(static["input"])]
    replay = execution_mode.call_in_mode("cuda_graph", net, static)
    del net, static
    gc.collect()
    assert all(ref() is not None for ref in held)
    assert replay().shape == (2, 4)
