"""Autotune one layer: every kernel that can run it, checked for correctness, then timed."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from sparsefront_kernels import FORMATS, KernelEntry, Problem, SparseFormat, entries
from sparsefront_kernels.dense.format import DenseFormat
from sparsefront_kernels.linear import SparseLinear
from sparsefront_kernels.quantized.quantize import LARGEST
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import Tensor, nn

from sparsefront.errors import failure_reason
from sparsefront.gpu import alone, give_way
from sparsefront.inference.network_modules import DENSE_CONV2D, DENSE_LINEAR, SparseConv2d
from sparsefront.measure.correctness import CorrectnessCheck
from sparsefront.measure.problems import LayerInput
from sparsefront.measure.timers import Check, time_layer, unchecked

# Which kernels could run a layer: every family that can store its mask, every kernel that takes its problem.

TAKES_ANY_PATTERN = ("csr", "semi_structured")  # need no parameters of the pattern: their from_dense says what fits
READS_IN_ORDER = ("semi_structured",)  # of these, those that take the order of inputs in which n:m windows were made


@dataclass(frozen=True)
class Candidate:
    """A kernel in one of its layouts, and the weight as it reads it."""

    entry: KernelEntry
    layout: str
    format: SparseFormat

    @property
    def label(self) -> str:
        """What results call it."""
        return self.entry.label(self.layout)


@dataclass(frozen=True)
class Candidates:
    """What could run, and label -> why it cannot for every other kernel and layout that was wanted."""

    usable: list[Candidate]
    unsupported: dict[str, str]


def find_candidates(
    canonical: SparseFormat,
    mask: Tensor,
    problem: Problem,
    wants: Callable[[KernelEntry, str], bool],
    low: Sequence[KernelEntry] = (),
) -> Candidates:
    """Sort the wanted kernels, each in its wanted layouts, into usable and unsupported ones.

    Args:
        canonical: the layer in its pattern's own format; other formats are made on its device.
        mask: bool [N, K] on the same device, True = keep.
        problem: of the layer, row-major; asked in each wanted layout, since the layer transposes where needed.
        wants: (kernel, layout) -> whether to try it at all.
        low: kernels in low precision, which are tried before those of 16 bits.
    """
    formats: dict[str, SparseFormat | str] = {}  # or why the family cannot store the mask
    usable, unsupported = [], {}
    kernels = (*low, *entries())
    wanted = ((kernel, layout) for kernel in kernels for layout in kernel.layouts if wants(kernel, layout))
    for kernel, layout in wanted:
        if kernel.family not in formats:
            formats[kernel.family] = _held(kernel.family, canonical, mask)
        stored = formats[kernel.family]
        if isinstance(stored, str):
            unsupported[kernel.label(layout)] = stored
        elif (reason := kernel.unsupported_reason(stored, replace(problem, layout=layout))) is not None:
            unsupported[kernel.label(layout)] = reason
        else:
            usable.append(Candidate(kernel, layout, stored))
    return Candidates(usable, unsupported)


def _held(family: str, canonical: SparseFormat, mask: Tensor) -> SparseFormat | str:
    if family == canonical.family:
        return canonical
    if family == DenseFormat.family:
        return DenseFormat.from_dense(canonical.to_dense(), mask)
    if family not in TAKES_ANY_PATTERN:
        families = dict.fromkeys((canonical.family, *TAKES_ANY_PATTERN))
        return f"these masks are stored as {', '.join(families)}, not as {family}"
    orders = {}
    if family in READS_IN_ORDER and (order := getattr(canonical, "input_order", None)) is not None:
        orders["input_order"] = order
    try:
        return FORMATS[family].from_dense(canonical.to_dense(), mask, **orders)
    except ValueError as error:  # how a format says that a mask does not have its structure
        return str(error)


HOPELESS = 5.0  # times the fastest so far: such kernels are timed once
NEARLY_FASTEST = 1.1  # times the fastest of a layer: such kernels may be the fastest of another that is like it


@dataclass
class Autotuned:
    """What was found for one layer.

    Args:
        dense: what the dense layer is called: dense_linear or dense_conv2d.
        modules: kernel -> the layer that calls it; only kernels whose result is right.
        errors: kernel -> relative error against the fp64 product, in low precision that of the quantised operands.
        quantization_errors: kernel in low precision -> likewise, of the operands before quantisation.
        unsupported: kernel -> why it cannot be used.
        latencies_us: kernel -> microseconds, `dense` included; empty on a CPU.
        notes: kernel -> what to know about its time.
    """

    dense: str
    modules: dict[str, nn.Module] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    quantization_errors: dict[str, float] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)
    latencies_us: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def fastest(self, *, dense_allowed: bool) -> str | None:
        """The kernel to use; the first one that is right where nothing was timed; None for the dense layer."""
        sparse = min(self.modules, key=lambda kernel: self.latencies_us.get(kernel, 0.0), default=None)
        if sparse is None or not dense_allowed or self.dense not in self.latencies_us:
            return sparse
        return sparse if self.latencies_us[sparse] < self.latencies_us[self.dense] else None

    def fast(self) -> tuple[str, ...]:
        """Kernels that may be the fastest of a layer like this one, the fastest first; none where nothing was timed."""
        timed = sorted((time, kernel) for kernel, time in self.latencies_us.items() if kernel in self.modules)
        return tuple(kernel for time, kernel in timed if time <= NEARLY_FASTEST * timed[0][0])

    def reject(self, kernel: str, reason: str) -> None:
        """A kernel whose result is right, but which cannot be used after all."""
        self.unsupported[kernel] = reason
        for known in (self.modules, self.errors, self.quantization_errors, self.latencies_us, self.notes):
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
    x_scale: float | None = None,
) -> Autotuned:
    """Check every candidate; on a CUDA device time those that are right, and the dense layer.

    Args:
        layer: with the masked weight, on the device and in the dtype that are measured.
        timed: False where the kernel was chosen before.
        adds_shortcut: of a convolution that ReLU follows: whether a shortcut is added in between; None: nothing follows.
        x_scale: of candidates in low precision, the static scale of what the layer receives.
    """
    tuned = Autotuned(dense_name(layer), unsupported=dict(candidates.unsupported))
    amax = None if x_scale is None else x_scale * LARGEST["fp8"]
    check = CorrectnessCheck(layer, received.input_shape, amax)
    for candidate in candidates.usable:
        give_way(layer.weight.device)
        _check(tuned, check, layer, candidate, x_scale if candidate.entry.precision != "none" else None)
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
        if isinstance(module, SparseConv2d) and (copies := module.copies_because(by_channel)) is not None:
            tuned.note(kernel, f"what pixels see is copied into rows first: {copies}")


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


def _check(
    tuned: Autotuned,
    check: CorrectnessCheck,
    layer: nn.Linear | nn.Conv2d,
    candidate: Candidate,
    x_scale: float | None,
) -> None:
    kernel = candidate.label
    held = candidate.entry, candidate.format
    module: SparseLayer
    try:
        if isinstance(layer, nn.Conv2d):
            module = SparseConv2d.replacing(layer, *held, candidate.layout)
        else:
            module = SparseLinear.replacing(layer, *held, candidate.layout, x_scale)
        error, reason = check.evaluate(module)
    except (
        Exception
    ) as raised:  # a kernel may fail in any way; another one does the work, and the result holds the reason
        reason = failure_reason(raised)
    if reason is not None:
        tuned.unsupported[kernel] = reason
    else:
        tuned.modules[kernel], tuned.errors[kernel] = module, error
        if (quantised := check.quantization_error(module)) is not None:
            tuned.quantization_errors[kernel] = quantised
