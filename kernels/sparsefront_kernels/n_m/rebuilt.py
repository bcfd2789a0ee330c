"""`n_m_rebuilt`, products with many rows: the dense weight is rebuilt in memory, then multiplied by cuBLAS.

It costs a dense product and a pass over the weight. It never beats dense; it is for networks that keep their weights as
n:m, and for products of so many rows that rebuilding windows in registers (`n_m_triton`) takes longer. float32 is multiplied as
PyTorch multiplies it: in TF32 where that is allowed, as the dense layer would be.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear

from sparsefront_kernels.common.device_support import triton_unsupported_reason
from sparsefront_kernels.common.operands import check_operands
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.n_m.format import NMFormat


@torch.library.custom_op("sparsefront::n_m_rebuild", mutates_args=())
def n_m_rebuild(values: Tensor, indices: Tensor, order: Tensor | None, m: int) -> Tensor:
    """The dense weight of an `NMFormat`, whose tensors these are.

    Args:
        values: [N, K / m, n], float16, bfloat16 or float32.
        indices: uint8 [N, K / m, n].
        order: int32 [K], the format's `input_order`, or None.
        m: inputs per group.
    Returns:
        [N, K], contiguous, its inputs in ascending order.
    """
    n, groups, _ = values.shape
    dense = values.new_empty(n, groups * m)
    if dense.numel() == 0:
        return dense
    # imported late: Triton may be absent where only references run
    from sparsefront_kernels.n_m.triton_rebuild import launch_n_m_rebuild

    with torch.cuda.device_of(values):
        launch_n_m_rebuild(dense, values=values, indices=indices, order=order, group_size=m)
    return dense


@n_m_rebuild.register_fake
def _(values, indices, order, m):
    return values.new_empty(values.shape[0], values.shape[1] * m)


def _rebuilt(x: Tensor, stored: NMFormat, bias: Tensor | None = None, *, layout: str) -> Tensor:
    """x and y in the layout's order."""
    n, k = stored.shape
    check_operands(x, stored.values, bias, k=k, n=n, feature_major=layout == "feature_major")
    dense = n_m_rebuild(stored.values, stored.indices, stored.input_order, stored.m)
    bias = bias if bias is None else bias.to(x.dtype)
    if layout == "row_major":
        return linear(x, dense, bias)
    return dense @ x if bias is None else torch.addmm(bias[:, None], dense, x)


ENTRY = KernelEntry(
    name="n_m_rebuilt",
    family="n_m",
    product=_rebuilt,
    unsupported=triton_unsupported_reason,
    requires_cuda=True,
    layouts=("row_major", "feature_major"),
)
