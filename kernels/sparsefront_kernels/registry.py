"""Registry of kernels: lookup by name, support for a weight and a problem, and choice of the fastest."""

import copyreg
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sparsefront_kernels.blocked import gathered_tiles as blocked_gathered
from sparsefront_kernels.blocked import sm90 as blocked_sm90
from sparsefront_kernels.blocked import triton as blocked_triton
from sparsefront_kernels.blocked.reference import blocked_reference
from sparsefront_kernels.blocked.sm90_convolution import CONVOLVING
from sparsefront_kernels.blocked_2_4 import sm90 as blocked_2_4
from sparsefront_kernels.csr import sm90 as csr_sm90
from sparsefront_kernels.csr import torch_spmm as csr
from sparsefront_kernels.dense.format import dense_linear
from sparsefront_kernels.ell import sm90 as ell_sm90
from sparsefront_kernels.ell import small_m as ell_small_m
from sparsefront_kernels.epilogue import rebuilt_product
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered import indexed, quack, simt, sm90, small_m, triton
from sparsefront_kernels.gathered.reference import gathered_reference
from sparsefront_kernels.gathered_2_4 import sm90 as gathered_2_4
from sparsefront_kernels.gathered_overlay import composed as gathered_overlay
from sparsefront_kernels.kernel_entry import KernelEntry, filled_entry
from sparsefront_kernels.n_m import mma as n_m_mma
from sparsefront_kernels.n_m import rebuilt as n_m_rebuilt
from sparsefront_kernels.n_m import sm90 as n_m_sm90
from sparsefront_kernels.n_m import small_m as n_m_small_m
from sparsefront_kernels.packing import FORMATS
from sparsefront_kernels.performance_model import Product, predict
from sparsefront_kernels.problem import Problem, kernel_and_layout
from sparsefront_kernels.quantized import blocked as quantized_blocked
from sparsefront_kernels.quantized import dense as quantized_dense
from sparsefront_kernels.quantized.reference import reference_entry
from sparsefront_kernels.semi_structured import cusparselt, torchao
from sparsefront_kernels.semi_structured import low_precision as low_precision_2_4

DTYPE_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}


def _reference(family: str, product: Callable[..., Tensor], **settings: Any) -> KernelEntry:
    return KernelEntry(f"{family}_reference", family, product, is_reference=True, **settings)


_BLOCKED = (
    replace(blocked_sm90.ENTRY, convolving=CONVOLVING),  # blocks large enough for a tensor-core instruction
    blocked_gathered.ENTRY,  # smaller blocks
    blocked_triton.ENTRY,
)
# By family, in the order of `packing.FORMATS`, each family's reference first.
_ALL = (
    KernelEntry("dense_linear", "dense", dense_linear, is_reference=True),
    _reference("gathered", gathered_reference, fuses_epilogue=True),
    triton.ENTRY,
    sm90.ENTRY,
    simt.ENTRY,
    indexed.ENTRY,
    small_m.ENTRY,
    triton.TF32_ENTRY,
    quack.ENTRY,
    gathered_overlay.REFERENCE,
    gathered_overlay.COMPOSED,
    _reference("gathered_2_4", gathered_2_4.gathered_2_4_reference, fuses_epilogue=True),
    gathered_2_4.ENTRY,
    *(filled_entry(kernel, "gathered_2_4") for kernel in (sm90.ENTRY, small_m.ENTRY, triton.ENTRY)),
    _reference("blocked", blocked_reference),
    *_BLOCKED,
    _reference("blocked_2_4", blocked_2_4.blocked_2_4_reference),
    blocked_2_4.ENTRY,
    *(filled_entry(kernel, "blocked_2_4") for kernel in _BLOCKED),
    # each output keeps its own inputs: no PyTorch product can skip the others
    _reference("n_m", rebuilt_product),
    n_m_mma.ENTRY,
    n_m_small_m.ENTRY,
    n_m_rebuilt.ENTRY,
    n_m_sm90.ENTRY,
    _reference("semi_structured", rebuilt_product),
    cusparselt.ENTRY,
    # gathering X for every output would take `count` times the memory of Y
    _reference("ell", rebuilt_product),
    ell_small_m.ENTRY,
    ell_sm90.ENTRY,
    csr.REFERENCE,
    csr.TORCH,
    csr_sm90.ENTRY,
)
# The same families in low precision, the reference of each family and precision first.
_LOW_PRECISION = (
    reference_entry("dense", "fp8"),
    quantized_dense.FP8_ENTRY,
    reference_entry("dense", "int8"),
    quantized_dense.INT8_ENTRY,
    reference_entry("blocked", "fp8"),
    quantized_blocked.ENTRY,
    reference_entry("semi_structured", "fp8"),
    low_precision_2_4.FP8_ENTRY,
    torchao.ENTRY,
    reference_entry("semi_structured", "int8"),
    low_precision_2_4.INT8_ENTRY,
)
_ENTRIES: dict[str, KernelEntry] = {entry.name: entry for entry in (*_ALL, *_LOW_PRECISION)}


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
