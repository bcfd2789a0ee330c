"""One token's attention to a static cache, in Triton: a program owns one head of keys, its queries, and a part of the cache.

The first part also rotates the new key and writes it, with its value, into the cache; no program reads that place.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsefront_kernels.cuda.launch import num_sms, supports_pdl

# keys per k-block, warps, pipeline stages: of 16-bit types and of float32
LAUNCH, LAUNCH_FP32 = (64, 4, 3), (32, 4, 2)
FEWEST_KEYS = 128  # of a part: fewer cost less than the reduction over the parts
MOST_PARTS = 32
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _rotate(x, x_ptr, exists, feature, rotary, cos, sin):
    """x in float32, and its first `rotary` features rotated; the other half of each pair is read again."""
    half = rotary // 2
    partner = tl.where(feature < half, feature + half, feature - half)
    other = tl.load(x_ptr + partner, exists & (feature < rotary), 0.0).to(tl.float32)
    return x * cos + tl.where(feature < half, -other, other) * sin


@triton.jit
def _mask_scores(scores, mask_ptr, key, exists, MASK: tl.constexpr):
    """Scores in units of log2, -inf where a key does not exist or is masked."""
    if MASK == "bool":
        exists = (tl.load(mask_ptr + key, exists, 0) != 0) & exists
    elif MASK == "added":
        scores += tl.load(mask_ptr + key, exists, 0.0).to(tl.float32) * LOG2_E
    return tl.where(exists, scores, -float("inf"))


@triton.jit
def _attend_cached_kernel(
    q_ptr,  # [B, heads, d], rows and heads through their strides
    k_ptr,  # [B, key heads, d], likewise
    v_ptr,  # likewise
    keys_ptr,  # [B, key heads, length, d], contiguous
    values_ptr,  # likewise
    position_ptr,  # [1]
    mask_ptr,  # [B, length], rows through their stride
    cos_ptr,  # [B, rotary], rows through their stride
    sin_ptr,  # likewise
    out_ptr,  # [B, heads, parts, d], contiguous: sums of values, divided by their weights' sum where there is one part
    totals_ptr,  # [B, heads, parts, 2]: largest score in units of log2, and the sum of weights
    key_heads,
    length,
    d,
    rotary,
    scale,
    stride_q,
    stride_qh,
    stride_k,
    stride_kh,
    stride_v,
    stride_vh,
    stride_mask,
    stride_cos,
    MASK: tl.constexpr,
    ROTATES: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PDL: tl.constexpr,
):
    batch, key_head = (tl.program_id(0) // key_heads).to(tl.int64), tl.program_id(0) % key_heads
    part = tl.program_id(1)
    if PDL:
        tl.extra.cuda.gdc_wait()  # the product of q, k and v may still be running
        tl.extra.cuda.gdc_launch_dependents()  # kernels that read the output wait for the end of this one
    position = tl.load(position_ptr)
    fits = (position >= 0) & (position < length)  # else nothing is read or written, and the output is NaN
    position = tl.where(fits, position, 0).to(tl.int32)
    row, feature = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    in_head, in_group = feature < d, (row < GROUP)[:, None]
    if ROTATES:
        rotates = feature < rotary
        cos = tl.load(cos_ptr + batch * stride_cos + feature, rotates, 1.0).to(tl.float32)
        sin = tl.load(sin_ptr + batch * stride_cos + feature, rotates, 0.0).to(tl.float32)
    q_rows = q_ptr + batch * stride_q + (key_head * GROUP + row)[:, None] * stride_qh
    exists = in_group & in_head[None, :]
    q = tl.load(q_rows + feature[None, :], exists, 0.0).to(tl.float32)
    if ROTATES:
        q = _rotate(q, q_rows, exists, feature[None, :], rotary, cos[None, :], sin[None, :])

    dtype = keys_ptr.dtype.element_ty
    first_key = tl.program_id(0).to(tl.int64) * length * d
    keys, values = keys_ptr + first_key + feature[None, :], values_ptr + first_key + feature[None, :]
    mask_row = mask_ptr + batch * stride_mask
    largest = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, BLOCK_D], tl.float32)
    if part == 0:
        k_row = k_ptr + batch * stride_k + key_head * stride_kh
        k = tl.load(k_row + feature, in_head, 0.0).to(tl.float32)
        if ROTATES:
            k = _rotate(k, k_row, in_head, feature, rotary, cos, sin)
        k = k.to(dtype)
        v = tl.load(v_ptr + batch * stride_v + key_head * stride_vh + feature, in_head, 0.0)
        place = first_key + position.to(tl.int64) * d + feature
        is_new = feature < tl.where(fits, d, 0)
        tl.store(keys_ptr + place, k, is_new)
        tl.store(values_ptr + place, v, is_new)
        v = tl.where(is_new, v.to(tl.float32), float("nan"))
        scores = tl.sum(q * k.to(tl.float32)[None, :], 1) * (scale * LOG2_E)
        largest = _mask_scores(scores, mask_row, position + row * 0, row < tl.where(fits, ROWS, 0), MASK)
        total = tl.where(largest > -float("inf"), 1.0, 0.0)
        sums = total[:, None] * v[None, :]

    q_narrow = q.to(dtype)
    per_part = tl.cdiv(tl.cdiv(position, PARTS), BLOCK_N) * BLOCK_N
    first = part * per_part
    end = tl.minimum(first + per_part, position)
    for start in range(first, end, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        cached = (key < end)[:, None] & in_head[None, :]
        offsets = key.to(tl.int64)[:, None] * d
        k = tl.load(keys + offsets, cached, 0.0)
        v = tl.load(values + offsets, cached, 0.0)
        if GROUP == 1:
            scores = tl.sum(k.to(tl.float32) * q, 1)[None, :]
        else:
            scores = tl.dot(q_narrow, tl.trans(k), input_precision="ieee")
        scores = _mask_scores(scores * (scale * LOG2_E), mask_row, key[None, :], (key < end)[None, :], MASK)
        larger = tl.maximum(largest, tl.max(scores, 1))
        shift = tl.where(larger > -float("inf"), larger, 0.0)  # of a row without any key so far
        weights, shrink = tl.exp2(scores - shift[:, None]), tl.exp2(largest - shift)
        if GROUP == 1:
            sums = sums * shrink[:, None] + tl.sum(tl.trans(weights) * v.to(tl.float32), 0)[None, :]
        else:
            sums = tl.dot(weights.to(dtype), v, sums * shrink[:, None], input_precision="ieee")
        total = total * shrink + tl.sum(weights, 1)
        largest = larger

    out_row = (tl.program_id(0).to(tl.int64) * GROUP + row) * PARTS + part
    if PARTS == 1:
        sums = sums / tl.where(total > 0.0, total, 1.0)[:, None]
    else:
        tl.store(totals_ptr + out_row * 2, largest, row < GROUP)
        tl.store(totals_ptr + out_row * 2 + 1, total, row < GROUP)
    out = out_ptr + out_row[:, None] * d + feature[None, :]
    tl.store(out, sums.to(out_ptr.dtype.element_ty), exists)


@triton.jit
def _reduce_parts_kernel(
    sums_ptr,  # [rows, parts, d]
    totals_ptr,  # [rows, parts, 2]
    out_ptr,  # [rows, d]
    d,
    PARTS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    part, feature = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_D)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    place = row * PARTS + part
    largest = tl.load(totals_ptr + place * 2, part < PARTS, -float("inf"))
    total = tl.load(totals_ptr + place * 2 + 1, part < PARTS, 0.0)
    exists = (part < PARTS)[:, None] & (feature < d)[None, :]
    sums = tl.load(sums_ptr + place[:, None] * d + feature[None, :], exists, 0.0)
    shift = tl.max(largest, 0)
    shrink = tl.exp2(largest - tl.where(shift > -float("inf"), shift, 0.0))
    weight = tl.sum(total * shrink, 0)
    y = tl.sum(sums * shrink[:, None], 0) / tl.where(weight > 0.0, weight, 1.0)
    tl.store(out_ptr + row * d + feature, y.to(out_ptr.dtype.element_ty), feature < d)


def count_parts(programs: int, length: int, sms: int) -> int:
    """Parts of a cache of this length, so that about two programs run on each SM: one where the cache is short."""
    return max(1, min(MOST_PARTS, 2 * sms // programs, length // FEWEST_KEYS))


def launch_cached_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    scale: float,
    mask: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    out: Tensor,
    *,
    launch: tuple[int, int, int] | None = None,
    parts: int | None = None,
) -> None:
    """Write out [B, heads, d], and the new key and value, on the current device; operands as in the op.

    Args:
        launch: keys per k-block, warps and pipeline stages; None: those of the dtype.
        parts: of the cache; None: `count_parts`.
    """
    (batch, heads, d), (key_heads, length) = q.shape, keys.shape[1:3]
    group, block_d = heads // key_heads, max(16, triton.next_power_of_2(d))
    block_n, warps, stages = launch or (LAUNCH_FP32 if q.dtype == torch.float32 else LAUNCH)
    block_n = block_n // 2 if launch is None and block_d > 128 else block_n  # of an A100's shared memory, too
    parts = parts or count_parts(batch * key_heads, length, num_sms(q.device))
    sums, totals = out, out
    if parts > 1:
        sums = torch.empty(batch * heads, parts, d, dtype=torch.float32, device=q.device)
        totals = torch.empty(batch * heads, parts, 2, dtype=torch.float32, device=q.device)
    pdl = supports_pdl(q.device)
    dependent = {"launch_pdl": True} if pdl else {}
    _attend_cached_kernel[(batch * key_heads, parts)](
        *(q, k, v, keys, values, position, q if mask is None else mask),
        *(q if part is None else part for part in (cos, sin)),
        *(sums, totals, key_heads, length, d, 0 if cos is None else cos.shape[1], scale),
        *(stride for part in (q, k, v) for stride in part.stride()[:2]),
        *(0 if part is None else part.stride(0) for part in (mask, cos)),
        MASK="none" if mask is None else "bool" if mask.dtype == torch.bool else "added",
        ROTATES=cos is not None,
        GROUP=group,
        ROWS=1 if group == 1 else max(16, triton.next_power_of_2(group)),
        PARTS=parts,
        BLOCK_N=block_n,
        BLOCK_D=block_d,
        PDL=pdl,
        num_warps=warps,
        num_stages=stages,
        **dependent,
    )
    if parts > 1:
        _reduce_parts_kernel[(batch * heads,)](
            *(sums, totals, out, d),
            PARTS=parts,
            BLOCK_P=triton.next_power_of_2(parts),
            BLOCK_D=block_d,
            PDL=pdl,
            num_warps=4,
            **dependent,
        )
