"""Kernels in which each thread owns an output: packed weight, launch parameters, and launcher.

`n_m_small_m`, `n_m_mma` and `ell_small_m` are for few rows of X. A packed weight consists of chunks of 32 kept weights per
output with the indices of their inputs, as defined in cuda/thread_per_output.cuh.
"""

import ctypes
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.cuda.launch import (
    DEPENDENT_LAUNCH,
    HOPPER,
    TYPE_CODES,
    GpuLimits,
    address,
    argument_fields,
    best_first,
    find_gpu_limits,
    gpu_limits,
    launch_with,
)
from sparsefront_kernels.device_support import library_unsupported_reason
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.kernel_op import kernel_entry
from sparsefront_kernels.operands import Epilogue
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.tuning import TunedLaunches

CHUNK = 32  # kept weights of an output that a thread processes at a time
LANES = 32  # outputs per strip, one per lane of a warp
VECTOR_BYTES = 16
WORD_BITS = 32


@dataclass(frozen=True, eq=False)
class ThreadPerOutputWeight:
    """The packed weight.

    Args:
        n, k: outputs and inputs of the weight.
        kept, group_size: an output keeps `kept` weights, padded ones included, of every `group_size` inputs.
        bits: of an index.
        block: neighboring weights that share an index.
        values: [strips of 32 outputs, chunks, kept weights per chunk].
        indices: int32 [strips, chunks, words].
        order: int32 [K]; the kernel's input i is X's input order[i]; None: identity.
    """

    n: int
    k: int
    kept: int
    group_size: int
    bits: int
    block: int
    values: Tensor
    indices: Tensor
    order: Tensor | None

    def problem(self, m: int) -> "ThreadPerOutputProblem":
        """The problem for m rows of X."""
        size = self.values.element_size()
        return ThreadPerOutputProblem(m, self.k, self.n, self.kept, self.group_size, size, self.bits, self.block)


