"""Timers: functions in turn, every sample kept; and single kernels with the launch parameters worth trying."""

import math
import re
from collections import Counter
from contextlib import nullcontext
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from sparsefront_kernels import FORMATS, KernelEntry, entry
from sparsefront_kernels.linear import SparseLinear
from torch import nn

from sparsefront.measure import timers
from sparsefront.measure.timers import (
    FEWEST,
    SAMPLES,
    WARMUP,
    KernelTime,
    balance_orders,
    summarize,
    time_interleaved,
)

CPU = torch.device("cpu")


def test_functions_take_turns(clock):
    """Milliseconds, without those of the warm-up."""
    order = []
    naps = {name: lambda name=name: (order.append(name), clock.sleep(0.02)) for name in "abc"}
    taken = time_interleaved(naps, device=CPU, warmup=1, samples=2)
    assert "".join(order) == "abcbacabc", "none follows itself"
    assert taken == {name: pytest.approx([20.0] * 2) for name in "abc"}


@pytest.mark.parametrize(
    ("device", "error", "words"), [("cuda", RuntimeError, "needs a GPU"), ("meta", ValueError, "meta")]
)
def test_missing_timer_is_an_error(device, error, words, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(error, match=words):
        time_interleaved({"a": lambda: None}, device=torch.device(device), warmup=0, samples=1)


def test_summary_of_known_samples():
    summary = summarize([float(value) for value in range(11)])
    assert (summary.median_ms, summary.p20_ms, summary.p80_ms, summary.n) == (5.0, 2.0, 8.0, 11)
    assert summarize([3.0]).p80_ms == 3.0


@pytest.mark.gpu
def test_cuda_timer_waits_for_the_device():
    device = torch.device("cuda")
    x = torch.randn(8192, 8192, device=device)
    taken = time_interleaved({"product": lambda: x @ x, "nothing": lambda: None}, device=device, warmup=2, samples=5)
    assert len(taken["product"]) == 5
    assert min(taken["product"]) > 10 * min(taken["nothing"])  # 1.1 TFLOP of fp32


@pytest.mark.parametrize("names", ["ab", "abc", "abcd", "abcde", "abcdef", "abcdefghi", "abcdefghij"])
def test_each_follows_each_other_equally(names: str):
    orders = balance_orders(names)
    assert all(sorted(order) == sorted(names) for order in orders), "a round has every name once"
    stream = [name for order in (*orders, orders[0][:1]) for name in order]  # the first follows the last round again
    followed = Counter(pairwise(stream))
    assert len(followed) == len(names) * (len(names) - 1) and len(set(followed.values())) == 1
    assert all(one != other for one, other in followed)
    assert balance_orders("a") == [["a"]]


@pytest.mark.parametrize(
    ("took_ms", "at_most_us", "calls"),
    [
        (0.1, math.inf, WARMUP + SAMPLES),
        (0.1, 120.0, WARMUP + SAMPLES),
        (0.1, 80.0, WARMUP + FEWEST),
        (60.0, math.inf, FEWEST + 1),
    ],
)
def test_slow_kernels_get_few_samples(took_ms, at_most_us, calls, monkeypatch):
    taken = []
    monkeypatch.setattr(timers, "cuda_ms", lambda function, device: taken.append(took_ms) or took_ms)
    latency_us = timers._median_us(lambda: None, CPU, per_sample=1, at_most_us=at_most_us)
    assert latency_us == pytest.approx(took_ms * 1e3) and len(taken) == calls


class Tried:
    """Launches 1, 2 and 3 of a made-up kernel, each as fast as its number says; 0 is used before."""

    candidates = (3, 1, 2)

    def __init__(self):
        self.in_use, self.kept = 0, None

    def use(self, launch):
        self.in_use = launch

    def use_none(self):
        self.in_use = 0

    def keep(self, launch, latency_us):
        self.in_use, self.kept = launch, (launch, latency_us)


class Kernel:
    """What its launches do: fail when first called, keep the processor busy, fail when timed, or give a wrong result."""

    def __init__(self, monkeypatch, fails=(), busy=(), fails_later=(), wrong=()):
        self.tried, self.timed = Tried(), []
        self.fails, self.busy, self.fails_later, self.wrong = fails, busy, fails_later, wrong
        self.seconds = 0.0  # by the clock, which nothing else moves on
        monkeypatch.setattr(timers, "_time", self.time)
        monkeypatch.setattr(timers, "time", SimpleNamespace(perf_counter=lambda: self.seconds))

    def call(self):
        if self.tried.in_use in self.fails:
            raise RuntimeError("out of resources\nlong trace")
        if self.tried.in_use in self.busy:
            self.seconds += 0.025

    def time(self, calls, device, at_most_us):
        self.timed.append(self.tried.in_use)
        if self.tried.in_use in self.fails_later:
            raise RuntimeError("out of memory")
        return KernelTime(float(self.tried.in_use))

    def check(self, layer):
        error = 0.5 if self.tried.in_use in self.wrong else self.tried.in_use / 1e6
        return error, "relative error 5.0e-01" if error > 0.1 else None

    def fastest(self, at_most_us=math.inf):
        return timers._time_launches(self.tried, nn.Identity(), [self.call], CPU, at_most_us, self.check)


def test_fastest_launch_has_its_error(monkeypatch):
    kernel = Kernel(monkeypatch)
    found = kernel.fastest()
    assert kernel.tried.kept == (1, 1.0) and kernel.tried.in_use == 1
    assert (found.latency_us, found.relative_error, found.launches, found.left_out) == (1.0, 1e-6, (1,), {})


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        ({"fails": (1,)}, "RuntimeError: out of resources"),
        ({"busy": (1,)}, "RuntimeError: a call keeps the processor busy for .* ms, more than 20"),
        ({"fails_later": (1,)}, "RuntimeError: out of memory"),
        ({"wrong": (1,)}, "RuntimeError: relative error 5.0e-01"),
    ],
    ids=["fails", "keeps the processor busy", "fails later", "wrong"],
)
def test_faulty_launch_is_left_out(faults, reason, monkeypatch, caplog):
    kernel = Kernel(monkeypatch, **faults)
    found = kernel.fastest()
    assert kernel.tried.kept == (2, 2.0) and found.relative_error == 2e-6
    assert list(found.left_out) == ["1"] and re.fullmatch(reason, found.left_out["1"])
    assert f"1 is left out: {found.left_out['1']}" in caplog.text
    assert (1 in kernel.timed) == ("fails_later" in faults), "a wrong one is not timed"


