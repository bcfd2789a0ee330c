"""Launch parameters that a swap tries: once for like products, the best is used and kept."""

import json
from dataclasses import dataclass, replace

import pytest
import torch
from sparsefront_kernels import FORMATS, KernelEntry, Problem, entry
from sparsefront_kernels.linear import SparseLinear
from sparsefront_kernels.tuning import TunedLaunches, launches, store
from sparsefront_kernels.tuning.store import tuned_kernel

from sparsefront.inference.autotune import Trial
from sparsefront.inference.layers import record_layer
from sparsefront.measure.problems import LayerInput
from sparsefront.measure.timers import MOST, assume_launch, find_untried, launch_in_use, launch_of


@dataclass(frozen=True)
class Launch:
    size: int


@dataclass(frozen=True)
class Described:
    m: int
    shape: str = "m= "
    amount: float = 1.0


@pytest.fixture
def tunable(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEFRONT_KERNELS_CACHE", str(tmp_path))
    monkeypatch.setattr(launches, "_model", lambda device: "Some GPU")
    monkeypatch.setattr(launches, "num_sms", lambda device: 132)
    tuned_kernel.cache_clear()
    yield TunedLaunches(
        "some_kernel",
        1,
        Launch,
        describe=lambda packed, problem: Described(problem.m, f"m={problem.m} amount="),
        worth_timing=lambda problem, num_sms: [Launch(size) for size in range(8)],
        untuned=lambda problem, num_sms: Launch(0),
    )
    tuned_kernel.cache_clear()


def layer_with(tunable):
    reference = entry("gathered_reference")
    kernel = KernelEntry(name="some_kernel", family="gathered", product=reference.run, tunable=tunable)
    stored = FORMATS["gathered"].from_dense(torch.randn(8, 6), torch.ones(8, 6, dtype=torch.bool), tile=4)
    return SparseLinear(kernel, stored, None)


def test_most_promising_are_tried(tunable):
    layer = layer_with(tunable)
    choice = find_untried(layer, layer(torch.randn(2, 5, 6)))
    assert choice.problem.m == 10 and list(choice.candidates) == [Launch(size) for size in range(MOST)]
    choice.use(Launch(2))
    assert tunable.launch_for(Described(10, "m=10 amount="), torch.device("cpu")) == Launch(2)
    choice.keep(Launch(3), 1.5)
    assert find_untried(layer, layer(torch.randn(10, 6))) is None
    assert find_untried(layer, layer(torch.randn(11, 6))) is not None
    tuned_kernel.cache_clear()  # as in a later process
    launches.forget_choices()
    assert tunable.launch_for(Described(10, "m=10 amount="), torch.device("cpu")) == Launch(3)
    assert store.user_file("Some GPU").exists()


def test_trials_are_in_no_file(tunable):
    """Neither what was taken over from a like product, nor what took too long to be timed well."""
    layer = layer_with(tunable)
    assumed, slow, kept = (Problem(m, 6, 8, torch.float32, torch.device("cpu")) for m in (7, 8, 9))
    assume_launch(layer, assumed, Launch(5))
    find_untried(layer, layer(torch.randn(8, 6))).use(Launch(6))
    find_untried(layer, layer(torch.randn(9, 6))).keep(Launch(7), 1.5)
    assert [launch_of(layer, one).size for one in (assumed, slow, kept)] == [5, 6, 7]
    assert find_untried(layer, layer(torch.randn(8, 6))) is None, "it is not tried again in this process"
    entries = json.loads(store.user_file("Some GPU").read_text())["kernels"]["some_kernel"]["entries"]
    assert list(entries.values()) == [{"size": 7, "latency_us": 1.5}]
    tuned_kernel.cache_clear()  # as in a later process
    launches.forget_choices()
    assert [tunable.measured(None, one) for one in (assumed, slow, kept)] == [False, False, True]


def test_record_holds_the_running_launch(tunable):
    """Timed now, in an earlier process or never: no key of a stored stage tells it."""
    layer = layer_with(tunable)
    received = LayerInput(Problem(10, 6, 8, torch.float32, torch.device("cpu")), (2, 5, 6))
    tuned = Trial("dense_linear", modules={"some_kernel": layer}, errors={"some_kernel": 0.0})
    assert record_layer(layer, tuned, "some_kernel", received, density=0.5).to_json()["launch"] == {"size": 0}
    find_untried(layer, layer(torch.randn(10, 6))).keep(Launch(3), 1.5)
    assert record_layer(layer, tuned, "some_kernel", received, density=0.5).to_json()["launch"] == {"size": 3}
    assert launch_in_use(layer_with(None), received.problem) == {}


def test_launches_of_a_like_product(tunable):
    """None is predicted: with thousands of work tiles that takes longer than timing."""
    layer = layer_with(tunable)
    problem = Problem(10, 6, 8, torch.float32, torch.device("cpu"))
    predicted = []
    quiet = replace(tunable, untuned=lambda *given: predicted.append(given), worth_timing=predicted.append)
    layer = layer_with(quiet)
    assume_launch(layer, problem, Launch(5))
    assert launch_of(layer, problem) == Launch(5)
    choice = find_untried(layer, layer(torch.randn(10, 6)), [Launch(5), Launch(6)])
    assert list(choice.candidates) == [Launch(5), Launch(6)] and not predicted
    choice.keep(Launch(6), 1.5)
    assume_launch(layer, problem, Launch(5))
    assert launch_of(layer, problem) == Launch(6), "what was measured for this product stays"
    assume_launch(layer_with(None), problem, Launch(5))
    assert launch_of(layer_with(None), problem) is None
