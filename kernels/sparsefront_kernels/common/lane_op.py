"""What the ops of kernels of which every lane owns an output have in common: all but their names and problems."""

import torch
from torch import Tensor

from sparsefront_kernels.common.lane_launch import MOST_ROWS, LaneProblem, rows_unsupported_reason
from sparsefront_kernels.common.lane_product import launch_lane_product
from sparsefront_kernels.common.operands import bias_for_kernel, check_operands
from sparsefront_kernels.tuning import TunedLaunches


def lane_op(
    launches: TunedLaunches,
    x: Tensor,
    values: Tensor,
    places: Tensor,
    order: Tensor | None,
    bias: Tensor | None,
    problem: LaneProblem,
    most_rows: int = MOST_ROWS,
) -> Tensor:
    """Y[M, N] = X[M, K] · Wᵀ + bias with values and places as `launch_lane_product` takes them.

    Args:
        launches: of the kernel, which is named like its library.
        x: float16, bfloat16 or float32 as `values`, any strides.
        bias: [N], any float dtype, or None.
        most_rows: of X.
    Returns:
        [M, N], contiguous, in x's dtype; added up in float32.
    Raises:
        ValueError: operands that do not fit together, or more rows.
    """
    check_operands(x, values, bias, k=problem.k, n=problem.n)
    if reason := rows_unsupported_reason(x.shape[0], most_rows):
        raise ValueError(f"{launches.kernel}: {reason}")
    y = x.new_empty(x.shape[0], problem.n)
    if y.numel() == 0:
        return y
    with torch.cuda.device_of(x):
        launch_lane_product(
            launches.kernel,
            x,
            y,
            values=values,
            places=places,
            order=order,
            bias=bias_for_kernel(bias),
            problem=problem,
            launch=launches.launch_for(problem, x.device),
        )
    return y
