"""The ELL product with few rows of X as a PyTorch op."""

import torch
from torch import Tensor

from sparsefront_kernels.common.lane_op import lane_op
from sparsefront_kernels.ell.small_m.tuning import LAUNCHES, lane_problem

MOST_ROWS = 16


@torch.library.custom_op("sparsefront::ell_small_m", mutates_args=())
def ell_small_m(
    x: Tensor, values: Tensor, places: Tensor, bias: Tensor | None, n: int, k: int, block: int, kept: int
) -> Tensor:
    """Y[M, N] = X[M, K] · Wᵀ + bias with the parts of `ELLSmallMPackedWeight`, for up to 16 rows of X.

    Args:
        x: [M, K], float16, bfloat16 or float32 as `values`, any strides; rows that are contiguous and begin at 16 bytes
            are read fastest.
        bias: [N], any float dtype, or None.
    Returns:
        [M, N], contiguous, in x's dtype; added up in float32.
    Raises:
        ValueError: operands that do not fit together, or more rows than 16.
    """
    problem = lane_problem(x.shape[0], k, n, kept, x.element_size(), block)
    return lane_op(LAUNCHES, x, values, places, None, bias, problem, MOST_ROWS)


@ell_small_m.register_fake
def _(x, values, places, bias, n, k, block, kept):
    return x.new_empty(x.shape[0], n)
