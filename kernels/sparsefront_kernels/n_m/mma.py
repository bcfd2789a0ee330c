"""`n_m_mma`: products with up to 64 rows of X on tensor cores, for 1:4, 2:4 and 3:32 (csrc/n_m_mma.cu)."""

import itertools
from dataclasses import replace
from math import ceil
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.cuda import thread_per_output
from sparsefront_kernels.cuda.launch import HOPPER, GpuLimits, best_first
from sparsefront_kernels.cuda.thread_per_output import (
    LANES,
    PIECES,
    ThreadPerOutputLaunch,
    ThreadPerOutputProblem,
    ThreadPerOutputWeight,
    segments,
    thread_per_output_entry,
)
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.n_m.format import NMFormat
from sparsefront_kernels.n_m.small_m import index_bits
from sparsefront_kernels.problem import Problem

PATTERNS = ((1, 4), (2, 4), (3, 32))
GROUPS = {1: 32, 2: 16, 3: 8}  # per output and chunk, by kept weights per group
VECTOR = 8  # values per 16 bytes
INDICES_OF_WORD = 6  # of 5 bits each


def pack_for_mma(stored: NMFormat) -> ThreadPerOutputWeight:
    """Pack the weight, on the format's device.

    Strips have 32 outputs. For groups of four, a chunk has 1024 kept weights: two k-blocks of two sparse left operands of 16
    outputs each, values as [k-block][operand][lane][four words of two], and two words of indices per lane. For groups of 32, it
    has 768, as right operands, [three][lane][four words of two], and 128 words of indices. See csrc/n_m_mma.cu.
    """
    kept_count = stored.n
    strips, chunks = -(-stored.shape[0] // LANES), -(-stored.values.shape[1] // GROUPS[kept_count])
    lacking = (0, 0, 0, chunks * GROUPS[kept_count] - stored.values.shape[1], 0, strips * LANES - stored.shape[0])
    values = pad(stored.values, lacking).unflatten(0, (strips, LANES))  # [strips, 32, groups, kept]
    indices = pad(stored.indices, lacking).unflatten(0, (strips, LANES)).long()
    parts = {1: _one_of_four, 2: _two_of_four, 3: _three_of_32}[kept_count](values, indices)
    (n, k), bits = stored.shape, index_bits(stored.m)
    return ThreadPerOutputWeight(n, k, kept_count, stored.m, bits, 1, *parts, stored.input_order)


def pattern_unsupported_reason(n: int, m: int) -> str | None:
    """Why n:m is unsupported, or None."""
    return None if (n, m) in PATTERNS else f"takes 1:4, 2:4 and 3:32, not {n}:{m}"


def _two_of_four(values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """A sparse group is a group of the weight."""
    # outputs: half, upper or lower, r; groups: chunk, k-block of 32 inputs, half of it, q
    values, indices = (part.unflatten(1, (2, 2, 8)).unflatten(4, (-1, 2, 2, 4)) for part in (values, indices))
    second = torch.maximum(indices[..., 1], indices[..., 0] + 1)  # for padding groups, whose indices are 0 and 0
    words = _metadata(indices[..., 0] | second << 2)
    return _vectors(values.permute(0, 4, 3, 7, 5, 1, 6, 2, 8)), _signed(words).flatten(2)


def _one_of_four(values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Two groups share two sparse groups: the first two inputs of both, and the last two. A word has a weight of each."""
    # outputs as above; groups: chunk, k-block of 64 inputs, q % 2, which of a word, half of the k-block, q // 2
    values, indices = (
        part.squeeze(3).unflatten(1, (2, 2, 8)).unflatten(4, (-1, 2, 2, 2, 2, 2)) for part in (values, indices)
    )
    # ends with half of the k-block, q, which of a word
    odd = (indices & 1).permute(0, 1, 2, 3, 4, 5, 8, 9, 6, 7).flatten(7, 8)
    metadata = _metadata(odd[..., 0] | odd[..., 1] << 2)
    # strip, chunk, r, q; bits: upper or lower, which of a word, and from the highest one on k-block, half, half of the k-block
    among_first = (indices < 2).long().permute(0, 4, 3, 9, 6, 2, 7, 5, 1, 8).flatten(7).flip(7).flatten(5)
    bits = _in_one_word(among_first, 1).flatten(2)
    words = torch.stack([metadata[..., 0] | metadata[..., 1] << 1, bits], dim=3)
    return _vectors(values.permute(0, 4, 3, 9, 6, 5, 1, 8, 2, 7)), _signed(words).flatten(2)


def _three_of_32(values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """A lane has values of two groups of one output per tile, and indices of one group of four outputs."""
    # outputs: tile, r; groups: chunk, q, which of a word
    values = values.unflatten(1, (4, 8)).unflatten(3, (-1, 4, 2)).permute(0, 3, 2, 4, 1, 6, 5)
    # outputs: tile, pair, which of it; groups: chunk, and in it
    indices = indices.unflatten(1, (4, 4, 2)).unflatten(4, (-1, 8)).permute(0, 4, 3, 5, 1, 2, 6)
    words = _in_one_word(indices.flatten(4).unflatten(4, (-1, INDICES_OF_WORD)), 5)  # [strips, chunks, 2, 8, words]
    return _vectors(values), _signed(words).flatten(2, 3).unflatten(3, (-1, 4)).transpose(2, 3).flatten(2)


def _metadata(indices: Tensor) -> Tensor:
    """Words of metadata [strips, chunks, lanes, k-blocks], four bits per sparse group.

    Args:
        indices: [strips, half of 32 outputs, upper or lower eight, r, chunks, k-blocks, half of the k-block, q].
    """
    return _in_one_word(indices.permute(0, 4, 3, 1, 6, 5, 2, 7).flatten(6), 4).flatten(2, 4)


def _in_one_word(numbers: Tensor, bits: int) -> Tensor:
    """Numbers [..., count] below 2 ** bits, the first one lowest: int64 [...]."""
    return (numbers << bits * torch.arange(numbers.shape[-1], device=numbers.device)).sum(-1)


def _signed(words: Tensor) -> Tensor:
    """Reinterpret int64 below 2 ** 32 as int32."""
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def _vectors(values: Tensor) -> Tensor:
    """[strips, chunks, lanes, …] as [strips, chunks, all]: 16 bytes of each lane, repeatedly."""
    of_lanes = values.reshape(*values.shape[:2], LANES, -1, VECTOR)
    return of_lanes.transpose(2, 3).flatten(2)


ROW_PADDING = 16  # bytes between rows of X in shared memory
MOST_CANDIDATES = 24
OF_EACH_SPLIT = 5
SLOTS_OF = 32  # group size for which kept elements of X are gathered from slots
# cycles of an SM's shared memory per chunk, and per row of X
CHUNK_CYCLES, ROW_CYCLES = 36, {(2, 4): 1, (1, 4): 2, (3, 32): 12}
CHUNK_LATENCY = 500  # cycles for a single warp to multiply a chunk of groups of four
# fraction of SMs usable by clusters: not every GPC has a multiple of their blocks
CLUSTERS_REACH = {1: 1.0, 2: 1.0, 3: 0.95, 4: 0.85, 6: 0.85, 8: 0.8}
SPACE = tuple(
    ThreadPerOutputLaunch(strips, shares, splits, 8, stages=stages)
    for strips, shares in itertools.product((1, 2, 4, 5, 8, 10), (1, 2, 4, 8))
    if 4 <= strips * shares <= 16
    for splits, stages in itertools.product(CLUSTERS_REACH, (2, 4, 8))
)


def mma_problem(problem: ThreadPerOutputProblem) -> ThreadPerOutputProblem:
    """The problem as the kernel stages it: padded rows of X, contiguous along K; other chunks for groups of 32."""
    problem = replace(problem, row_padding=ROW_PADDING)
    return problem if problem.group_size != SLOTS_OF else replace(problem, chunk=24, chunk_index_bytes=512)


def rows_of(problem: ThreadPerOutputProblem) -> int:
    """Rows of X per warp."""
    return max(16 if problem.group_size == SLOTS_OF else 8, 1 << (problem.m - 1).bit_length())


def possible(problem: ThreadPerOutputProblem, launch: ThreadPerOutputLaunch, limits: GpuLimits = HOPPER) -> bool:
    """Whether the launch supports the problem."""
    most_warps = 16 if launch.rows <= 16 else 8  # more sums need more registers
    few = launch.rows < 16 and problem.group_size == SLOTS_OF
    return launch.stages >= 1 and not few and thread_per_output.possible(problem, launch, most_warps, limits)


def predicted_us(
    problem: ThreadPerOutputProblem, launch: ThreadPerOutputLaunch, num_sms: int, limits: GpuLimits = HOPPER
) -> float:
    """Coarse prediction for the busiest SM, from the counts in README.md; only for ordering candidates."""
    fitting = segments(problem, launch, limits)
    assert fitting is not None, "only possible launches are predicted"
    blocks, warps = ceil(problem.strips / launch.strips) * launch.splits, launch.strips * launch.shares
    of_sm = ceil(blocks / (num_sms * CLUSTERS_REACH[launch.splits]))
    fit = min(limits.sm_bytes // (fitting.shared_bytes + 1024), (16 if launch.rows <= 16 else 8) // warps)
    at_once = max(1, min(of_sm, fit))  # blocks per SM
    of_split = ceil(problem.chunks / launch.splits)
    of_warp = ceil(of_split / launch.shares)  # chunks
    chunks = of_warp * warps * of_sm  # per SM
    on_their_way = min(launch.stages, of_warp) * warps * at_once * problem.chunk_bytes
    x_bytes = problem.k / launch.splits * launch.rows * problem.element_bytes  # per block
    weight_bytes = chunks * problem.chunk_bytes
    stream = max(weight_bytes / min(19, on_their_way / 1700), (weight_bytes + x_bytes * of_sm) / 40)  # cycles
    busy = chunks * (CHUNK_CYCLES + ROW_CYCLES[problem.kept, problem.group_size] * launch.rows)
    latency = CHUNK_LATENCY * (3 if problem.group_size == SLOTS_OF else 1)
    alone = of_warp * latency * ceil(of_sm / at_once)  # per warp
    # until the first products: a piece of X, or two if warps put it into slots, eight rows of a chunk at a time
    in_slots = problem.group_size == SLOTS_OF
    tasks = ceil(fitting.chunks * launch.rows / 8 / (PIECES / 2) / warps) if in_slots else 0
    segment_bytes = x_bytes * fitting.chunks / of_split / PIECES * (1 + in_slots)
    first = (1200 + max(600 * tasks, segment_bytes / 40)) * ceil(of_split / fitting.chunks)
    return (
        2.5 + (max(stream, busy, alone) + alone / 8 + first * ceil(of_sm / at_once)) / 1.7e3 + 0.4 * (launch.splits > 1)
    )


def candidates(
    problem: ThreadPerOutputProblem, num_sms: int, *, limits: GpuLimits = HOPPER, most: int = MOST_CANDIDATES
) -> list[ThreadPerOutputLaunch]:
    """The launches worth timing, best predicted first, a few for each number of splits."""
    by_splits: dict[int, list[ThreadPerOutputLaunch]] = {}
    for launch in (replace(launch, rows=rows_of(problem)) for launch in SPACE):
        of_warp = ceil(ceil(problem.chunks / launch.splits) / launch.shares)
        if possible(problem, launch, limits) and launch.stages < 2 * max(2, of_warp):  # more slots would stay empty
            by_splits.setdefault(launch.splits, []).append(launch)

    def predicted(launch: ThreadPerOutputLaunch) -> float:
        return predicted_us(problem, launch, num_sms, limits)

    worth = [launch for launches in by_splits.values() for launch in sorted(launches, key=predicted)[:OF_EACH_SPLIT]]
    return best_first(worth, predicted, most)


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return f"takes float16 or bfloat16, not {problem.dtype}"
    weight = cast(NMFormat, stored)
    return pattern_unsupported_reason(weight.n, weight.m)


ENTRY = thread_per_output_entry(
    "n_m",
    kernel="n_m_mma",
    version=3,
    pack=pack_for_mma,
    unsupported=_unsupported,
    describe=lambda packed, m: mma_problem(packed.problem(m)),
    worth_timing=candidates,
    # On an H200 (README.md) n_m_small_m was faster at one row of every pattern, this one at 16 rows; the crossing was at 2.5 to
    # 4 rows with an earlier version.
    fastest_from=4,
)
