"""The ELL kernel for few rows of X as an entry of the registry."""

from typing import cast

from torch import Tensor

from sparsefront_kernels.common.device_support import hopper_unsupported_reason
from sparsefront_kernels.common.lane_chunks import CHUNK, DTYPES
from sparsefront_kernels.common.lane_launch import rows_unsupported_reason
from sparsefront_kernels.ell.format import ELLFormat
from sparsefront_kernels.ell.small_m.op import MOST_ROWS, ell_small_m
from sparsefront_kernels.ell.small_m.packed_weight import ELLSmallMPackedWeight, pack_for_small_m
from sparsefront_kernels.ell.small_m.tuning import KERNEL, LAUNCHES, inputs_unsupported_reason, lane_problem
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import Problem


def _product(x: Tensor, packed: ELLSmallMPackedWeight, bias: Tensor | None = None) -> Tensor:
    """x [M, K] → [M, N]."""
    parts = packed.chunks
    return ell_small_m(x, parts.values, parts.places, bias, packed.n, packed.k, packed.block, packed.kept)


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    """It is for few rows, needs all inputs at once, and is compiled for compute capability 9.0 alone."""
    if problem.dtype not in DTYPES:
        return f"takes float16, bfloat16 or float32, not {problem.dtype}"
    if reason := rows_unsupported_reason(problem.m, MOST_ROWS):
        return reason
    ell = cast(ELLFormat, stored)
    kept = max(1, -(-ell.count * ell.block // CHUNK)) * CHUNK
    shape = lane_problem(problem.m, problem.k, problem.n, kept, problem.dtype.itemsize, ell.block)
    return inputs_unsupported_reason(shape) or hopper_unsupported_reason(problem, KERNEL)


ENTRY = KernelEntry(
    name=KERNEL,
    family="ell",
    product=_product,
    unsupported=_unsupported,
    pack=pack_for_small_m,
    requires_cuda=True,
    tunable=LAUNCHES,
)
