"""The n:m product with few rows of X as a PyTorch op."""

import torch
from torch import Tensor

from sparsefront_kernels.common.lane_launch import MOST_ROWS, LaneProblem, rows_unsupported_reason
from sparsefront_kernels.common.lane_product import launch_lane_product
from sparsefront_kernels.common.operands import bias_for_kernel, check_operands
from sparsefront_kernels.n_m.small_m.tuning import KERNEL, LAUNCHES


@torch.library.custom_op("sparsefront::n_m_small_m", mutates_args=())
def n_m_small_m(
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
    """Y[M, N] = X[M, K] · Wᵀ + bias with the parts of `NMSmallMPackedWeight`, for up to 64 rows of X.

    Args:
        x: [M, K], float16, bfloat16 or float32 as `values`, any strides; rows that are contiguous and begin at 16 bytes
            are read fastest.
        bias: [N], any float dtype, or None.
    Returns:
        [M, N], contiguous, in x's dtype; added up in float32.
    Raises:
        ValueError: operands that do not fit together, or more rows than 64.
    """
    check_operands(x, values, bias, k=k, n=n)
    if x.shape[0] > MOST_ROWS:
        raise ValueError(f"{KERNEL}: {rows_unsupported_reason(x.shape[0])}")
    y = x.new_empty(x.shape[0], n)
    if y.numel() == 0:
        return y
    problem = LaneProblem(x.shape[0], k, n, kept, group_size, x.element_size(), bits)
    with torch.cuda.device_of(x):
        launch_lane_product(
            KERNEL,
            x,
            y,
            values=values,
            places=places,
            order=input_order,
            bias=bias_for_kernel(bias),
            problem=problem,
            launch=LAUNCHES.launch_for(problem, x.device),
        )
    return y


@n_m_small_m.register_fake
def _(x, values, places, input_order, bias, n, k, kept, group_size, bits):
    return x.new_empty(x.shape[0], n)
