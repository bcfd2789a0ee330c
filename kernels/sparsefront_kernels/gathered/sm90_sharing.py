"""Schedule of the persistent kernel that divides work tiles along K, if there are few tiles or their lists are uneven.

`sm90_schedule.py` assigns whole tiles: with fewer tiles than SMs, or lists of unequal lengths, blocks wait for the longest. Here
tiles that do not fit into an equal share of the work are divided along K into parts, each as long as its block has room. Parts
store partial sums, and a second kernel adds each tile's parts in the order of K, so results are bit-identical.
"""

import functools
import heapq
import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefront_kernels.cuda.host_tables import on_device
from sparsefront_kernels.gathered.sm90_schedule import (
    COLUMN_BITS,
    CPU,
    MOST_SCHEDULES,
    column_ranges,
    columns_unsupported_reason,
)

FEWEST_K_BLOCKS = 2  # minimum per part: the pipeline's start and the sums cost as much as several
MOST_TILES = 4  # mean per block: with more, narrower tiles fill the gaps as well, without sums in memory
_LONGER = 1.04  # factor on a share of work that was too small
# Fitted to measurements on an H200, by the columns of the widest tile: cycles of a tile, of a column of it, of a k-block, of a
# column of a k-block. Then of the kernel that adds sums up, and of a column of a part.
_SHARED = {128: (500, 4.0, 380, 3.5), 256: (500, 4.0, 565, 3.7)}
_SUMS = {128: (1500, 0.6), 256: (3400, 0.39)}
_PART = -1 << 31  # flag in the fourth word of `work`: a part


def tile_cycles(k_blocks: int, columns: int, widest: int) -> float:
    """Predicted cycles of one work tile, or of a part of its k-blocks, among tiles of up to `widest` columns."""
    tile, column, _, _ = _SHARED[widest]
    return tile + column * columns + k_blocks * k_block_cycles(columns, widest)


def k_block_cycles(columns: int, widest: int) -> float:
    """Predicted cycles of one k-block of such a tile."""
    _, _, k_block, column = _SHARED[widest]
    return k_block + column * columns


def sums_cycles(parts: int, widest: int) -> float:
    """Predicted cycles for adding up the sums of so many parts."""
    launch, column = _SUMS[widest]
    return launch + column * parts * widest


@dataclass(frozen=True, eq=False)
class SharedSchedule:
    """The work of every block.

    Args:
        work: int32 [tiles and parts, 4] on the CPU, in the order of each block, block after block: a tile as in
            `Schedule.work`; a part as its index, first k-block, number of k-blocks, and column and width with the top bit set.
        first_tiles: int32 [blocks in use + 1] on the CPU: first entry of each block, then the end.
        shared: int32 [shared tiles, 4] on the CPU: CTA tile, index of its first part, number of parts, column and width. The
            parts of a tile are numbered in the order of K.
        parts: total number.
        cycles: predicted, including the second kernel.
    """

    work: Tensor
    first_tiles: Tensor
    shared: Tensor
    parts: int
    cycles: float


@dataclass(frozen=True)
class SharedTables:
    """A `SharedSchedule` on a device, with its number of parts."""

    work: Tensor
    begins: Tensor
    shared: Tensor
    parts: int


# (CTA tile, column, width, first k-block within the CTA tile, number of k-blocks)
_Piece = tuple[int, int, int, int, int]


@functools.lru_cache(maxsize=512)
def shared_schedule(lengths: tuple[int, ...], m: int, blocks: int, widest: int) -> SharedSchedule:
    """Assign the product of CTA tiles with these numbers of k-blocks (most first) and m columns to at most `blocks` blocks.

    Args:
        widest: columns of a work tile, 128 or 256; fewer at the end of Y.
    """
    columns = column_ranges(m, widest)
    cost = {(length, width): tile_cycles(length, width, widest) for length in {*lengths} for _, width in columns}
    tiles = [
        (cost[length, width], (cta_tile, column, width, 0, length))
        for cta_tile, length in enumerate(lengths)
        for column, width in columns
    ]
    tiles.sort(key=lambda tile: -tile[0])
    share = _least_share(lengths, m, blocks, widest)
    while (dealt := _dealt(tiles, share, blocks, widest)) is None:
        share *= _LONGER
    return _tables(lengths, *dealt, widest)


