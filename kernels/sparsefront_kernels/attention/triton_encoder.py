"""Attention of an encoder in Triton, on activations of any layout: a program owns a block of queries of one sequence and head.

Feature-major activations are loaded as [features, tokens] tiles, which are legal operands of the tensor cores. Where sequences
begin between aligned groups of eight tokens, a program reads whole groups: its *window* begins up to seven tokens early, and the
scores of the neighbors' tokens are masked.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# queries and keys per program and k-block, warps, pipeline stages
LAUNCH, LAUNCH_FP32 = (128, 64, 8, 3), (32, 32, 4, 1)
NARROW = (64, 64, 4, 3)  # of 16-bit types where it computes fewer queries that do not exist
GROUP = 8  # elements of 16 bits per load
LEAST = 16  # keys of a tensor core product


@triton.jit
def _load_tile(
    ptr,
    row,  # [features], row or column of each feature
    computed,  # [features], whether there is one
    token,  # [tokens], of all sequences
    end,  # of the sequence
    stride,
    FEATURE_MAJOR: tl.constexpr,
    WHOLE_ROWS: tl.constexpr,
    WHOLE_TOKENS: tl.constexpr,
    UNIT: tl.constexpr,
):
    """[features, tokens]; zero where a feature is not computed, and behind the group of tokens with the sequence's last."""
    if FEATURE_MAJOR:
        offset = row.to(tl.int64)[:, None] * (stride * UNIT) + token[None, :]
        exists = (token // UNIT * UNIT < end)[None, :]
    else:
        offset = row[:, None] + token.to(tl.int64)[None, :] * (stride * UNIT)
        exists = (token < end)[None, :]
    if WHOLE_ROWS and WHOLE_TOKENS:
        return tl.load(ptr + offset)
    if WHOLE_TOKENS:
        return tl.load(ptr + offset, computed[:, None], 0.0)
    if WHOLE_ROWS:
        return tl.load(ptr + offset, exists, 0.0)
    return tl.load(ptr + offset, computed[:, None] & exists, 0.0)


@triton.jit
def _attend_block(
    q,  # [queries, features]
    largest,  # [queries], of the scores, in units of log2
    total,  # [queries], sum of weights
    sums,  # [queries, features], weighted values
    k_ptr,
    v_ptr,
    mask_ptr,  # of the queries' rows
    k_row,
    has_k,
    v_row,
    has_v,
    token,  # [keys], of all sequences
    start,
    end,
    query,  # [queries], rows of the mask
    scale,
    k_stride,
    v_stride,
    mask_q,
    mask_k,
    FEATURE_MAJOR: tl.constexpr,
    WHOLE_ROWS: tl.constexpr,
    WHOLE_TOKENS: tl.constexpr,
    MASK: tl.constexpr,
    UNIT: tl.constexpr,
):
    """`largest`, `total` and `sums` with these keys too."""
    k = _load_tile(k_ptr, k_row, has_k, token, end, k_stride, FEATURE_MAJOR, WHOLE_ROWS, WHOLE_TOKENS, UNIT)
    scores, factor = tl.dot(q, k, input_precision="ieee"), scale  # products: in units of log2 with the factor
    key = token - start
    of_sequence = (token >= start) & (token < end)
    if MASK != "none":
        place = mask_ptr + key[None, :].to(tl.int64) * mask_k
        if MASK == "pairs" or MASK == "bool pairs":
            place += query[:, None].to(tl.int64) * mask_q
        value = tl.load(place) if WHOLE_TOKENS else tl.load(place, of_sequence[None, :], 0)
        if MASK == "bool keys" or MASK == "bool pairs":
            scores = tl.where(value != 0, scores, -float("inf"))
        else:
            bias = value.to(tl.float32)
            # the smallest bfloat16 in units of log2 would be infinite, which masks: then rows of it would be zero, not averages
            scores = scores * scale + tl.where(
                bias == -float("inf"), bias, tl.maximum(bias, -6e37) * 1.4426950408889634
            )
            factor = 1.0
    if not WHOLE_TOKENS:
        scores = tl.where(of_sequence[None, :], scores, -float("inf"))
    larger = tl.maximum(largest, tl.max(scores, 1) * factor)
    weights = tl.exp2(scores * factor - larger[:, None])  # one instruction before the exponential
    shrink = tl.exp2(largest - larger)
    v = _load_tile(v_ptr, v_row, has_v, token, end, v_stride, FEATURE_MAJOR, WHOLE_ROWS, WHOLE_TOKENS, UNIT)
    sums = tl.dot(weights.to(v.dtype), tl.trans(v), sums * shrink[:, None], input_precision="ieee")
    return larger, total * shrink + tl.sum(weights, 1), sums


@triton.jit
def _attend_kernel(
    q_ptr,  # [B * length, features] of any layout
    k_ptr,  # likewise
    v_ptr,  # likewise
    features_ptr,  # [3, heads * D]: column of each feature in q, k and v, or -1
    q_bias_ptr,  # [heads * D]
    v_bias_ptr,  # [heads * D]
    mask_ptr,  # [B, heads, length, length], through its strides
    out_ptr,  # [B * length, heads * D] of any layout
    length,
    heads,
    query_blocks,
    key_blocks,  # without the tail
    scale,  # in units of log2
    q_stride,  # of rows or columns, in units of UNIT elements
    k_stride,
    v_stride,
    out_stride,
    mask_b,
    mask_h,
    mask_q,
    mask_k,
    D: tl.constexpr,
    INDEXED: tl.constexpr,
    HAS_Q_BIAS: tl.constexpr,
    HAS_V_BIAS: tl.constexpr,
    MASK: tl.constexpr,
    FEATURE_MAJOR: tl.constexpr,
    OUT_FEATURE_MAJOR: tl.constexpr,
    UNIT: tl.constexpr,
    EARLY: tl.constexpr,  # whether windows may begin before their sequence
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TAIL: tl.constexpr,  # keys after the last whole block; 0: none
    BLOCK_D: tl.constexpr,
):
    # One axis, whose length alone may exceed 65,535.
    query_block, pair = tl.program_id(0) % query_blocks, tl.program_id(0) // query_blocks
    head, batch = pair % heads, pair // heads
    start = batch * length
    end = start + length
    window = start // UNIT * UNIT if EARLY else start
    feature = tl.arange(0, BLOCK_D)
    own, exists = head * D + feature, feature < D
    WHOLE_ROWS: tl.constexpr = D == BLOCK_D and not INDEXED
    q_row, k_row, v_row = own, own, own
    has_q, has_k, has_v = exists, exists, exists
    if INDEXED:
        q_row = tl.load(features_ptr + own, exists, -1)
        k_row = tl.load(features_ptr + heads * D + own, exists, -1)
        v_row = tl.load(features_ptr + 2 * heads * D + own, exists, -1)
        has_q, has_k, has_v = q_row >= 0, k_row >= 0, v_row >= 0

    token = window + query_block * BLOCK_M + tl.arange(0, BLOCK_M)
    query = tl.minimum(tl.maximum(token - start, 0), length - 1)  # others are not stored
    q = _load_tile(q_ptr, q_row, has_q, token, end, q_stride, FEATURE_MAJOR, WHOLE_ROWS, False, UNIT)
    if HAS_Q_BIAS:
        bias = tl.load(q_bias_ptr + own, exists, 0.0).to(tl.float32)
        q = (q.to(tl.float32) + bias[:, None]).to(q.dtype)
    q = tl.trans(q)
    mask_ptr += batch.to(tl.int64) * mask_b + head.to(tl.int64) * mask_h
    largest = tl.full([BLOCK_M], -2e38, tl.float32)  # finite, so that masked queries have weights of zero
    total = tl.zeros([BLOCK_M], tl.float32)
    sums = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for block in range(key_blocks):
        token_k = window + block * BLOCK_N + tl.arange(0, BLOCK_N)
        largest, total, sums = _attend_block(
            q, largest, total, sums, k_ptr, v_ptr, mask_ptr, k_row, has_k, v_row, has_v, token_k, start, end,
            query, scale, k_stride, v_stride, mask_q, mask_k, FEATURE_MAJOR, WHOLE_ROWS, not EARLY, MASK, UNIT,
        )  # fmt: skip
    if TAIL:
        token_k = window + key_blocks * BLOCK_N + tl.arange(0, TAIL)
        largest, total, sums = _attend_block(
            q, largest, total, sums, k_ptr, v_ptr, mask_ptr, k_row, has_k, v_row, has_v, token_k, start, end,
            query, scale, k_stride, v_stride, mask_q, mask_k, FEATURE_MAJOR, WHOLE_ROWS, False, MASK, UNIT,
        )  # fmt: skip

    attends = total > 0
    result = sums * tl.where(attends, 1.0 / tl.where(attends, total, 1.0), 0.0)[:, None]
    if HAS_V_BIAS:  # weights sum to one
        bias = tl.load(v_bias_ptr + own, exists, 0.0).to(tl.float32)
        result += tl.where(attends[:, None], bias[None, :], 0.0)
    result = result.to(out_ptr.dtype.element_ty)
    inside = (token >= start) & (token < end)
    if OUT_FEATURE_MAJOR:
        place = out_ptr + own.to(tl.int64)[:, None] * (out_stride * UNIT) + token[None, :]
        group = token // UNIT * UNIT
        whole = (group >= start) & (group + UNIT <= end)
        tl.store(place, tl.trans(result), exists[:, None] & whole[None, :])
        if UNIT > 1 and EARLY:  # groups that two programs share
            tl.store(place, tl.trans(result), exists[:, None] & (inside & (whole == 0))[None, :])
    else:
        place = out_ptr + token.to(tl.int64)[:, None] * (out_stride * UNIT) + own[None, :]
        tl.store(place, result, inside[:, None] & exists[None, :])


def default_launch(length: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """Queries and keys per block, warps and stages: the wider block of queries, unless it computes more that do not exist."""
    if dtype == torch.float32:
        return LAUNCH_FP32
    return NARROW if -(-length // NARROW[0]) % 2 else LAUNCH


def launch_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    features: Tensor | None,
    heads: int,
    scale: float,
    mask: Tensor | None,
    q_bias: Tensor | None,
    v_bias: Tensor | None,
    out: Tensor,
    *,
    launch: tuple[int, int, int, int] | None = None,
) -> None:
    """Write out [B, L, heads * d] on the current device; operands as in the op, q, k, v of one layout, out of any.

    Args:
        launch: queries and keys per block, warps and pipeline stages; None: `default_launch`.
    Raises:
        ValueError: q, k and v are of several layouts.
    """
    batch, length, width = out.shape
    *parts, to = (part.view(batch * length, part.shape[2]) for part in (q, k, v, out))
    feature_major, out_feature_major = is_feature_major(parts[0]), is_feature_major(to)
    if any(part.stride(int(not feature_major)) != 1 for part in parts):
        raise ValueError("q, k and v must be of one layout")
    strides = [part.stride(int(is_feature_major(part))) for part in (*parts, to)]
    unit = GROUP if all(stride % GROUP == 0 for stride in strides) else 1
    early = unit - 1 if (feature_major or out_feature_major) and length % unit else 0
    block_m, block_n, warps, stages = launch or default_launch(length + early, q.dtype)
    key_blocks, rest = divmod(length + early, block_n)
    d, kind = width // heads, "none"
    if mask is not None:
        mask = mask.expand(batch, heads, length, length)
        kind = "bool " * (mask.dtype == torch.bool) + ("keys" if mask.stride(2) == 0 else "pairs")
        mask = mask.view(torch.uint8) if mask.dtype == torch.bool else mask
    query_blocks = triton.cdiv(length + early, block_m)
    _attend_kernel[(query_blocks * heads * batch,)](
        *(*parts, q if features is None else features.contiguous(), q if q_bias is None else q_bias),
        *(q if v_bias is None else v_bias, q if mask is None else mask, to),
        *(length, heads, query_blocks, key_blocks, scale * 1.4426950408889634),
        *(stride // unit for stride in strides),
        *((0, 0, 0, 0) if mask is None else mask.stride()),
        D=d,
        INDEXED=features is not None,
        HAS_Q_BIAS=q_bias is not None,
        HAS_V_BIAS=v_bias is not None,
        MASK=kind,
        FEATURE_MAJOR=feature_major,
        OUT_FEATURE_MAJOR=out_feature_major,
        UNIT=unit,
        EARLY=early > 0,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        TAIL=max(LEAST, triton.next_power_of_2(rest)) if rest else 0,
        BLOCK_D=max(LEAST, triton.next_power_of_2(d)),
        num_warps=warps,
        num_stages=stages,
    )


def is_feature_major(rows: Tensor) -> bool:
    """Whether [M, F] is a transposed [F, M]."""
    return rows.stride(0) == 1 and rows.stride(1) != 1
