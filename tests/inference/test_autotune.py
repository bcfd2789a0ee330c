"""The decision after autotuning: the fastest of what is correct, dense included where it may."""

import pytest
import torch
from sparsefront_kernels import FORMATS, entry
from torch import nn

from sparsefront.inference import autotune
from sparsefront.inference.autotune import Trial, add_epilogue_times, time_candidates
from sparsefront.inference.network_modules import SparseConv2d
from sparsefront.masks.weight_view import as_matrix
from sparsefront.measure.timers import KernelTime


def trial_of(**latencies_us):
    modules = {name: nn.Identity() for name in latencies_us if name != "dense_linear"}
    return Trial("dense_linear", modules=modules, latencies_us=latencies_us)


@pytest.mark.parametrize(
    ("dense_us", "dense_allowed", "fastest"), [(10.0, True, "b"), (7.0, True, None), (7.0, False, "b")]
)
def test_fastest_kernel_runs(dense_us, dense_allowed, fastest):
    trial = trial_of(dense_linear=dense_us, a=9.0, b=8.0)
    assert trial.fastest(dense_allowed=dense_allowed) == fastest
    assert fastest or trial.why_dense() == "dense_linear is faster: 7.0 us against 8.0 us of b"


@pytest.fixture
def timed(monkeypatch):
    """timed(time) -> the keyword arguments of all timings by module; `time(module, x, *more)` says how long each takes."""

    def pretend(time):
        calls = {}

        def time_layer(module, x, *more, **keywords):
            calls.setdefault(module, []).append(keywords | {"more": len(more)})
            return time(module, x)

        monkeypatch.setattr(autotune, "time_layer", time_layer)
        return calls

    return pretend


def test_convolutions_are_timed_with_channels_last(timed):
    """The dense one in either layout, of which the faster one counts."""
    layer, other, seen = nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3), []

    def time(module, x):
        by_channel = x.is_contiguous(memory_format=torch.channels_last)
        seen.append((module is other, by_channel, module.weight.is_contiguous(memory_format=torch.channels_last)))
        return KernelTime(7.0 if by_channel else 9.0, None if by_channel else "it was slow")

    timed(time)
    trial = Trial("dense_conv2d", modules={"a": other})
    time_candidates(trial, layer, torch.randn(2, 8, 5, 5))
    assert seen == [(False, False, False), (False, True, True), (True, True, False)]
    assert trial.latencies_us == {"a": 7.0, "dense_conv2d": 7.0} and trial.notes == {}
    assert layer.weight.is_contiguous()


class Ended(SparseConv2d):
    """A kernel that takes what follows."""

    def with_relu(self):
        return self


@pytest.mark.parametrize("adds_shortcut", [False, True])
def test_epilogues_of_convolutions_count(timed, adds_shortcut):
    """A kernel that takes ReLU is timed with it; for the others, and the dense one, it is a pass of its own."""
    layer = nn.Conv2d(8, 8, 1)
    stored = FORMATS["csr"].from_dense(as_matrix(layer.weight.detach()), torch.ones(8, 8, dtype=torch.bool))
    takes, leaves = (kind(entry("csr_reference"), stored, layer) for kind in (Ended, SparseConv2d))
    calls = timed(lambda module, x: KernelTime(7.0 if module is takes else 3.0))
    trial = Trial("dense_conv2d", {"takes": takes, "leaves": leaves})
    trial.latencies_us |= {"dense_conv2d": 6.5, "takes": 6.0, "leaves": 5.0}
    add_epilogue_times(trial, layer, torch.randn(2, 8, 5, 5), adds_shortcut=adds_shortcut)
    assert trial.latencies_us == {"dense_conv2d": 9.5, "takes": 7.0, "leaves": 8.0}
    assert len(calls) == 2 and all(of_module == [{"more": int(adds_shortcut)}] for of_module in calls.values())
    assert trial.fastest(dense_allowed=True) == "takes"
    assert "6.0 us without" in trial.notes["takes"] and "3.0 us for the pass" in trial.notes["leaves"]


def test_failing_kernel_leaves_the_others(timed):
    layer, fails, works = (nn.Linear(8, 8) for _ in range(3))

    def time(module, x):
        if module is fails:
            raise RuntimeError("a search found nothing\nlong trace")
        return KernelTime(5.0)

    timed(time)
    trial = Trial("dense_linear", {"fails": fails, "works": works}, errors={"fails": 1e-4, "works": 1e-4})
    time_candidates(trial, layer, torch.randn(4, 8))
    assert trial.unsupported == {"fails": "RuntimeError: a search found nothing"}
    assert trial.modules == {"works": works} and trial.errors.keys() == {"works"}
    assert trial.latencies_us == {"dense_linear": 5.0, "works": 5.0}
    assert trial.fastest(dense_allowed=False) == "works"
