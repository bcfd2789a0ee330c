"""The n:m kernel for few rows of X as an entry of the registry."""

from torch import Tensor

from sparsefront_kernels.common.device_support import hopper_unsupported_reason
from sparsefront_kernels.common.lane_chunks import DTYPES
from sparsefront_kernels.common.lane_launch import rows_unsupported_reason
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.n_m.small_m.op import n_m_small_m
from sparsefront_kernels.n_m.small_m.packed_weight import NMSmallMPackedWeight, pack_for_small_m
from sparsefront_kernels.n_m.small_m.tuning import KERNEL, LAUNCHES
from sparsefront_kernels.problem import Problem


def _product(x: Tensor, packed: NMSmallMPackedWeight, bias: Tensor | None = None) -> Tensor:
    """x [M, K] → [M, N]."""
    return n_m_small_m(
        x,
        packed.chunks.values,
        packed.chunks.places,
        packed.input_order,
        bias,
        packed.n,
        packed.k,
        packed.kept,
        packed.group_size,
        packed.bits,
    )


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    """It is for few rows, and compiled for compute capability 9.0 alone."""
    if problem.dtype not in DTYPES:
        return f"takes float16, bfloat16 or float32, not {problem.dtype}"
    return rows_unsupported_reason(problem.m) or hopper_unsupported_reason(problem, KERNEL)


ENTRY = KernelEntry(
    name=KERNEL,
    family="n_m",
    product=_product,
    unsupported=_unsupported,
    pack=pack_for_small_m,
    requires_cuda=True,
    tunable=LAUNCHES,
)
