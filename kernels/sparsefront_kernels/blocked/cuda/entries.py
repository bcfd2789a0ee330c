"""The blocked kernel on Hopper's tensor cores as an entry of the registry."""

import torch
from torch import Tensor

from sparsefront_kernels.blocked.cuda.convolution import CONVOLVING
from sparsefront_kernels.blocked.cuda.op import blocked_sm90
from sparsefront_kernels.blocked.cuda.packed_weight import (
    K_BLOCK,
    BlockedCudaWeight,
    block_unsupported_reason,
    box_of,
    pack_for_blocked_sm90,
)
from sparsefront_kernels.blocked.cuda.spmm import LIBRARY
from sparsefront_kernels.blocked.cuda.tuning import KERNEL, LAUNCHES
from sparsefront_kernels.common.device_support import hopper_unsupported_reason
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import LAYOUTS, X_FEATURE_MAJOR, Y_FEATURE_MAJOR, Problem


def blocked_sm90_product(
    x: Tensor,
    packed: BlockedCudaWeight,
    bias: Tensor | None = None,
    *,
    layout: str,
    activation: str = "none",
    residual: Tensor | None = None,
) -> Tensor:
    return blocked_sm90(
        x,
        packed.panels,
        packed.k_blocks,
        packed.outputs,
        bias,
        residual,
        packed.lengths,
        packed.box,
        packed.n,
        packed.k,
        activation,
        layout in X_FEATURE_MAJOR,
        layout in Y_FEATURE_MAJOR,
    )


def blocked_sm90_unsupported_reason(stored: SparseFormat, problem: Problem) -> str | None:
    """Why the Hopper kernel is unsupported: its instructions exist on compute capability 9.0 alone."""
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return f"takes float16 or bfloat16, not {problem.dtype}"
    if reason := block_unsupported_reason(stored.block):
        return reason
    if problem.layout in X_FEATURE_MAJOR and (box := box_of(stored.block[1])) < K_BLOCK:
        return (
            f"takes boxes of {K_BLOCK} inputs where X is feature-major, not of {box}: "
            "there the gathered kernel reads single inputs as fast"
        )
    return hopper_unsupported_reason(problem, LIBRARY)


ENTRY = KernelEntry(
    name=KERNEL,
    family="blocked",
    product=blocked_sm90_product,
    pack=pack_for_blocked_sm90,
    unsupported=blocked_sm90_unsupported_reason,
    requires_cuda=True,
    layouts=LAYOUTS,
    fuses_epilogue=True,
    tunable=LAUNCHES,
    convolving=CONVOLVING,
)
