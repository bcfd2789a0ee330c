"""Autotune one layer: check every candidate kernel for correctness, then time those that are correct."""

import copy
from dataclasses import dataclass, field

import torch
from sparsefront_kernels.linear import SparseLinear
from torch import Tensor, nn

from sparsefront.errors import failure_reason
from sparsefront.gpu_sharing.access import alone, give_way
from sparsefront.inference.candidates import Candidate, Candidates
from sparsefront.inference.dense_kernels import DENSE_CONV2D, DENSE_LINEAR
from sparsefront.inference.sparse_conv import SparseConv2d
from sparsefront.measure.correctness_check import CorrectnessCheck
from sparsefront.measure.kernel_timer import Check, time_layer, unchecked
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

    def reject(self, kernel: str, reason: str) -> None:
        """A kernel whose result is right, but which cannot be used after all."""
        self.unsupported[kernel] = reason
        for known in (self.modules, self.errors, self.latencies_us, self.notes):
            known.pop(kernel, None)

    def note(self, kernel: str, text: str) -> None:
        """One more thing to know about its time."""
        self.notes[kernel] = "; ".join(filter(None, (self.notes.get(kernel), text)))

    def why_dense(self) -> str:
        """Why `fastest` is None."""
        if not self.modules:
            return "no kernel can run it: " + "; ".join(f"{kernel}: {why}" for kernel, why in self.unsupported.items())
        best = min(self.modules, key=self.latencies_us.__getitem__)
        ours, theirs = self.latencies_us[self.dense], self.latencies_us[best]
        return f"{self.dense} is faster: {ours:.1f} us against {theirs:.1f} us of {best}"


def dense_name(layer: nn.Module) -> str:
    return DENSE_CONV2D if isinstance(layer, nn.Conv2d) else DENSE_LINEAR


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
        time_candidates(tuned, layer, check.x, check.evaluate)
        if isinstance(layer, nn.Conv2d) and adds_shortcut is not None:
            add_endings(tuned, layer, check.x, adds_shortcut=adds_shortcut)
    return tuned


def time_candidates(tuned: Autotuned, layer: nn.Linear | nn.Conv2d, x: Tensor, check: Check = unchecked) -> None:
    """Note the times of the dense layer and of what is right; a convolution's with images as the swapped network has them.

    Sparse convolutions read and give images whose channels are last in memory, so that those between them are laid out so. The
    dense one may have either layout: the faster one counts. A kernel that cannot be timed, or is wrong with all of its launch
    parameters, moves to what is unsupported.

    Args:
        check: as of `time_layer`.
    """
    images = isinstance(layer, nn.Conv2d)
    by_channel = x.to(memory_format=torch.channels_last) if images else x
    with alone(x.device):  # once for all of them: each time, every other process has to stop
        dense = [time_layer(layer, x)]
        if images:
            dense.append(time_layer(copy.deepcopy(layer).to(memory_format=torch.channels_last), by_channel))
        times = {tuned.dense: min(dense, key=lambda timed: timed.latency_us)}
        for kernel, module in list(tuned.modules.items()):
            fastest_us = min(timed.latency_us for timed in times.values())
            try:
                times[kernel] = time_layer(module, by_channel, at_most_us=HOPELESS * fastest_us, check=check)
            except Exception as raised:  # as where it is checked: another one does the work
                tuned.reject(kernel, failure_reason(raised))
    for kernel, timed in times.items():
        tuned.latencies_us[kernel] = timed.latency_us
        if timed.relative_error is not None:
            tuned.errors[kernel] = timed.relative_error
        if timed.eager_because is not None:
            tuned.note(kernel, f"timed launch by launch: {timed.eager_because}")
        for launch, why in timed.left_out.items():
            tuned.note(kernel, f"without {launch}: {why}")
    for kernel, module in tuned.modules.items():
        if isinstance(module, SparseConv2d) and (why := module.copies_because(by_channel)) is not None:
            tuned.note(kernel, f"what pixels see is copied into rows first: {why}")


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
    for kernel, latency_us in list(tuned.latencies_us.items()):
        module = tuned.modules.get(kernel)
        ended = module.with_relu() if isinstance(module, SparseConv2d) else None
        if ended is not None:
            try:
                ended_us = time_layer(ended, x, *shortcut).latency_us
            except Exception as raised:  # in the network it would fail as well
                tuned.reject(kernel, f"with ReLU: {failure_reason(raised)}")
                continue
            note = f"with ReLU{' of the sum' * adds_shortcut}; {latency_us:.1f} us without"
        else:
            ended_us = latency_us + pass_us
            note = f"with {pass_us:.1f} us for the pass of ReLU{' and the sum' * adds_shortcut} behind it"
        tuned.latencies_us[kernel] = ended_us
        tuned.note(kernel, note)


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
