"""Attention within each of several sequences whose tokens are stored end to end, as one PyTorch op."""

import torch
from torch import Tensor

from sparsefront_kernels import operands
from sparsefront_kernels.custom_op import custom_op


def attend_unpadded_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    scale: float,
    bias: Tensor | None = None,
    columns: Tensor | None = None,
) -> Tensor:
    """The op `attend_unpadded` in PyTorch, in the dtype of its operands."""
    out = v.clone(memory_format=torch.contiguous_format)
    bounds = offsets.clamp(max=len(q)).tolist()
    for start, end in zip(bounds[:-1], bounds[1:], strict=True):
        if start < end:
            queries, keys, values = (part[start:end].transpose(0, 1) for part in (q, k, v))
            scores = queries @ keys.transpose(1, 2) * scale
            if bias is not None and columns is not None:
                places = columns[start:end].long()
                scores = scores + bias[:, places - places[:, None] + bias.shape[1] // 2]
            out[start:end] = (scores.softmax(-1) @ values).transpose(0, 1)
    return out


@custom_op(
    "attend_unpadded",
    "(Tensor q, Tensor k, Tensor v, Tensor offsets, float scale, Tensor? bias=None, Tensor? columns=None) -> Tensor",
)
def attend_unpadded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    scale: float,
    bias: Tensor | None = None,
    columns: Tensor | None = None,
) -> Tensor:
    """softmax(scale * Q Kᵀ + bias) V within each sequence, with sums in float32.

    Args:
        q, k, v: [T, heads, d] of one dtype, float16, bfloat16 or float32; elements of a head are contiguous.
        offsets: int32 [sequences + 1], ascending from 0: sequence i has the tokens offsets[i] to offsets[i + 1], possibly
            none. Tokens after the last one belong to no sequence and attend to themselves alone.
        bias: [heads, 2 * reach + 1] of q's dtype, contiguous: of a key at column c' for a query at column c of its
            sequence, bias[:, c' - c + reach]; None: no bias.
        columns: int32 [T], those columns, from 0 to `reach`.
    Returns:
        [T, heads, d], contiguous.
    Raises:
        ValueError: incompatible operands, or a GPU without Triton.
    """
    if q.dim() != 3 or any(part.shape != q.shape or part.dtype != q.dtype or part.stride(2) != 1 for part in (q, k, v)):
        shapes = ", ".join(f"{part.dtype} {list(part.shape)}" for part in (q, k, v))
        raise ValueError(f"q, k and v must be [T, heads, d] of one dtype, with contiguous heads, not {shapes}")
    if offsets.dtype != torch.int32 or offsets.dim() != 1 or len(offsets) < 2:
        raise ValueError(f"offsets must be int32 [sequences + 1], not {offsets.dtype} {list(offsets.shape)}")
    if bias is not None and (bias.dim() != 2 or len(bias) != q.shape[1] or not bias.shape[1] % 2 or columns is None):
        raise ValueError(f"bias must be [{q.shape[1]}, 2 * reach + 1], with columns, not {list(bias.shape)}")
    if columns is not None and (columns.dtype != torch.int32 or columns.shape != q.shape[:1]):
        raise ValueError(f"columns must be int32 [{len(q)}], not {columns.dtype} {list(columns.shape)}")
    if not q.is_cuda or q.numel() == 0:
        halves = [part if part is None else part.float() for part in (q, k, v, bias)]
        return attend_unpadded_reference(*halves[:3], offsets, scale, halves[3], columns).to(q.dtype)
    if not operands.TRITON_IS_INSTALLED:
        raise ValueError("unpadded attention on a GPU needs Triton, which is not installed: compute padding too")
    from sparsefront_kernels.attention.triton_unpadded import launch_attention

    out = q.new_empty(q.shape)
    with torch.cuda.device_of(q):
        launch_attention(q, k, v, offsets, scale, bias, columns, out)
    return out


@attend_unpadded.register_fake
def _(q, k, v, offsets, scale, bias=None, columns=None):
    if bias is not None and columns is not None:  # so that an exported graph knows which of its sizes are equal
        torch._check(bias.shape[0] == q.shape[1])
        torch._check(columns.shape[0] == q.shape[0])
    return q.new_empty(q.shape)
