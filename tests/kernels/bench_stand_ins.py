"""A benchmark run without a GPU: the reference stands in for kernels, a counter for the clock, a product for a peer."""

import dataclasses
import itertools

import pytest
import torch
from sparsefront_kernels import registry
from sparsefront_kernels.bench import plan as plan_module
from sparsefront_kernels.bench import provider, run
from sparsefront_kernels.bench.families import family_masks
from sparsefront_kernels.bench.masks import Masks
from sparsefront_kernels.bench.measurement import Rates
from sparsefront_kernels.bench.peers import Peer
from sparsefront_kernels.bench.plan import Chosen, Plan
from sparsefront_kernels.bench.problems import Setting, Shape
from sparsefront_kernels.bench.provider import Provider
from sparsefront_kernels.bench.rows import Results
from sparsefront_kernels.bench.run import Run
from sparsefront_kernels.bench.timing import Latency
from sparsefront_kernels.problem import LAYOUTS, X_FEATURE_MAJOR, Y_FEATURE_MAJOR

CPU = torch.device("cpu")
SMALL = Shape("small", 6, 32, 48)
ODD = Shape("odd", 5, 24, 40)


@dataclasses.dataclass(frozen=True)
class Launch:
    width: int


class WidthsTunable:
    """Launches of 1, 2 and 3, of which `wrong` gives a wrong product; 2 is what the fake clock finds fastest.

    Layouts share them unless `shared` is False.
    """

    kernel, version = "fake", 7

    def __init__(self) -> None:
        self.kept, self.trial, self.wrong, self.log, self.shared = Launch(1), None, None, [], True

    @property
    def now(self) -> Launch:
        return self.trial or self.kept

    def candidates(self, packed, problem):
        return [Launch(1), Launch(2), Launch(3)]

    def measured(self, packed, problem):
        return bool(self.log) if self.shared else problem.layout in {layout for layout, _, _ in self.log}

    def try_out(self, packed, problem, launch):
        self.trial = launch
        self.log.append((problem.layout, launch.width, 0.0))

    def end_trial(self, packed, problem):
        self.trial = None

    def remember(self, packed, problem, launch, latency_us):
        self.kept, self.trial = launch, None
        self.log.append((problem.layout, launch.width, latency_us))


def fake_entries(tunable):
    """A kernel in every layout, one that computes in TF32, and one that does not support an odd M."""
    reference = registry.reference("gathered")

    def multiply(x, stored, bias, *, layout="row_major"):
        y = reference.run(x.t() if layout in X_FEATURE_MAJOR else x, stored, bias)
        y = y * (2 if tunable.now.width == tunable.wrong else 1)
        return y.t().contiguous() if layout in Y_FEATURE_MAJOR else y

    def entry(name: str, **changed):
        return dataclasses.replace(
            reference, name=name, product=multiply, requires_cuda=True, is_reference=False, **changed
        )

    return (
        entry("fake", layouts=LAYOUTS, tunable=tunable),
        entry("fake_tf32", dtype_name="tf32"),
        entry("fake_even", unsupported=lambda stored, problem: "takes an even M" if problem.m % 2 else None),
    )


@pytest.fixture(name="tunable")
def widths_tunable():
    return WidthsTunable()


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch, tunable):
    """What asks for a GPU is replaced; the clock gives every measurement another time."""
    ticks = itertools.count(100)

    def time_calls(calls, *, samples):
        assert calls
        fast = 50.0 if tunable.now.width == 2 else 0.0
        return Latency(float(next(ticks)) - fast, 1.0, 2.0, samples)

    monkeypatch.setattr(run, "require_gpu", lambda: None)
    monkeypatch.setattr(run, "measured_rates", lambda dtype, device: Rates(100.0, 1000.0))
    monkeypatch.setattr(run, "_device", lambda: CPU)
    monkeypatch.setattr(provider, "time_calls", time_calls)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Some GPU")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    properties = type("Properties", (), {"L2_cache_size": 10_000})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(plan_module, "entries", lambda: fake_entries(tunable))
    monkeypatch.setattr(run, "PEERS", {"peer": Peer(peer_providers, lambda dtype, sparsity: None)})


def peer_providers(setting: Setting) -> list[Provider]:
    """Two settings of one kernel; the second is the slower one."""
    weight = setting.weight()

    def make(copy: int):
        x = setting.x_in("row_major", copy)
        return lambda: x @ weight.t()

    one = Provider(
        family="blocked",
        kernel="peer",
        pattern="block_wise",
        granularity=8,
        distribution="equal",
        dtype_name=setting.dtype_name,
        layout="row_major",
        sparsity=0.5,
        operand_bytes=1000,
        weight_bytes=500,
        make=make,
        reference=setting.reference(weight),
    )
    return [one, dataclasses.replace(one)]


def plan(**changed):
    plain = Plan(
        shapes=(SMALL,),
        dtypes=("fp32",),
        sparsities=(0.5, 0.75),
        granularities=(8, 16),
        distributions=("equal",),
        peers=("peer",),
        chosen=Chosen((), LAYOUTS),
        tune=False,
        samples=20,
        masks=Masks(family_masks("gathered")),
    )
    return dataclasses.replace(plain, **changed)


def measure(asked, path=None, *, commit="abc", append=True, said=None, kept=None):
    results = Results.opened(path, gpu="Some GPU", commit=commit, append=append)
    said, kept = [] if said is None else said, [] if kept is None else kept
    measuring = Run(results, said.append, lambda tuned: kept.append([one.kernel for one in tuned]))
    measuring.measure(asked)
    return measuring.rows
