"""Attention of one new token per row to a static cache of keys and values, which it writes, as one PyTorch op."""

import torch
from torch import Tensor

from sparsefront_kernels import operands
from sparsefront_kernels.custom_op import custom_op
from sparsefront_kernels.epilogue import accumulation_dtype


def attend_cached_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    scale: float,
    mask: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
) -> Tensor:
    """The op `attend_cached` in PyTorch; 16-bit operands are accumulated in float32."""
    wide = accumulation_dtype(q.dtype)
    rotated = [_rotate(part.to(wide), cos, sin) for part in (q, k)]
    keys.index_copy_(2, position.long(), rotated[1].to(keys.dtype)[:, :, None])
    values.index_copy_(2, position.long(), v[:, :, None])
    group = q.shape[1] // keys.shape[1]
    queries = rotated[0].unflatten(1, (-1, group))  # [B, key heads, group, d]
    scores = queries @ keys.to(wide).transpose(2, 3) * scale
    attends = (torch.arange(keys.shape[2], device=q.device) <= position)[None, None, None]
    if mask is not None and mask.dtype == torch.bool:
        attends = attends & mask[:, None, None]
    elif mask is not None:
        scores = scores + mask.to(wide)[:, None, None]
    weights = scores.masked_fill(~attends, -torch.inf).softmax(-1).nan_to_num()  # 0 where a row attends to nothing
    return (weights @ values.to(wide)).flatten(1, 2).to(q.dtype)


def _rotate(x: Tensor, cos: Tensor | None, sin: Tensor | None) -> Tensor:
    """The first features of x [B, heads, d] rotated, as many as cos [B, rotary] has."""
    if cos is None or sin is None:
        return x
    cos, sin = cos.to(x.dtype)[:, None], sin.to(x.dtype)[:, None]
    rotated, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = rotated.chunk(2, -1)
    return torch.cat([rotated * cos + torch.cat([-second, first], -1) * sin, rest], -1)


@custom_op(
    "attend_cached",
    "(Tensor q, Tensor k, Tensor v, Tensor(a!) keys, Tensor(b!) values, Tensor position, float scale, "
    "Tensor? mask=None, Tensor? cos=None, Tensor? sin=None) -> Tensor",
)
def attend_cached(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    scale: float,
    mask: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
) -> Tensor:
    """Rotate q and k, write k and v into the cache at `position`, and attend to the cache up to there.

    softmax(scale * Q Kᵀ + mask) V, with sums in float32. Rotary embedding is that of GPT-NeoX and Llama: feature i is paired
    with i + rotary / 2.

    Args:
        q: [B, heads, d], float16, bfloat16 or float32 (on a CPU float64 too); elements of a head are contiguous.
        k, v: [B, key heads, d], likewise; `heads` is a multiple of the key heads.
        keys, values: [B, key heads, length, d] of q's dtype, contiguous; changed at `position`.
        position: integer [1], less than length; read on the device, so that a CUDA graph is right for every position. Another
            position raises IndexError on a CPU; on a GPU it writes nothing and gives NaN.
        mask: [B or 1, length]: bool, True = attend, or of a float dtype and added to the scores; None: attends to all up to
            the position. A row that attends to nothing gives 0.
        cos, sin: [B or 1, rotary] of a float dtype, for the first `rotary` features, an even number; None: no rotation.
    Returns:
        [B, heads, d], contiguous.
    Raises:
        ValueError: incompatible operands, or a GPU without Triton.
    """
    _require_fitting(q, k, v, keys, values, position, mask, cos, sin)
    mask, cos, sin = (_per_row(part, len(q)) for part in (mask, cos, sin))
    if not q.is_cuda or q.numel() == 0:
        return attend_cached_reference(q, k, v, keys, values, position, scale, mask, cos, sin)
    if not operands.TRITON_IS_INSTALLED:
        raise ValueError("attention to a cache on a GPU needs Triton, which is not installed")
    from sparsefront_kernels.attention.triton_cached import launch_cached_attention

    out = q.new_empty(q.shape)
    with torch.cuda.device_of(q):
        launch_cached_attention(q, k, v, keys, values, position, scale, mask, cos, sin, out)
    return out


@attend_cached.register_fake
def _(q, k, v, keys, values, position, scale, mask=None, cos=None, sin=None):
    return q.new_empty(q.shape)


def _per_row(part: Tensor | None, rows: int) -> Tensor | None:
    """[B, n] with contiguous rows."""
    if part is None:
        return None
    part = part if part.stride(1) == 1 else part.contiguous()
    return part.expand(rows, -1)


def _require_fitting(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    mask: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
) -> None:
    parts = (q, k, v)
    if any(part.dim() != 3 or part.dtype != q.dtype or part.stride(2) != 1 for part in parts) or k.shape != v.shape:
        shapes = ", ".join(f"{part.dtype} {list(part.shape)}" for part in parts)
        raise ValueError(f"q must be [B, heads, d], k and v [B, key heads, d], with contiguous heads, not {shapes}")
    batch, key_heads, d = k.shape
    if q.shape[::2] != (batch, d) or q.shape[1] % max(key_heads, 1):
        raise ValueError(f"q must be [{batch}, a multiple of {key_heads}, {d}], not {list(q.shape)}")
    for name, cache in (("keys", keys), ("values", values)):
        if cache.dim() != 4 or cache.shape[:2] + cache.shape[3:] != k.shape or cache.shape != keys.shape:
            raise ValueError(f"{name} must be [{batch}, {key_heads}, length, {d}], not {list(cache.shape)}")
        if cache.dtype != q.dtype or not cache.is_contiguous():
            raise ValueError(f"{name} must be contiguous {q.dtype}, not {cache.dtype} with strides {cache.stride()}")
    if position.shape != (1,) or position.is_floating_point():
        raise ValueError(f"position must be an integer [1], not {position.dtype} {list(position.shape)}")
    if mask is not None and (mask.dim() != 2 or len(mask) not in (1, batch) or mask.shape[1] != keys.shape[2]):
        raise ValueError(f"mask must be [{batch} or 1, {keys.shape[2]}], not {list(mask.shape)}")
    if (cos is None) != (sin is None):
        raise ValueError("cos and sin are both given, or neither")
    if cos is not None and sin is not None:
        fits = cos.dim() == 2 and len(cos) in (1, batch) and cos.shape[1] <= d and cos.shape[1] % 2 == 0
        if not fits or cos.shape != sin.shape or cos.dtype != sin.dtype:
            raise ValueError(
                f"cos and sin must be [{batch} or 1, an even number up to {d}], not {list(cos.shape)}, {list(sin.shape)}"
            )
