"""Attention of sequences stored end to end, in Triton: a program owns a block of queries of one sequence and one head."""

import triton
import triton.language as tl
from torch import Tensor, float32

# queries and keys per program and k-block, warps, pipeline stages: of 16-bit types and of float32
LAUNCH, LAUNCH_FP32 = (128, 64, 8, 3), (64, 32, 4, 1)


@triton.jit
def _attend_unpadded_kernel(
    q_ptr,  # [tokens, heads, d], rows and heads through their strides
    k_ptr,  # likewise
    v_ptr,  # likewise
    offsets_ptr,  # [sequences + 1]
    bias_ptr,  # [heads, 2 * reach + 1]
    columns_ptr,  # [tokens]
    out_ptr,  # [tokens, heads, d], contiguous
    tokens,
    sequences,
    heads,
    d,
    reach,
    scale,
    stride_q,
    stride_qh,
    stride_k,
    stride_kh,
    stride_v,
    stride_vh,
    HAS_BIAS: tl.constexpr,
    SEQUENCES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    # The sequence of this block: each has as many blocks as its own length takes; the tokens after the last one are one more.
    block, head = tl.program_id(0), tl.program_id(1)
    number = tl.arange(0, SEQUENCES)
    starts = tl.load(offsets_ptr + number, number <= sequences, tokens)
    ends = tl.load(offsets_ptr + number + 1, number < sequences, tokens)
    starts, ends = tl.minimum(starts, tokens), tl.minimum(ends, tokens)
    blocks = (ends - starts + BLOCK_M - 1) // BLOCK_M
    until = tl.cumsum(blocks, 0)
    own = (until - blocks <= block) & (block < until)
    start, end = tl.sum(tl.where(own, starts, 0), 0), tl.sum(tl.where(own, ends, 0), 0)
    first = start + (block - tl.sum(tl.where(own, until - blocks, 0), 0)) * BLOCK_M
    belongs = tl.sum(tl.where(own, (number < sequences).to(tl.int32), 0), 0) > 0

    row, feature = first + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    exists = (row < end)[:, None] & (feature < d)[None, :]
    out = out_ptr + (row.to(tl.int64) * heads + head)[:, None] * d + feature[None, :]
    values = v_ptr + head * stride_vh + feature[None, :]
    if belongs:
        keys = k_ptr + head * stride_kh + feature[:, None]
        q = tl.load(q_ptr + row.to(tl.int64)[:, None] * stride_q + head * stride_qh + feature[None, :], exists, 0.0)
        if HAS_BIAS:
            distances = bias_ptr + head * (2 * reach + 1) + reach
            column = tl.load(columns_ptr + row, row < end, 0)
        largest = tl.full([BLOCK_M], -float("inf"), tl.float32)  # of the scores, in units of log2
        total = tl.zeros([BLOCK_M], tl.float32)
        sums = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        for place in range(start, end, BLOCK_N):
            key = place + tl.arange(0, BLOCK_N)
            k = tl.load(keys + key.to(tl.int64)[None, :] * stride_k, (feature < d)[:, None] & (key < end)[None, :], 0.0)
            scores = tl.dot(q, k, input_precision="ieee") * (scale * 1.4426950408889634)
            if HAS_BIAS:
                of_key = tl.load(columns_ptr + key, key < end, 0)  # 0 elsewhere: all distances are in the table
                bias = tl.load(distances + of_key[None, :] - column[:, None])
                scores += bias.to(tl.float32) * 1.4426950408889634
            scores = tl.where((key < end)[None, :], scores, -float("inf"))
            larger = tl.maximum(largest, tl.max(scores, 1))
            weights = tl.exp2(scores - larger[:, None])
            shrink = tl.exp2(largest - larger)
            v = tl.load(
                values + key.to(tl.int64)[:, None] * stride_v, (key < end)[:, None] & (feature < d)[None, :], 0.0
            )
            sums = tl.dot(weights.to(v.dtype), v, sums * shrink[:, None], input_precision="ieee")
            total = total * shrink + tl.sum(weights, 1)
            largest = larger
        tl.store(out, (sums / total[:, None]).to(out_ptr.dtype.element_ty), exists)
    else:  # of no sequence: each token attends to itself; or no tokens at all
        tl.store(out, tl.load(values + row.to(tl.int64)[:, None] * stride_v, exists, 0.0), exists)


def launch_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    scale: float,
    bias: Tensor | None,
    columns: Tensor | None,
    out: Tensor,
    *,
    launch: tuple[int, int, int, int] | None = None,
) -> None:
    """Write out [T, heads, d] on the current device; operands as in the op.

    Args:
        launch: queries and keys per block, warps and pipeline stages; None: those of the dtype.
    """
    (tokens, heads, d), sequences = q.shape, len(offsets) - 1
    block_m, block_n, warps, stages = launch or (LAUNCH_FP32 if q.dtype == float32 else LAUNCH)
    has_bias = bias is not None and columns is not None
    _attend_unpadded_kernel[(triton.cdiv(tokens, block_m) + sequences + 1, heads)](
        *(q, k, v, offsets, bias if has_bias else q, columns if has_bias else offsets, out),
        *(tokens, sequences, heads, d, bias.shape[1] // 2 if bias is not None else 0, scale),
        *(stride for part in (q, k, v) for stride in part.stride()[:2]),
        HAS_BIAS=has_bias,
        SEQUENCES=triton.next_power_of_2(sequences + 1),
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_D=max(16, triton.next_power_of_2(d)),
        num_warps=warps,
        num_stages=stages,
    )