def packed_chunks(values: Tensor, indices: Tensor, *, bits: int, block: int = 1) -> tuple[Tensor, Tensor]:
    """Pack rows of kept weights; the last strip or chunk is padded with zero weights at index 0.

        strip      outputs 0 … 31, one to a lane            chunk    kept weights 0 … 31 of each
                   outputs 32 … 63                                     kept weights 32 … 63

    Args:
        values: [N, count], the kept weights of each output, in the order of the indices.
        indices: int [N, count / block], each below 2 ** bits.
        bits: of an index; a lane's indices of a chunk must fill whole words.
        block: neighboring weights that share an index.
    Returns:
        values: [strips, chunks, 1024] in the weight's dtype; within a chunk [vector][lane][16 bytes].
        indices: int32 [strips, chunks, words * 32], to be read as bits: index i of a lane at bit i * bits of its
            words; within a chunk [lane][4 words], as often as there are 4, and then [lane][the rest].
    """
    n, count = values.shape
    strips, chunks = -(-n // LANES), -(-count // CHUNK)
    lacking = (0, chunks * CHUNK - count, 0, strips * LANES - n)
    per_vector = VECTOR_BYTES // values.element_size()
    # strip, lane, chunk, vector, element → strip, chunk, vector, lane, element
    parts = pad(values, lacking).view(strips, LANES, chunks, CHUNK // per_vector, per_vector)
    vectors = parts.permute(0, 2, 3, 1, 4).reshape(strips, chunks, CHUNK * LANES)
    lacking = (0, chunks * CHUNK // block - indices.shape[1], 0, strips * LANES - n)
    numbers = pad(indices.long(), lacking).view(strips, LANES, chunks, CHUNK // block)
    words = _packed(numbers, bits).transpose(1, 2)  # [strips, chunks, lanes, words]
    return vectors, torch.cat([part.flatten(2) for part in words.split(4, dim=3)], dim=2)


def _packed(numbers: Tensor, bits: int) -> Tensor:
    """Pack numbers [..., count] below 2 ** bits contiguously into words: int32 [..., count * bits / 32]."""
    count = numbers.shape[-1]
    words = numbers.new_zeros(*numbers.shape[:-1], count * bits // WORD_BITS)
    for at in range(count):
        word, bit = divmod(at * bits, WORD_BITS)
        words[..., word] |= numbers[..., at] << bit & 0xFFFFFFFF
        if bit + bits > WORD_BITS:
            words[..., word + 1] |= numbers[..., at] >> (WORD_BITS - bit)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


MOST_ROWS = 64
MOST_WARPS = 8
MOST_CANDIDATES = 16
PIECES = 4  # of X in shared memory, if chunks go through it too
TWO_BLOCKS_BYTES = 112_640  # limit for two blocks per SM, of an H200


@dataclass(frozen=True, order=True)
class ThreadPerOutputLaunch:
    """Launch parameters.

    Args:
        strips: of 32 outputs, per block.
        shares: warps of a block that share the chunks of a strip.
        splits: blocks of a cluster, 1 to 8, that share the chunks and reduce through distributed shared memory.
        rows: rows of X per thread: 1, 2, 4 or 8; more rows use more blocks. For tensor cores, rows per warp: 8, 16, 32 or 64,
            at least all.
        dependent_launch: "off": the kernel starts when the previous one in the stream has ended. "early": it may start
            before, and lets the next one start immediately. "late": as early, but lets the next one start after reading its
            weight.
        stages: chunks of a warp in flight in shared memory; 0: they are loaded into registers.
    """

    strips: int
    shares: int
    splits: int
    rows: int
    dependent_launch: str = "late"
    stages: int = 0


@dataclass(frozen=True)
class ThreadPerOutputProblem:
    """The properties of a problem that determine the speed of launch parameters.

    Args:
        m, k, n: of the product.
        kept, group_size: an output keeps `kept` weights of every `group_size` inputs.
        element_bytes: of X, W and Y.
        bits: of an index.
        block: weights that share an index.
        row_padding: bytes between rows of X in shared memory.
        chunk: kept weights of each output per chunk.
        chunk_index_bytes: of the indices of a chunk, if they are not bit-packed.
    """

    m: int
    k: int
    n: int
    kept: int
    group_size: int
    element_bytes: int
    bits: int
    block: int = 1
    row_padding: int = 0
    chunk: int = CHUNK
    chunk_index_bytes: int | None = None

    @property
    def shape(self) -> str:
        return f"m={self.m} k={self.k} n={self.n} group={self.group_size} block={self.block} bytes={self.element_bytes} kept="

    @property
    def amount(self) -> float:
        return float(self.kept)

    @property
    def chunks(self) -> int:
        """Number of chunks per strip."""
        return ceil(self.k // self.group_size * self.kept / self.chunk)

    @property
    def strips(self) -> int:
        return ceil(self.n / LANES)

    @property
    def chunk_bytes(self) -> float:
        """Bytes of a chunk of 32 lanes."""
        weights, indices = self.chunk * LANES, self.chunk_index_bytes
        return weights * self.element_bytes + (weights * self.bits / 8 / self.block if indices is None else indices)


@dataclass(frozen=True)
class Segments:
    """The segments of K that a block processes.

    Args:
        chunks: per segment; their inputs are in shared memory together.
        shared_bytes: of a block.
    """

    chunks: int
    shared_bytes: int


SPACE = tuple(
    ThreadPerOutputLaunch(strips, shares, splits, rows)
    for strips, shares, splits, rows in itertools.product((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8))
    if 4 <= strips * shares <= MOST_WARPS
)


@functools.lru_cache(maxsize=4096)
def segments(
    problem: ThreadPerOutputProblem, launch: ThreadPerOutputLaunch, limits: GpuLimits = HOPPER
) -> Segments | None:
    """The longest segments that let two blocks share an SM, or else fit at all; None if not even one chunk does.

    If chunks go through shared memory, only fitting counts: one such block keeps an SM busy, and waits between segments.
    """
    slot_bytes = 4 if launch.rows == 1 else launch.rows * problem.element_bytes  # a single row is stored in float32
    sums = 4 * LANES * launch.strips * launch.shares * launch.rows
    ring = ring_bytes(problem, launch)
    half = limits.block_bytes * TWO_BLOCKS_BYTES // HOPPER.block_bytes
    alone = ring > 0 or sums > half * 3 / 4  # the rest would only allow short segments
    chunks = max(1, ceil(problem.chunks / launch.splits))
    while True:
        inputs = slot_bytes * _inputs(problem, launch.splits, chunks) + launch.rows * problem.row_padding
        needed = ring + max(sums, inputs)
        if needed <= (half if chunks > 1 and not alone else limits.block_bytes):
            return Segments(chunks, needed)
        if chunks == 1:
            return None
        chunks = ceil(chunks / 2)


def ring_bytes(problem: ThreadPerOutputProblem, launch: ThreadPerOutputLaunch) -> int:
    """Bytes of chunks in flight in shared memory, with a barrier for each, and for each piece of X."""
    slots = launch.strips * launch.shares * launch.stages
    return 0 if slots == 0 else slots * int(problem.chunk_bytes) + ceil((slots + PIECES) / 2) * 16


def _inputs(problem: ThreadPerOutputProblem, splits: int, chunks: int) -> int:
    """Inputs of the widest segment of this many chunks, computed as in the kernel."""
    widest = 0
    for rank in range(splits):
        begin, end = problem.chunks * rank // splits, problem.chunks * (rank + 1) // splits
        for first in range(begin, end, chunks):
            last = min(first + chunks, end)
            origin = first * problem.chunk // problem.kept * problem.group_size // 8 * 8
            widest = max(widest, ceil(last * problem.chunk / problem.kept) * problem.group_size - origin)
    return widest


def possible(
    problem: ThreadPerOutputProblem,
    launch: ThreadPerOutputLaunch,
    most_warps: int = MOST_WARPS,
    limits: GpuLimits = HOPPER,
) -> bool:
    """Whether the launch supports the problem.

    Args:
        most_warps: maximum per block of the kernel.
    """
    return (
        launch.rows in (1, 2, 4, 8, 16, 32, 64)
        and 1 <= launch.strips * launch.shares <= most_warps
        and 1 <= launch.splits <= (8 if limits.clusters else 1)
        and launch.dependent_launch in DEPENDENT_LAUNCH
        and segments(problem, launch, limits) is not None
    )


def fits(problem: ThreadPerOutputProblem, device: torch.device) -> bool:
    """Whether any launch supports the problem on a device."""
    limits = find_gpu_limits(device)
    return any(launch.rows == 1 and possible(problem, launch, limits=limits) for launch in SPACE)


def predicted_us(problem: ThreadPerOutputProblem, launch: ThreadPerOutputLaunch, num_sms: int) -> float:
    """Coarse: the maximum of bytes at 4.25 TB/s and instructions at 1.7 GHz, plus overhead per block.

    Only for ordering candidates; instruction counts are from compiled code, not fitted to measurements.
    """
    row_blocks = ceil(problem.m / launch.rows)
    strip_blocks = ceil(problem.strips / launch.strips)
    blocks = strip_blocks * launch.splits * row_blocks
    warp_chunks = ceil(ceil(problem.chunks / launch.splits) / launch.shares)  # per warp
    busiest = ceil(blocks / num_sms)  # blocks per SM
    stream_us = problem.strips * problem.chunks * row_blocks * problem.chunk_bytes / 4.25e6
    widening = launch.rows if launch.rows > 1 and problem.element_bytes == 2 else 0
    instructions = CHUNK * (7 + launch.rows + widening)  # per chunk
    shared_cycles = CHUNK * max(1, launch.rows * problem.element_bytes // 4)
    cycles = max(instructions / 4, shared_cycles) * warp_chunks * launch.strips * launch.shares * busiest
    staged = problem.k / launch.splits * launch.rows  # elements of X per block
    return (
        2.5
        + max(stream_us, cycles / 1.7e3)
        + 0.35 * warp_chunks**0.5  # serialized latencies
        + staged / 16e3 * min(busiest, 2)
        + 0.2 * (launch.splits > 1)
        + 0.05 * launch.splits
    )


def candidates(
    problem: ThreadPerOutputProblem, num_sms: int, *, limits: GpuLimits = HOPPER, most: int = MOST_CANDIDATES
) -> list[ThreadPerOutputLaunch]:
    """The launches worth timing, best predicted first; the first few also with the other modes of dependent launch."""
    covering = min(8, 1 << (problem.m - 1).bit_length())
    worth = [launch for launch in SPACE if possible(problem, launch, limits=limits)]
    best_rows = max(rows for rows in (1, covering // 2, covering) if any(launch.rows == rows for launch in worth))
    worth = [launch for launch in worth if launch.rows in (best_rows, best_rows // 2)]
    return best_first(worth, lambda launch: predicted_us(problem, launch, num_sms), most)


_POINTERS = ("x", "order", "values", "indices", "bias", "y")
_STRIDES = ("row_stride", "input_stride")
_NUMBERS = ("vectors", "type", "bias_type", "m", "n", "k", "kept", "group_size", "bits", "block", "strips", "chunks")
_LAUNCH = ("block_strips", "shares", "splits", "rows", "segment", "shared_bytes", "dependent_launch", "stages")


class Arguments(ctypes.Structure):
    """`thread_per_output::Arguments` of cuda/thread_per_output.cuh."""

    _fields_ = argument_fields(_POINTERS, _STRIDES, (*_NUMBERS, *_LAUNCH))


def launch_thread_per_output(
    kernel: str,
    x: Tensor,
    y: Tensor,
    packed: ThreadPerOutputWeight,
    bias: Tensor | None,
    problem: ThreadPerOutputProblem,
    launch: ThreadPerOutputLaunch,
) -> None:
    """Compute Y = X · Wᵀ + bias on the current stream of x's device, which must be current.

    Args:
        kernel: name of the kernel and its library.
        x: [M, K], 1 to 64 rows, any strides; contiguous 16-byte aligned rows are fastest.
        y: [M, N] contiguous; fully overwritten.
        bias: [N] contiguous, float16, bfloat16 or float32, or None.
    Raises:
        RuntimeError: the launch failed.
    """
    fitting = segments(problem, launch, gpu_limits(x.device))
    assert fitting is not None, "the op's entry has checked that some launch is possible"
    tensors = dict(x=x, order=packed.order, values=packed.values, indices=packed.indices, bias=bias, y=y)
    arguments = Arguments(
        **{name: address(tensor) for name, tensor in tensors.items()},
        **{name: getattr(problem, name) for name in ("m", "n", "k", "kept", "group_size", "bits", "block")},
        **{name: getattr(launch, name) for name in ("shares", "splits", "rows", "stages")},
        row_stride=x.stride(0),
        input_stride=x.stride(1),
        vectors=int(packed.order is None and _in_vectors(x)),
        type=TYPE_CODES[x.dtype],
        bias_type=0 if bias is None else TYPE_CODES[bias.dtype],
        strips=packed.values.shape[0],
        chunks=packed.values.shape[1],
        block_strips=launch.strips,
        segment=fitting.chunks,
        shared_bytes=fitting.shared_bytes,
        dependent_launch=DEPENDENT_LAUNCH.index(launch.dependent_launch),
    )
    launch_with(kernel, arguments, x.device, launch)


def _in_vectors(x: Tensor) -> bool:
    """Whether rows along K can be read in aligned vectors of 16 bytes."""
    whole = x.stride(0) * x.element_size() % 16 == 0 or x.shape[0] == 1
    return x.stride(1) == 1 and whole and x.data_ptr() % 16 == 0


def thread_per_output_entry(
    family: str,
    *,
    kernel: str,
    version: int,
    pack: Callable[[Any], ThreadPerOutputWeight],
    unsupported: Callable[[SparseFormat, Problem], str | None],
    most_rows: int = MOST_ROWS,
    describe: Callable[[ThreadPerOutputWeight, int], ThreadPerOutputProblem] = ThreadPerOutputWeight.problem,
    worth_timing: Callable[..., Sequence[ThreadPerOutputLaunch]] = candidates,
    **settings: Any,
) -> KernelEntry:
    """Create the kernel entry, for row-major layout.

    Args:
        kernel: name of the kernel, its op and its library.
        version: increment when a change of the kernel invalidates stored launches.
        pack: format → packed weight.
        unsupported: the reason besides the number of rows, and what `library_unsupported_reason` says.
        describe: (packed weight, rows of X) → the problem's description.
        worth_timing: of `TunedLaunches`.
    """
    launches = TunedLaunches(
        kernel,
        version,
        ThreadPerOutputLaunch,
        describe=lambda packed, problem: describe(packed, problem.m),
        worth_timing=worth_timing,
        limited=True,
    )

    def multiply(x: Tensor, y: Tensor, packed: ThreadPerOutputWeight, epilogue: Epilogue, *layout: bool) -> None:
        problem = describe(packed, x.shape[0])
        launch = launches.launch_for(problem, x.device)
        launch_thread_per_output(kernel, x, y, packed, epilogue.bias, problem, launch)

    def reason(stored: SparseFormat, problem: Problem) -> str | None:
        if problem.m > most_rows:
            return f"takes up to {most_rows} rows of X, not {problem.m}"
        return unsupported(stored, problem) or library_unsupported_reason(problem, kernel)

    return kernel_entry(
        kernel,
        family,
        weight=ThreadPerOutputWeight,
        multiply=multiply,
        pack=pack,
        unsupported=reason,
        tunable=launches,
        most_rows=lambda packed: most_rows,
        **settings,
    )


def dtype_unsupported_reason(problem: Problem) -> str | None:
    """Why the kernels on CUDA cores do not support a dtype, or None."""
    return None if problem.dtype in TYPE_CODES else f"takes float16, bfloat16 or float32, not {problem.dtype}"
