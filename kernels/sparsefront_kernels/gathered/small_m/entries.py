"""The kernel for few rows of X as an entry of the registry."""

from torch import Tensor

from sparsefront_kernels.common.device_support import hopper_unsupported_reason
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.small_m.op import gathered_small_m, rows_unsupported_reason
from sparsefront_kernels.gathered.small_m.packed_weight import (
    SmallMPackedWeight,
    dtype_unsupported_reason,
    inputs_unsupported_reason,
    pack_for_small_m,
)
from sparsefront_kernels.gathered.small_m.spmm import LIBRARY
from sparsefront_kernels.gathered.small_m.tuning import KERNEL, LAUNCHES, ROW_X_LAUNCHES
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import LAYOUTS, X_FEATURE_MAJOR, Y_FEATURE_MAJOR, Problem


def _product(
    x: Tensor,
    packed: SmallMPackedWeight,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    residual: Tensor | None = None,
    layout: str,
) -> Tensor:
    """x and y in the layout's order."""
    return gathered_small_m(
        x,
        packed.panels,
        packed.lists,
        packed.row_tiles,
        packed.outputs,
        bias,
        residual,
        packed.chunks_of_each,
        packed.most_chunks,
        packed.in_order,
        packed.n,
        packed.k,
        activation,
        layout in X_FEATURE_MAJOR,
        layout in Y_FEATURE_MAJOR,
    )


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    """Why the kernel is unsupported: it is for few rows, and compiled for compute capability 9.0 alone."""
    reason = (
        rows_unsupported_reason(problem.m)
        or dtype_unsupported_reason(problem.dtype)
        or inputs_unsupported_reason(problem.k)
    )
    return reason or hopper_unsupported_reason(problem, LIBRARY)


ENTRY = KernelEntry(
    name=KERNEL,
    family="gathered",
    product=_product,
    pack=pack_for_small_m,
    unsupported=_unsupported,
    requires_cuda=True,
    layouts=LAYOUTS,
    fuses_epilogue=True,
    tunable=LAUNCHES,
    row_x_tunable=ROW_X_LAUNCHES,
)
