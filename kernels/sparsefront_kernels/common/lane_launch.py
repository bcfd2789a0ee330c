"""Launch parameters of kernels of which every lane owns an output: the space, what fits, and which are worth timing."""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

from sparsefront_kernels.common.lane_chunks import CHUNK, LANES
from sparsefront_kernels.common.launch import DEPENDENT_LAUNCH, best_first
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.tuning import TunedLaunches

MOST_ROWS = 64
MOST_WARPS = 8
MOST_CANDIDATES = 16
SHARED_BYTES = 232_448  # of a block, at most
PIECES = 4  # of X in shared memory, where chunks are on their way there too
TWO_BLOCKS_BYTES = 112_640  # so that two blocks find room on an SM


@dataclass(frozen=True, order=True)
class LaneLaunch:
    """Launch parameters.

    Args:
        strips: of 32 outputs, of a block.
        shares: warps of a block that share the chunks of a strip.
        splits: blocks of a cluster, 1 to 8, that share the chunks and add up through their shared memories.
        rows: of X, that a lane multiplies at once: 1, 2, 4 or 8, and more rows take further blocks; that a warp of tensor-core
            products multiplies: 8, 16, 32 or 64, at least all.
        dependent_launch: "off": the kernel starts when the one before it in the stream has ended. "early": while that runs,
            and lets the next one start at once. "late": as early, and lets it start when it has read its weight.
        stages: chunks of a warp on their way in shared memory; 0: they come into registers.
    """

    strips: int
    shares: int
    splits: int
    rows: int
    dependent_launch: str = "late"
    stages: int = 0


