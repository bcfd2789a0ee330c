"""The blocked product as a PyTorch op, so that it lives in compiled graphs and CUDA graphs."""

import torch
from torch import Tensor

from sparsefront_kernels.blocked.triton_tuning import LAUNCHES, problem_of
from sparsefront_kernels.common.operands import check_operands


@torch.library.custom_op("sparsefront::blocked_triton", mutates_args=())
def blocked_triton(
    x: Tensor,
    values: Tensor,
    row_pointers: Tensor,
    block_columns: Tensor,
    bias: Tensor | None,
    n: int,
    k: int,
) -> Tensor:
    """Y[M, N] = X[M, K] · Wᵀ + bias with the tensors of `BlockedFormat`.

    Args:
        x: [M, K], float16, bfloat16 or float32 as `values`, any strides.
        bias: [N], any float dtype, or None.
    Returns:
        [M, N], contiguous, in x's dtype; added up in float32.
    Raises:
        ValueError: operands that do not fit together.
    """
    check_operands(x, values, bias, k=k, n=n)
    y = x.new_empty(x.shape[0], n)
    if y.numel() == 0:
        return y
    # imported late: Triton may be absent where only references run
    from sparsefront_kernels.blocked.triton_spmm import launch_blocked_triton

    launch = LAUNCHES.launch_for(problem_of(x.shape[0], n, k, values), x.device)
    with torch.cuda.device_of(x):
        launch_blocked_triton(
            x, y, values=values, row_pointers=row_pointers, block_columns=block_columns, bias=bias, launch=launch
        )
    return y


@blocked_triton.register_fake
def _(x, values, row_pointers, block_columns, bias, n, k):
    return x.new_empty(x.shape[0], n)