@pytest.mark.parametrize("faults", [{"fails": (1, 2, 3)}, {"fails": (3,), "fails_later": (1,), "wrong": (2,)}])
def test_without_working_launch_the_earlier_stays(faults, monkeypatch):
    kernel = Kernel(monkeypatch, **faults)
    with pytest.raises(RuntimeError, match="3: RuntimeError: out of resources; "):
        kernel.fastest()
    assert kernel.tried.in_use == 0 and kernel.tried.kept is None


def test_copies_read_their_own_tensors(monkeypatch):
    """By position and by name: what they read in turn counts as moved."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=8000))

    class Adds(nn.Module):
        def forward(self, x, *, residual, scale):
            seen.append((x.data_ptr(), residual.data_ptr(), scale))
            return x + scale * residual

    seen = []
    x, residual = torch.randn(10, 100), torch.randn(10, 100)
    calls = timers._rotation(Adds(), (x,), {"residual": residual, "scale": 2})
    seen.clear()
    outputs = [call() for call in calls]
    assert len(calls) == 2 and len({x for x, *_ in seen}) == len({residual for _, residual, _ in seen}) == 2
    assert all(torch.equal(output, x + 2 * residual) for output in outputs)


class OnGpu(torch.Tensor):
    """A tensor of a CPU that says otherwise."""

    is_cuda = True


@pytest.fixture
def layer(monkeypatch):
    """A sparse layer with launch parameters, of which none are to be tried."""
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(timers, "_rotation", lambda layer, args, keywords: [lambda: layer(*args)])
    monkeypatch.setattr(timers, "_time", lambda calls, device, at_most_us: KernelTime(3.0))
    monkeypatch.setattr(timers, "find_untried", lambda *given: None)
    plain = entry("gathered_reference")
    kernel = KernelEntry(name="some", family="gathered", product=plain.run, tunable=object())
    return SparseLinear(kernel, FORMATS["gathered"].from_dense(torch.ones(8, 8), torch.ones(8, 8) > 0, tile=4), None)


@pytest.mark.parametrize("tunable", [True, False])
def test_busy_processor_is_not_timed(layer, tunable, monkeypatch, clock):
    """With launch parameters and without; a dense layer is timed whatever it does: there has to be one."""
    x = torch.randn(2, 8).as_subclass(OnGpu)
    monkeypatch.setattr(timers, "_rotation", lambda *given: [lambda: clock.sleep(0.025)])
    monkeypatch.setattr(SparseLinear, "tunable", (object() if tunable else None, None))
    with pytest.raises(RuntimeError, match="keeps the processor busy"):
        timers.time_layer(layer, x)
    assert timers.time_layer(nn.Linear(8, 8), x).latency_us == 3.0
