"""The decision after autotuning: the fastest of what is right, dense included where it may."""

from math import inf

import pytest
import torch
from sparsefront_kernels import FORMATS, entry
from torch import nn

from sparsefront.inference import autotune
from sparsefront.inference.autotune import Trial, add_epilogue_times, time_candidates
from sparsefront.inference.network_modules import SparseConv2d
from sparsefront.masks.weight_view import as_matrix
from sparsefront.measure.timers import KernelTime


def tuned(**latencies_us):
    modules = {name: nn.Identity() for name in latencies_us if name != "dense_linear"}
    return Trial("dense_linear", modules=modules, latencies_us=latencies_us)


def test_the_fastest_runs():
    assert tuned(dense_linear=10.0, a=9.0, b=8.0).fastest(dense_allowed=True) == "b"


def test_dense_runs_where_it_is_faster_and_allowed():
    slower = tuned(dense_linear=7.0, a=9.0, b=8.0)
    assert slower.fastest(dense_allowed=True) is None
    assert slower.fastest(dense_allowed=False) == "b"
    assert slower.why_dense() == "dense_linear is faster: 7.0 us against 8.0 us of b"


def test_without_kernels_dense_runs_and_the_reasons_are_told():
    found = Trial("dense_linear", unsupported={"a": "needs a CUDA device"}, latencies_us={"dense_linear": 7.0})
    assert found.fastest(dense_allowed=False) is None
    assert found.why_dense() == "no kernel can run it: a: needs a CUDA device"


def test_convolutions_are_timed_with_channels_last(monkeypatch):
    """The dense one in either layout, of which the faster one counts."""
    layer, other, seen = nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3), []

    def time_layer(module, x, at_most_us=inf, check=None):
        by_channel = x.is_contiguous(memory_format=torch.channels_last)
        seen.append((module is other, by_channel, module.weight.is_contiguous(memory_format=torch.channels_last)))
        return KernelTime(7.0 if by_channel else 9.0, None if by_channel else "it was slow")

    monkeypatch.setattr(autotune, "time_layer", time_layer)
    tuned = Trial("dense_conv2d", modules={"a": other})
    time_candidates(tuned, layer, torch.randn(2, 8, 5, 5))
    assert seen == [(False, False, False), (False, True, True), (True, True, False)]
    assert tuned.latencies_us == {"a": 7.0, "dense_conv2d": 7.0} and tuned.notes == {}
    assert layer.weight.is_contiguous()
    linear = nn.Linear(8, 8)
    seen.clear()
    monkeypatch.setattr(autotune, "time_layer", lambda module, x, **_: KernelTime(float(module is linear)))
    tuned = Trial("dense_linear", modules={"a": other})
    time_candidates(tuned, linear, torch.randn(4, 8))
    assert tuned.latencies_us == {"a": 0.0, "dense_linear": 1.0}


def test_what_takes_far_longer_than_the_fastest_so_far_is_given_up_early(monkeypatch):
    layer = nn.Linear(8, 8)
    slow, fast = nn.Linear(8, 8), nn.Linear(8, 8)
    takes, bounds = {layer: 10.0, slow: 900.0, fast: 4.0}, {}

    def time_layer(module, x, at_most_us=inf, check=None):
        bounds[module] = at_most_us
        return KernelTime(takes[module])

    monkeypatch.setattr(autotune, "time_layer", time_layer)
    tuned = Trial("dense_linear", modules={"fast": fast, "slow": slow})
    time_candidates(tuned, layer, torch.randn(4, 8))
    assert bounds == {layer: inf, fast: 50.0, slow: 20.0}
    assert tuned.fastest(dense_allowed=True) == "fast"


class Ended(SparseConv2d):
    """A kernel that takes what follows."""

    def with_relu(self):
        return self


@pytest.mark.parametrize("adds_shortcut", [False, True])
def test_what_follows_a_convolution_counts(monkeypatch, adds_shortcut):
    """A kernel that takes ReLU is timed with it; for the others, and the dense one, it is a pass of its own."""
    layer, seen = nn.Conv2d(8, 8, 1), []
    stored = FORMATS["csr"].from_dense(as_matrix(layer.weight.detach()), torch.ones(8, 8, dtype=torch.bool))
    takes, leaves = (kind(entry("csr_reference"), stored, layer) for kind in (Ended, SparseConv2d))

    def time_layer(module, x, *shortcut):
        seen.append((module is takes, len(shortcut)))
        return KernelTime(7.0 if module is takes else 3.0)

    monkeypatch.setattr(autotune, "time_layer", time_layer)
    tuned = Trial("dense_conv2d", {"takes": takes, "leaves": leaves})
    tuned.latencies_us |= {"dense_conv2d": 6.5, "takes": 6.0, "leaves": 5.0}
    add_epilogue_times(tuned, layer, torch.randn(2, 8, 5, 5), adds_shortcut=adds_shortcut)
    assert tuned.latencies_us == {"dense_conv2d": 9.5, "takes": 7.0, "leaves": 8.0}
    assert seen == [(False, int(adds_shortcut)), (True, int(adds_shortcut))]
    assert tuned.fastest(dense_allowed=True) == "takes"
    assert "6.0 us without" in tuned.notes["takes"] and "3.0 us for the pass" in tuned.notes["leaves"]


def test_a_kernel_that_cannot_be_timed_leaves_the_others(monkeypatch):
    layer, fails, works = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def time_layer(module, x, at_most_us=inf, check=None):
        if module is fails:
            raise RuntimeError("a search found nothing\nlong trace")
        return KernelTime(5.0)

    monkeypatch.setattr(autotune, "time_layer", time_layer)
    found = Trial("dense_linear", {"fails": fails, "works": works}, errors={"fails": 1e-4, "works": 1e-4})
    time_candidates(found, layer, torch.randn(4, 8))
    assert found.unsupported == {"fails": "RuntimeError: a search found nothing"}
    assert found.modules == {"works": works} and found.errors.keys() == {"works"}
    assert found.latencies_us == {"dense_linear": 5.0, "works": 5.0}
    assert found.fastest(dense_allowed=False) == "works"


def test_the_error_is_that_of_the_launch_that_stays(monkeypatch):
    layer, module, checks = nn.Linear(8, 8), nn.Linear(8, 8), []

    def time_layer(module, x, at_most_us=inf, check=None):
        checks.append(check)
        if module is layer:
            return KernelTime(5.0)
        return KernelTime(4.0, relative_error=2e-4, left_out={"Launch(1)": "wrong"})

    def check(module):
        return 2e-4, None

    monkeypatch.setattr(autotune, "time_layer", time_layer)
    found = Trial("dense_linear", {"a": module}, errors={"a": 1e-4})
    time_candidates(found, layer, torch.randn(4, 8), check)
    assert checks == [None, check]
    assert found.errors == {"a": 2e-4} and found.notes == {"a": "without Launch(1): wrong"}
