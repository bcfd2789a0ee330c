"""`n_m_rebuilt`: the dense weight is rebuilt in memory by Triton (`triton_rebuild.py`), then multiplied by cuBLAS.

It runs from compute capability 8.0 on. It costs a dense product and a pass over the weight, and so never beats dense: it is for
weights stored as n:m on other GPUs, and for many rows of X. float32 is multiplied in TF32 if PyTorch allows that, as in the dense
layer.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from sparsefront_kernels.device_support import triton_unsupported_reason
from sparsefront_kernels.indices import columns_back
from sparsefront_kernels.kernel_op import kernel_entry
from sparsefront_kernels.n_m.format import NMFormat
from sparsefront_kernels.operands import check_operands


@dataclass(frozen=True, eq=False)
class NMRebuiltWeight:
    """The tensors of `NMFormat`, which the kernel reads directly.

    Args:
        n, k: outputs and inputs of the weight.
        group_size: m of the pattern.
        values: [N, K / m, n of the pattern], float16, bfloat16 or float32.
        indices: uint8, of values' shape.
        input_order: int32 [K] or None.
    """

    n: int
    k: int
    group_size: int
    values: Tensor
    indices: Tensor
    input_order: Tensor | None


def pack_for_rebuild(stored: NMFormat) -> NMRebuiltWeight:
    """Copies nothing."""
    return NMRebuiltWeight(*stored.shape, stored.m, stored.values, stored.indices, stored.input_order)


def n_m_rebuilt(
    x: Tensor, packed: NMRebuiltWeight, bias: Tensor | None, *, x_feature_major: bool, y_feature_major: bool
) -> Tensor:
    """Y = X · Wᵀ + bias, X and Y in the same order.

    Args:
        x: [M, K], or [K, M] if x_feature_major; float16, bfloat16 or float32 like the weight, any strides.
        bias: [N], any float dtype, or None.
    Returns:
        [M, N], or [N, M] if y_feature_major, in x's dtype; accumulated by cuBLAS.
    Raises:
        ValueError: incompatible operands.
    """
    check_operands(x, packed.values, bias, k=packed.k, n=packed.n, feature_major=x_feature_major)
    weight = _rebuilt(packed)
    bias = bias if bias is None else bias.to(x.dtype)
    if not y_feature_major:
        return linear(x, weight, bias)
    return weight @ x if bias is None else torch.addmm(bias[:, None], weight, x)


def _rebuilt(packed: NMRebuiltWeight) -> Tensor:
    """The dense weight [N, K], contiguous, inputs in ascending order."""
    weight = packed.values.new_empty(packed.n, packed.k)
    if weight.numel() == 0:
        return weight
    # late: Triton may be missing if only references run
    from sparsefront_kernels.n_m.triton_rebuild import launch_n_m_rebuild

    with torch.cuda.device_of(packed.values):
        launch_n_m_rebuild(
            weight, values=packed.values, indices=packed.indices, order=packed.input_order, group_size=packed.group_size
        )
    return weight


def dense_weight(packed: NMRebuiltWeight) -> Tensor:
    """W [N, K] in PyTorch operations, for gradients."""
    groups = packed.values.new_zeros(packed.n, packed.k // packed.group_size, packed.group_size)
    arranged = groups.scatter(2, packed.indices.long(), packed.values).view(packed.n, packed.k)
    return columns_back(arranged, packed.input_order)


ENTRY = kernel_entry(
    "n_m_rebuilt",
    "n_m",
    weight=NMRebuiltWeight,
    run=n_m_rebuilt,
    dense=dense_weight,
    pack=pack_for_rebuild,
    unsupported=triton_unsupported_reason,
    layouts=("row_major", "feature_major"),
)
