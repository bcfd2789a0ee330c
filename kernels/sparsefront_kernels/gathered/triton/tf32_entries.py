"""The Triton kernel with products in TF32 as an entry of the registry."""

from functools import partial

import torch

from sparsefront_kernels.common.device_support import triton_unsupported_reason
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.triton.packed_weight import pack_for_triton
from sparsefront_kernels.gathered.triton.product import triton_product
from sparsefront_kernels.gathered.triton.tf32_tuning import KERNEL, LAUNCHES
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import LAYOUTS, Problem


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    """Why the kernel is unsupported: it needs the user's permission to round float32, as PyTorch's own products do."""
    if problem.dtype != torch.float32:
        return f"takes float32, not {problem.dtype}"
    if torch.backends.cuda.matmul.fp32_precision != "tf32":
        return 'rounds products to TF32, which torch.backends.cuda.matmul.fp32_precision = "tf32" has to allow'
    return triton_unsupported_reason(stored, problem)


ENTRY = KernelEntry(
    name=KERNEL,
    family="gathered",
    product=partial(triton_product, tf32=True),
    pack=pack_for_triton,
    unsupported=_unsupported,
    requires_cuda=True,
    layouts=LAYOUTS,
    dtype_name="tf32",
    fuses_epilogue=True,
    tunable=LAUNCHES,
)
