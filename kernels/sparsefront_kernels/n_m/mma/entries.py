"""The n:m kernel on tensor cores as an entry of the registry."""

from typing import cast

import torch
from torch import Tensor

from sparsefront_kernels.common.device_support import hopper_unsupported_reason
from sparsefront_kernels.common.lane_launch import rows_unsupported_reason
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.n_m.format import NMFormat
from sparsefront_kernels.n_m.mma.op import n_m_mma
from sparsefront_kernels.n_m.mma.packed_weight import pack_for_mma, pattern_unsupported_reason
from sparsefront_kernels.n_m.mma.tuning import KERNEL, LAUNCHES
from sparsefront_kernels.n_m.small_m.packed_weight import NMSmallMPackedWeight
from sparsefront_kernels.problem import Problem


def _product(x: Tensor, packed: NMSmallMPackedWeight, bias: Tensor | None = None) -> Tensor:
    """x [M, K] → [M, N]."""
    parts = packed.chunks
    return n_m_mma(
        x,
        parts.values,
        parts.places,
        packed.input_order,
        bias,
        packed.n,
        packed.k,
        packed.kept,
        packed.group_size,
        packed.bits,
    )


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    """It is for few rows and few patterns, in 16 bits, and compiled for compute capability 9.0 alone."""
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return f"takes float16 or bfloat16, not {problem.dtype}"
    weight = cast(NMFormat, stored)
    reason = pattern_unsupported_reason(weight.n, weight.m) or rows_unsupported_reason(problem.m)
    return reason or hopper_unsupported_reason(problem, KERNEL)


ENTRY = KernelEntry(
    name=KERNEL,
    family="n_m",
    product=_product,
    unsupported=_unsupported,
    pack=pack_for_mma,
    requires_cuda=True,
    tunable=LAUNCHES,
    # At 46ccd7d (H200, ../README.md) n_m_small_m was the faster one at one row of every pattern and this one at 16 rows; they
    # met at 2.5 to 4 where it was measured before. Weights were still put into place by shifts then.
    fastest_from=4,
)