def likely_cycles(lengths: tuple[int, ...], m: int, blocks: int, widest: int) -> float:
    """Estimate the `cycles` of the schedule without computing it; infinite for too many tiles."""
    columns, nonempty_count = -(-m // widest), len(lengths) - lengths.count(0)
    if not 0 < nonempty_count * columns <= MOST_TILES * blocks:
        return math.inf
    share = _LONGER * _least_share(lengths, m, blocks, widest)
    start, k_block = tile_cycles(0, widest, widest), k_block_cycles(widest, widest)
    long = sum(1 for _ in itertools.takewhile(lambda length: start + length * k_block > share, lengths))
    whole, mean = (nonempty_count - long) * columns, sum(lengths[long:nonempty_count]) / max(1, nonempty_count - long)
    cut = max(0, whole - int(share / (start + mean * k_block)) * blocks)
    k_blocks = sum(lengths[:long]) * columns + cut * mean  # of divided tiles
    cut += long * columns
    parts = cut + min(blocks, k_blocks / FEWEST_K_BLOCKS)
    return share + (sums_cycles(int(parts), widest) if cut else 0.0)


def _least_share(lengths: tuple[int, ...], m: int, blocks: int, widest: int) -> float:
    """Cycles of a block if all have equal work and each starts at least one tile or part."""
    columns = [width for _, width in column_ranges(m, widest)]
    starts = sum(tile_cycles(0, width, widest) for width in columns) * len(lengths)
    work = sum(k_block_cycles(width, widest) for width in columns) * sum(lengths)
    begun = tile_cycles(0, widest, widest) * max(0, blocks - len(columns) * len(lengths))
    shortest = tile_cycles(FEWEST_K_BLOCKS, widest, widest)
    return max(shortest, (work + starts + begun) / max(1, blocks))


def _dealt(
    tiles: list[tuple[float, _Piece]], share: float, blocks: int, widest: int
) -> tuple[list[list[_Piece]], float] | None:
    """The pieces of each block, and the cycles of the last block to end; None if the blocks lack room.

    Whole tiles go to the block with the most room, longest first. Tiles too long for any block are divided into parts.
    """
    rooms = [(-share, block) for block in range(blocks)]  # negative, so that the heap's first has the most room
    whole: list[list[_Piece]] = [[] for _ in range(blocks)]
    parts: list[list[_Piece]] = [[] for _ in range(blocks)]
    cut = []
    for cost, tile in tiles:
        room, block = rooms[0]
        if -room >= cost or not tile[4]:  # a pruned tile cannot be divided
            heapq.heapreplace(rooms, (room + cost, block))
            whole[block].append(tile)
        else:
            cut.append(tile)
    rooms.sort()
    place = 0
    for cta_tile, column, width, _, length in cut:
        begin, k_block = 0, k_block_cycles(width, widest)
        start = tile_cycles(0, width, widest)
        while begin < length:
            if place == blocks:
                return None
            room, block = rooms[place]
            fits = int((-room - start) / k_block)
            left = length - begin
            if fits < min(left, FEWEST_K_BLOCKS):
                place += 1
                continue
            count = min(fits, left)
            if 0 < left - count < FEWEST_K_BLOCKS:  # the rest would be too short a part
                count = left if left - count <= 1 or count <= FEWEST_K_BLOCKS else left - FEWEST_K_BLOCKS
            parts[block].append((cta_tile, column, width, begin, count))
            rooms[place] = (room + start + count * k_block, block)
            begin += count
    return [first + then for first, then in zip(parts, whole, strict=True)], share + max(rooms, default=(0.0, 0))[0]


def _tables(lengths: tuple[int, ...], pieces: list[list[_Piece]], cycles: float, widest: int) -> SharedSchedule:
    pieces = [of_block for of_block in pieces if of_block]
    cut = sorted(piece for of_block in pieces for piece in of_block if piece[4] < lengths[piece[0]])
    numbers = {piece: number for number, piece in enumerate(cut)}
    first_k_blocks, begin = [], 0
    for length in lengths:
        first_k_blocks.append(begin)
        begin += max(1, length)
    work, first_tiles = [], [0]
    for of_block in pieces:
        for piece in of_block:
            cta_tile, column, width, first, count = piece
            number, place = numbers.get(piece), _place(column, width)
            work += [cta_tile if number is None else number, first_k_blocks[cta_tile] + first, count]
            work.append(place if number is None else place + _PART)
        first_tiles.append(len(work) // 4)
    shared: list[int] = []
    for number, (cta_tile, column, width, first, _) in enumerate(cut):
        if first == 0:
            shared += [cta_tile, number, 0, _place(column, width)]
        shared[-2] += 1
    return SharedSchedule(
        _int32(work).view(-1, 4),
        _int32(first_tiles),
        _int32(shared).view(-1, 4),
        len(cut),
        cycles + (sums_cycles(len(cut), widest) if cut else 0.0),
    )


def _place(column: int, width: int) -> int:
    return column | (width // 64 - 1) << COLUMN_BITS


def _int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=CPU)


@functools.lru_cache(maxsize=MOST_SCHEDULES)
def shared_tables(lengths: tuple[int, ...], m: int, blocks: int, widest: int, device: torch.device) -> SharedTables:
    """A shared schedule on a device.

    Raises:
        ValueError: the number of columns does not fit into a word.
    """
    reason = columns_unsupported_reason(m)
    if reason:
        raise ValueError(f"a schedule {reason}")
    schedule = shared_schedule(lengths, m, blocks, widest)
    rows = (schedule.work.flatten(), schedule.shared.flatten(), schedule.first_tiles)  # rows of 16 bytes first
    work, shared, begins = on_device(torch.cat(rows), device).split([len(part) for part in rows])
    return SharedTables(work.view(-1, 4), begins, shared.view(-1, 4), schedule.parts)
