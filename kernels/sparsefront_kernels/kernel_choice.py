"""Which kernel to use for a product."""

import torch

from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.performance_model import Product, predict
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.registry import find

DTYPE_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}


def best_kernel(packed: SparseFormat, problem: Problem) -> KernelEntry:
    """The kernel that should be fastest for a stored weight and a product, without timing any.

    On a GPU it is the one that the performance model predicts to be fastest; where the model knows none of them, the
    first that can run and is meant for so many rows. Kernels that round fp32 operands to TF32 are left out.
    On a CPU it is the family's reference.

    Args:
        packed: the weight in its format, as `pack` gives it.
        problem: the product.
    Raises:
        ValueError: no kernel can run it; the message holds each one's reason.
    """
    found = find(packed, problem)
    on_gpu = problem.device.type == "cuda"
    usable = [kernel for kernel in found.usable if kernel.dtype_name is None]
    compiled = [kernel for kernel in usable if kernel.requires_cuda] if on_gpu else []
    kernels = compiled or [kernel for kernel in usable if kernel.is_reference]
    if not kernels:
        reasons = {name: why for name, why in found.unsupported.items() if name.startswith(packed.family)}
        raise ValueError(f"no kernel can run {problem}: {'; '.join(f'{name}: {why}' for name, why in reasons.items())}")
    latencies_us = {kernel.name: _predicted_us(kernel, packed, problem) for kernel in kernels} if compiled else {}
    return min(kernels, key=lambda kernel: (latencies_us.get(kernel.name, float("inf")), _is_slow(kernel, problem)))


def _is_slow(kernel: KernelEntry, problem: Problem) -> bool:
    """Whether others of its family are known to be faster."""
    return problem.m < kernel.fastest_from


def _predicted_us(kernel: KernelEntry, packed: SparseFormat, problem: Problem) -> float:
    """Infinite where the model does not know."""
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
