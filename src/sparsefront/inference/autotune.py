"""Autotune one layer: check every candidate kernel for correctness, then time those that are correct."""

import copy
from dataclasses import dataclass, field

import torch
from sparsefront_kernels.linear import SparseLinear
from torch import Tensor, nn

from sparsefront.errors import failure_reason
from sparsefront.gpu_sharing.access import alone, give_way
from sparsefront.inference.candidates import Candidate, Candidates
from sparsefront.inference.sparse_conv import SparseConv2d
from sparsefront.measure.correctness_check import CorrectnessCheck
from sparsefront.measure.kernel_timer import time_layer
from sparsefront.measure.problems import LayerInput

HOPELESS = 5.0  # times the fastest so far: such kernels are timed once


@dataclass
class Autotuned:
    """What was found for one layer.

    Args:
        dense: what the dense layer is called: dense_linear or dense_conv2d.
        modules: kernel -> the layer that calls it; only kernels whose result is right.
        errors: kernel -> relative error against the fp64 product.
        unsupported: kernel -> why it cannot be used.
        latencies_us: kernel -> microseconds, `dense` included; empty on a CPU.
        notes: kernel -> what to know about its time.
    """

    dense: str
    modules: dict[str, nn.Module] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)
    latencies_us: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def fastest(self, *, dense_allowed: bool) -> str | None:
        """The kernel to use; the first one that is right where nothing was timed; None for the dense layer."""
        sparse = min(self.modules, key=lambda kernel: self.latencies_us.get(kernel, 0.0), default=None)
        if sparse is None or not dense_allowed or self.dense not in self.latencies_us:
            return sparse
        return sparse if self.latencies_us[sparse] < self.latencies_us[self.dense] else None

    def why_dense(self) -> str:
        """Why `fastest` is None."""
        if not self.modules:
            return "no kernel can run it: " + "; ".join(f"{kernel}: {why}" for kernel, why in self.unsupported.items())
        best = min(self.modules, key=self.latencies_us.__getitem__)
        ours, theirs = self.latencies_us[self.dense], self.latencies_us[best]
        return f"{self.dense} is faster: {ours:.1f} us against {theirs:.1f} us of {best}"


def dense_name(layer: nn.Module) -> str:
    return "dense_conv2d" if isinstance(layer, nn.Conv2d) else "dense_linear"


def autotune_layer(
    layer: nn.Linear | nn.Conv2d,
    candidates: Candidates,
    received: LayerInput,
    *,
    timed: bool = True,
    adds_shortcut: bool | None = None,
) -> Autotuned:
    """Check every candidate; on a CUDA device time those that are right, and the dense layer.

    Args:
        layer: with the masked weight, on the device and in the dtype that are measured.
        timed: False where the kernel was chosen before.
        adds_shortcut: of a convolution that ReLU follows: whether a shortcut is added in between; None: nothing follows.
    """
    tuned = Autotuned(dense_name(layer), unsupported=dict(candidates.unsupported))
    check = CorrectnessCheck(layer, received.input_shape)
    for candidate in candidates.usable:
        give_way(layer.weight.device)
        _check(tuned, check, layer, candidate)
    if layer.weight.is_cuda and timed:
        time_candidates(tuned, layer, check.x)
        if isinstance(layer, nn.Conv2d) and adds_shortcut is not None:
            add_endings(tuned, layer, check.x, adds_shortcut=adds_shortcut)
    return tuned


def time_candidates(tuned: Autotuned, layer: nn.Linear | nn.Conv2d, x: Tensor) -> None:
    """Note the times of the dense layer and of what is right; a convolution's with images as the swapped network has them.

    Sparse convolutions read and give images whose channels are last in memory, so that those between them are laid out so. The
    dense one may have either layout: the faster one counts.
    """
    images = isinstance(layer, nn.Conv2d)
    by_channel = x.to(memory_format=torch.channels_last) if images else x
    with alone(x.device):  # once for all of them: each time, every other process has to stop
        dense = [time_layer(layer, x)]
        if images:
            dense.append(time_layer(copy.deepcopy(layer).to(memory_format=torch.channels_last), by_channel))
        times = {tuned.dense: min(dense, key=lambda timed: timed.latency_us)}
        for kernel, module in tuned.modules.items():
            fastest_us = min(timed.latency_us for timed in times.values())
            times[kernel] = time_layer(module, by_channel, at_most_us=HOPELESS * fastest_us)
    for kernel, timed in times.items():
        tuned.latencies_us[kernel] = timed.latency_us
        if timed.eager_because is not None:
            tuned.notes[kernel] = f"timed launch by launch: {timed.eager_because}"
    for kernel, module in tuned.modules.items():
        if isinstance(module, SparseConv2d) and (why := module.copies_because(by_channel)) is not None:
            copies = f"what pixels see is copied into rows first: {why}"
            tuned.notes[kernel] = "; ".join(filter(None, (tuned.notes.get(kernel), copies)))


def add_endings(tuned: Autotuned, layer: nn.Conv2d, x: Tensor, *, adds_shortcut: bool) -> None:
    """Add to the times of kernels what ReLU behind the convolution takes: little where it goes into the kernel, else a pass.

    Args:
        adds_shortcut: whether it is of the sum with a tensor as large as the result.
    """
    x = x.to(memory_format=torch.channels_last)
    with torch.no_grad():
        y = layer(x).contiguous(memory_format=torch.channels_last)
    shortcut = (torch.randn_like(y),) if adds_shortcut else ()
    pass_us = time_layer(_Ending(), y, *shortcut).latency_us
    for kernel, latency_us in tuned.latencies_us.items():
        module = tuned.modules.get(kernel)
        ended = module.with_relu() if isinstance(module, SparseConv2d) else None
        if ended is not None:
            tuned.latencies_us[kernel] = time_layer(ended, x, *shortcut).latency_us
            note = f"with ReLU{' of the sum' * adds_shortcut}; {latency_us:.1f} us without"
        else:
            tuned.latencies_us[kernel] = latency_us + pass_us
            note = f"with {pass_us:.1f} us for the pass of ReLU{' and the sum' * adds_shortcut} behind it"
        tuned.notes[kernel] = "; ".join(filter(None, (tuned.notes.get(kernel), note)))


class _Ending(nn.Module):
    """One pass over a result: what a compiler makes of ReLU, and of the sum before it."""

    def forward(self, y: Tensor, shortcut: Tensor | None = None) -> Tensor:
        return y.relu() if shortcut is None else y + shortcut


def _check(tuned: Autotuned, check: CorrectnessCheck, layer: nn.Linear | nn.Conv2d, candidate: Candidate) -> None:
    kernel = candidate.label
    kind = SparseConv2d if isinstance(layer, nn.Conv2d) else SparseLinear
    try:
        module = kind.replacing(layer, candidate.entry, candidate.format, candidate.layout)
        error, reason = check.evaluate(module)
    except (
        Exception
    ) as raised:  # a kernel may fail in any way; another one does the work, and the result holds the reason
        reason = failure_reason(raised)
    if reason is not None:
        tuned.unsupported[kernel] = reason
    else:
        tuned.modules[kernel], tuned.errors[kernel] = module, error
