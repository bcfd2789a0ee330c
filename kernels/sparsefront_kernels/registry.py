"""Registry of kernels: lookup by name, support for a weight and a problem, and choice of the fastest.

A family's folder lists its kernels in `entries.py`, as `ENTRIES`: the reference of each precision before the others, which are
in order of preference.
"""

import copyreg
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import torch

from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.packing import FORMATS
from sparsefront_kernels.performance_model import Product, predict
from sparsefront_kernels.problem import Problem, kernel_and_layout

DTYPE_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}


_ENTRIES: dict[str, KernelEntry] = {
    kernel.name: kernel
    for family in FORMATS
    for kernel in import_module(f"sparsefront_kernels.{family}.entries").ENTRIES
}


@dataclass(frozen=True)
class Found:
    """Result of `find`: supported entries in the registry's order, and kernel name -> reason for the unsupported ones."""

    usable: list[KernelEntry]
    unsupported: dict[str, str]


def families() -> tuple[str, ...]:
    """Names of the storage families."""
    return tuple(FORMATS)


def entries(precision: str = "none") -> tuple[KernelEntry, ...]:
    """All kernels of a precision ("none", "fp8" or "int8"), by family, each family's reference first."""
    return tuple(kernel for kernel in _ENTRIES.values() if kernel.precision == precision)


def names(precision: str = "none") -> tuple[str, ...]:
    """Names of all kernels of a precision."""
    return tuple(kernel.name for kernel in entries(precision))


def entry(name: str) -> KernelEntry:
    """The kernel of that name, in any precision.

    Raises:
        ValueError: no such kernel; the message lists the known ones.
    """
    if name not in _ENTRIES:
        raise ValueError(f"no kernel is called {name!r}; there are {', '.join(_ENTRIES)}")
    return _ENTRIES[name]


def labeled(label: str) -> tuple[KernelEntry, str | None]:
    """The kernel named by a label of results, a plan or a configuration, and its layout, or None if the label has none.

    In recorded results, a label without a layout means the kernel's first: row-major X and Y.

    Raises:
        ValueError: no such kernel, or it does not support the layout.
    """
    name, layout = kernel_and_layout(label)
    kernel = entry(name)
    if layout not in (None, *kernel.layouts):
        raise ValueError(f"no kernel is called {label!r}; {name} takes {', '.join(kernel.layouts)}")
    return kernel, layout


def reference(family: str, precision: str = "none") -> KernelEntry:
    """The plain PyTorch kernel of a family in a precision.

    Raises:
        ValueError: no such family, or it has no kernel in this precision; the message lists the known ones.
    """
    references = {candidate.family: candidate for candidate in entries(precision) if candidate.is_reference}
    if family in references:
        return references[family]
    if family in FORMATS:
        raise ValueError(f"{family} has no kernel in {precision}; there are {', '.join(references) or 'none'}")
    raise ValueError(f"no storage family is called {family!r}; there are {', '.join(FORMATS)}")


def find(stored: SparseFormat, problem: Problem, precision: str = "none") -> Found:
    """Split the kernels of a precision into those that support this weight and problem and those that do not, with the reason."""
    reasons = {candidate.name: candidate.unsupported_reason(stored, problem) for candidate in entries(precision)}
    return Found(
        usable=[candidate for candidate in entries(precision) if reasons[candidate.name] is None],
        unsupported={name: reason for name, reason in reasons.items() if reason is not None},
    )


def best_kernel(packed: SparseFormat, problem: Problem, precision: str = "none") -> KernelEntry:
    """The kernel expected to be fastest for a stored weight and a product, without timing any.

    On a GPU: the kernel with the lowest time predicted by the performance model; if the model covers none of them, the first
    supported one meant for that many rows. Kernels that round fp32 operands to TF32 are excluded.
    On a CPU: the family's reference.

    Args:
        packed: the compressed weight, as returned by `pack`.
        problem: the product.
        precision: "none", "fp8" or "int8".
    Raises:
        ValueError: no kernel supports it; the message lists each one's reason.
    """
    usability = find(packed, problem, precision)
    on_gpu = problem.device.type == "cuda"
    usable = [kernel for kernel in usability.usable if kernel.dtype_name is None]
    compiled = [kernel for kernel in usable if kernel.requires_cuda] if on_gpu else []
    kernels = compiled or [kernel for kernel in usable if kernel.is_reference]
    if not kernels:
        reasons = {name: why for name, why in usability.unsupported.items() if name.startswith(packed.family)}
        raise ValueError(f"no kernel can run {problem}: {'; '.join(f'{name}: {why}' for name, why in reasons.items())}")
    latencies_us = {kernel.name: _predicted_us(kernel, packed, problem) for kernel in kernels} if compiled else {}
    return min(kernels, key=lambda kernel: (latencies_us.get(kernel.name, float("inf")), _is_slow(kernel, problem)))


def _is_slow(kernel: KernelEntry, problem: Problem) -> bool:
    """Whether other kernels of its family are known to be faster."""
    return problem.m < kernel.fastest_from


def _predicted_us(kernel: KernelEntry, packed: SparseFormat, problem: Problem) -> float:
    """Predicted time; infinite if the model does not cover the kernel."""
    tile = getattr(packed, "tile", None)
    if tile is None or problem.dtype not in DTYPE_NAMES:
        return float("inf")
    product = Product(
        m=problem.m,
        k=problem.k,
        n=problem.n,
        sparsity=1 - packed.values.numel() / (problem.n * problem.k),  # type: ignore[attr-defined]
        granularity=tile,
        distribution="equal",
        dtype=DTYPE_NAMES[problem.dtype],
        layout=problem.layout,
    )
    predicted = predict(product, kernel.name, torch.cuda.get_device_name(problem.device))
    return float("inf") if predicted is None else predicted.latency_us


def _as_name(kernel: KernelEntry) -> tuple[Callable[[str], KernelEntry], tuple[str]]:
    return entry, (kernel.name,)


copyreg.pickle(KernelEntry, _as_name)  # pickle a kernel by name: its functions are not part of a saved layer
