"""The n:m product as a PyTorch op, so that it lives in compiled graphs and CUDA graphs."""

import torch
from torch import Tensor

from sparsefront_kernels.common.operands import check_operands


@torch.library.custom_op("sparsefront::n_m_triton", mutates_args=())
def n_m_triton(x: Tensor, values: Tensor, indices: Tensor, bias: Tensor | None, m: int) -> Tensor:
    """Y[M, N] = X[M, K] · Wᵀ + bias with the tensors of `NMFormat`.

    Args:
        x: [M, K], float16, bfloat16 or float32 as `values`, any strides.
        bias: [N], any float dtype, or None.
        m: inputs per group.
    Returns:
        [M, N], contiguous, in x's dtype; added up in float32.
    Raises:
        ValueError: operands that do not fit together.
    """
    n, groups, _ = values.shape
    check_operands(x, values, bias, k=groups * m, n=n)
    y = x.new_empty(x.shape[0], n)
    if y.numel() == 0:
        return y
    # imported late: Triton may be absent where only references run
    from sparsefront_kernels.n_m.triton_spmm import launch_n_m_triton

    with torch.cuda.device_of(x):
        launch_n_m_triton(x, y, values=values, indices=indices, bias=bias, group_size=m)
    return y


@n_m_triton.register_fake
def _(x, values, indices, bias, m):
    return x.new_empty(x.shape[0], values.shape[0])