@dataclass(frozen=True)
class LaneProblem:
    """What decides how fast launch parameters are.

    Args:
        m, k, n: of the product.
        kept, group_size: weights that an output keeps of so many inputs.
        element_bytes: of X, W and Y.
        bits: of a place.
        block: weights that share a place.
        row_padding: bytes between rows of X in shared memory, where they do not lie side by side.
        chunk: kept weights of each output in a chunk.
        chunk_place_bytes: of the places of a chunk, where they are not packed one bit after the other.
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
    chunk_place_bytes: int | None = None

    @property
    def shape(self) -> str:
        return f"m={self.m} k={self.k} n={self.n} group={self.group_size} block={self.block} bytes={self.element_bytes} kept="

    @property
    def amount(self) -> float:
        return float(self.kept)

    @property
    def chunks(self) -> int:
        """Of a strip."""
        return ceil(self.k // self.group_size * self.kept / self.chunk)

    @property
    def strips(self) -> int:
        return ceil(self.n / LANES)

    @property
    def chunk_bytes(self) -> float:
        """Of 32 lanes."""
        weights, places = self.chunk * LANES, self.chunk_place_bytes
        return weights * self.element_bytes + (weights * self.bits / 8 / self.block if places is None else places)


@dataclass(frozen=True)
class Segments:
    """How a block goes along K.

    Args:
        chunks: whose inputs are in shared memory at a time.
        shared_bytes: that a block needs.
    """

    chunks: int
    shared_bytes: int


SPACE = tuple(
    LaneLaunch(strips, shares, splits, rows)
    for strips, shares, splits, rows in itertools.product((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8))
    if 4 <= strips * shares <= MOST_WARPS
)


@functools.lru_cache(maxsize=4096)
def segments(problem: LaneProblem, launch: LaneLaunch) -> Segments | None:
    """The longest segments whose inputs let two blocks share an SM, or else fit at all; None where not one chunk does.

    Where chunks come through shared memory they fit at all: these keep an SM busy with one block, which waits between segments.
    """
    slot_bytes = 4 if launch.rows == 1 else launch.rows * problem.element_bytes  # one row is widened
    sums = 4 * LANES * launch.strips * launch.shares * launch.rows
    ring = ring_bytes(problem, launch)
    alone = ring > 0 or sums > TWO_BLOCKS_BYTES * 3 / 4  # what is left would make short segments
    chunks = max(1, ceil(problem.chunks / launch.splits))
    while True:
        inputs = slot_bytes * _inputs(problem, launch.splits, chunks) + launch.rows * problem.row_padding
        needed = ring + max(sums, inputs)
        if needed <= (TWO_BLOCKS_BYTES if chunks > 1 and not alone else SHARED_BYTES):
            return Segments(chunks, needed)
        if chunks == 1:
            return None
        chunks = ceil(chunks / 2)


def ring_bytes(problem: LaneProblem, launch: LaneLaunch) -> int:
    """Of chunks on their way in shared memory, with a barrier for each of them and for the pieces in which X comes."""
    slots = launch.strips * launch.shares * launch.stages
    return 0 if slots == 0 else slots * int(problem.chunk_bytes) + ceil((slots + PIECES) / 2) * 16


def _inputs(problem: LaneProblem, splits: int, chunks: int) -> int:
    """Inputs of the widest segment of so many chunks, as the kernel counts them."""
    widest = 0
    for rank in range(splits):
        begin, end = problem.chunks * rank // splits, problem.chunks * (rank + 1) // splits
        for first in range(begin, end, chunks):
            last = min(first + chunks, end)
            origin = first * problem.chunk // problem.kept * problem.group_size // 8 * 8
            widest = max(widest, ceil(last * problem.chunk / problem.kept) * problem.group_size - origin)
    return widest


def possible(problem: LaneProblem, launch: LaneLaunch, most_warps: int = MOST_WARPS) -> bool:
    """Whether the launch can compute the problem.

    Args:
        most_warps: of a block of the kernel.
    """
    return (
        launch.rows in (1, 2, 4, 8, 16, 32, 64)
        and 1 <= launch.strips * launch.shares <= most_warps
        and 1 <= launch.splits <= 8
        and launch.dependent_launch in DEPENDENT_LAUNCH
        and segments(problem, launch) is not None
    )


def fits(problem: LaneProblem) -> bool:
    """Whether any launch can compute the problem."""
    return any(launch.rows == 1 and possible(problem, launch) for launch in SPACE)


def predicted_us(problem: LaneProblem, launch: LaneLaunch, num_sms: int) -> float:
    """Coarse: bytes at 4.25 TB/s or instructions at 1.7 GHz, whichever takes longer, and what each block adds to it.

    It orders candidates, nothing else; the counts are of the compiled code, not fitted to measurements.
    """
    row_blocks = ceil(problem.m / launch.rows)
    strip_blocks = ceil(problem.strips / launch.strips)
    blocks = strip_blocks * launch.splits * row_blocks
    warp_chunks = ceil(ceil(problem.chunks / launch.splits) / launch.shares)  # of a warp
    busiest = ceil(blocks / num_sms)  # blocks of an SM
    stream_us = problem.strips * problem.chunks * row_blocks * problem.chunk_bytes / 4.25e6
    widening = launch.rows if launch.rows > 1 and problem.element_bytes == 2 else 0
    instructions = CHUNK * (7 + launch.rows + widening)  # of a chunk
    shared_cycles = CHUNK * max(1, launch.rows * problem.element_bytes // 4)
    cycles = max(instructions / 4, shared_cycles) * warp_chunks * launch.strips * launch.shares * busiest
    staged = problem.k / launch.splits * launch.rows  # elements of X of a block
    return (
        2.5
        + max(stream_us, cycles / 1.7e3)
        + 0.35 * warp_chunks**0.5  # latencies in a row
        + staged / 16e3 * min(busiest, 2)
        + 0.2 * (launch.splits > 1)
        + 0.05 * launch.splits
    )


def candidates(problem: LaneProblem, num_sms: int, *, most: int = MOST_CANDIDATES) -> list[LaneLaunch]:
    """The launches worth timing, best predicted first; of the first few also with the other ways of dependent launch."""
    covering = min(8, 1 << (problem.m - 1).bit_length())
    worth = [launch for launch in SPACE if possible(problem, launch)]
    best_rows = max(rows for rows in (1, covering // 2, covering) if any(launch.rows == rows for launch in worth))
    worth = [launch for launch in worth if launch.rows in (best_rows, best_rows // 2)]
    return best_first(worth, lambda launch: predicted_us(problem, launch, num_sms), most)


def tuned_lanes(kernel: str, version: int, describe: Callable[[Any, Problem], LaneProblem]) -> TunedLaunches:
    """The launches of a kernel, to be searched and stored.

    Args:
        version: raised when a change of the kernel makes old measurements useless.
        describe: (what the entry's `pack` gave, problem) → the described problem.
    """
    return TunedLaunches(
        kernel,
        version,
        LaneLaunch,
        describe=describe,
        worth_timing=candidates,
        untuned=lambda problem, num_sms: candidates(problem, num_sms, most=1)[0],
    )


def rows_unsupported_reason(m: int, most: int = MOST_ROWS) -> str | None:
    """Why so many rows of X cannot be multiplied, or None."""
    return None if m <= most else f"takes up to {most} rows of X, not {m}"
