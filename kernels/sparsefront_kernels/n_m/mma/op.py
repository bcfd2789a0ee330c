"""The n:m product with few rows of X on tensor cores as a PyTorch op."""

import torch
from torch import Tensor

from sparsefront_kernels.common.lane_launch import LaneProblem
from sparsefront_kernels.common.lane_op import lane_op
from sparsefront_kernels.n_m.mma.tuning import LAUNCHES, mma_problem


@torch.library.custom_op("sparsefront::n_m_mma", mutates_args=())
def n_m_mma(
    x: Tensor,
    values: Tensor,
    places: Tensor,
    input_order: Tensor | None,
    bias: Tensor | None,
    n: int,
    k: int,
    kept: int,
    group_size: int,
    bits: int,
) -> Tensor:
    """Y[M, N] = X[M, K] · Wᵀ + bias with the parts that `pack_for_mma` gives, for up to 64 rows of X.

    Args:
        x: [M, K], float16 or bfloat16 as `values`, any strides; rows that are contiguous and begin at 16 bytes, with K a multiple
            of 8, are read fastest.
        bias: [N], any float dtype, or None.
    Returns:
        [M, N], contiguous, in x's dtype; added up in float32.
    Raises:
        ValueError: operands that do not fit together, or more rows than 64.
    """
    problem = mma_problem(LaneProblem(x.shape[0], k, n, kept, group_size, x.element_size(), bits))
    return lane_op(LAUNCHES, x, values, places, input_order, bias, problem)


@n_m_mma.register_fake
def _(x, values, places, input_order, bias, n, k, kept, group_size, bits):
    return x.new_empty(x.shape[0], n)
