"""The 16-bit kernel on Hopper's tensor cores as an entry of the registry."""

import torch
from torch import Tensor

from sparsefront_kernels.common.device_support import hopper_unsupported_reason
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.cuda import narrow, wide
from sparsefront_kernels.gathered.cuda.op import gathered_sm90
from sparsefront_kernels.gathered.cuda.packed_weight import CudaPackedWeight, pack_for_sm90, tile_unsupported_reason
from sparsefront_kernels.gathered.cuda.tuning import KERNEL, LAUNCHES
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import LAYOUTS, X_FEATURE_MAJOR, Y_FEATURE_MAJOR, Problem


def gathered_sm90_product(
    x: Tensor,
    packed: CudaPackedWeight,
    bias: Tensor | None = None,
    *,
    layout: str,
    activation: str = "none",
    residual: Tensor | None = None,
) -> Tensor:
    """As `triton_product`; the kernel reads X feature-major, so that otherwise X is transposed on the way."""
    return gathered_sm90(
        x,
        packed.panels,
        packed.k_blocks,
        packed.cta_tiles,
        packed.outputs,
        bias,
        residual,
        packed.compact,
        packed.place,
        packed.k_blocks_of_each,
        packed.whole_runs,
        packed.lengths,
        packed.n,
        packed.k,
        activation,
        layout in X_FEATURE_MAJOR,
        layout in Y_FEATURE_MAJOR,
    )


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    return sixteen_bits_unsupported_reason(problem, tile_unsupported_reason(stored.tile))


def sixteen_bits_unsupported_reason(problem: Problem, other_reason: str | None = None) -> str | None:
    """Why the Hopper kernels are unsupported: their instructions exist on compute capability 9.0 alone.

    Args:
        other_reason: that is named where the dtype is supported.
    """
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return f"takes float16 or bfloat16, not {problem.dtype}"
    return (
        other_reason
        or hopper_unsupported_reason(problem, narrow.LIBRARY)
        or hopper_unsupported_reason(problem, wide.LIBRARY)
    )


ENTRY = KernelEntry(
    name=KERNEL,
    family="gathered",
    product=gathered_sm90_product,
    pack=pack_for_sm90,
    unsupported=_unsupported,
    requires_cuda=True,
    layouts=LAYOUTS,
    fuses_epilogue=True,
    tunable=LAUNCHES,
)
