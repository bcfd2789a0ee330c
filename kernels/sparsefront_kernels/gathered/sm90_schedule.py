"""Schedule of the persistent kernel: which block computes which work tiles, so that all blocks have equal work.

A work tile is the 128 outputs of a CTA tile by up to 256 columns of Y. Tiles are assigned in a rasterization order that keeps
operands in L2 (`raster_swizzle` CTA tiles over some columns, then over the next columns, then the next CTA tiles), each to the
block that is free first. Much longer CTA tiles come first. The last columns are divided into narrower tiles if blocks then end
closer together.

Finding the best order takes milliseconds, and a network with inputs of a new length needs a hundred schedules: a quick schedule
tries only the few most promising orders.
"""

import functools
import heapq
import itertools
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from sparsefront_kernels.cuda.host_tables import on_device

CPU = torch.device("cpu")  # regardless of the default device
WIDEST = 256
WIDTHS = (256, 192, 128, 64)  # columns of a work tile
LONG = 1.5  # times the median number of k-blocks: longer CTA tiles are assigned first, so that none ends last
# Cached device tables of some 10 KB each: enough that no queued launch reads an evicted one. Those of graphs live longer, see
# `host_tables.keep_for_graphs`.
MOST_SCHEDULES = 16_384
COLUMN_BITS = 28  # of the word with a tile's first column and its width
ALL = 1024  # as `raster_swizzle`: more CTA tiles than any layer has
MOST_CUTS, MOST_CUTS_OF_QUICK = 24, 4  # positions tried for the first narrower tile
GOOD_ENOUGH = 0.999  # of the lower bound
MANY = 40  # tiles per block beyond which the last one does not matter
MOST_DEALT_OF_QUICK = 600  # tiles over all tried orders
_BLOCKS = 1 << 10  # maximum grid: a block's index and the time when it is free share one float exactly
_TICKS = 1000  # per cycle
# Fitted to measurements on an H200: cycles of a work tile, of a column of it (stores), of a k-block, of a column of a k-block.
_TILE, _TILE_COLUMN, _K_BLOCK, _K_BLOCK_COLUMN = 900, 13.0, 520, 3.4


def tile_cycles(k_blocks: int, columns: int) -> float:
    """Predicted cycles of one work tile."""
    return _TILE + _TILE_COLUMN * columns + k_blocks * (_K_BLOCK + _K_BLOCK_COLUMN * columns)


@dataclass(frozen=True, eq=False)
class Schedule:
    """The work tiles of every block.

    Args:
        work: int32 [tiles, 4] on the CPU, in the order of each block, block after block: CTA tile, its first k-block, its number
            of k-blocks, column and columns / 64 - 1 in the upper four bits.
        first_tiles: int32 [blocks in use + 1] on the CPU: first tile of each block, then the number of tiles.
        cycles: predicted, of the last block to end.
    """

    work: Tensor
    first_tiles: Tensor
    cycles: float

    @property
    def tiles(self) -> tuple[tuple[int, int, int], ...]:
        """(CTA tile, first column, columns) of each tile."""
        mask = (1 << COLUMN_BITS) - 1
        return tuple(
            (cta_tile, place & mask, 64 * ((place >> COLUMN_BITS) + 1)) for cta_tile, _, _, place in self.work.tolist()
        )

    @property
    def begins(self) -> tuple[int, ...]:
        """First tile of each block, then the number of tiles."""
        return tuple(self.first_tiles.tolist())


def schedule(
    lengths: tuple[int, ...], m: int, blocks: int, raster_swizzle: int = ALL, *, quick: bool = False
) -> Schedule:
    """Assign the product of CTA tiles with these numbers of k-blocks (most first) and m columns to at most `blocks` blocks.

    Args:
        raster_swizzle: CTA tiles that process all columns before the next ones begin; limits the weights that concurrent
            blocks read.
        quick: try only a few orders. The last block then ends 2 % later on average, at worst a third.
    """
    return _by_block(_searched(lengths, m, blocks, raster_swizzle, quick), lengths)


def last_cycles(lengths: tuple[int, ...], m: int, blocks: int, raster_swizzle: int = ALL) -> float:
    """The `cycles` of the quick schedule."""
    return _searched(lengths, m, blocks, raster_swizzle, True).end / _TICKS


@functools.lru_cache(maxsize=512)
def _searched(lengths: tuple[int, ...], m: int, blocks: int, raster_swizzle: int, quick: bool) -> "_Dealt":
    """The assignment of the best order."""
    lists, blocks = _Lists.of(lengths), min(blocks, _BLOCKS)
    orders = _orders(lists, m, blocks, raster_swizzle, quick)
    best, number, tiles = _Dealt([], [], math.inf), 0, 0
    # there may be dozens of orders of thousands of tiles: most promising first, and most of the others are not tried
    for cycles, index, order in sorted(orders):
        if tiles >= MOST_DEALT_OF_QUICK if quick else cycles * _TICKS > GOOD_ENOUGH * best.end:
            break
        dealt = _deal(order.steps(lists, m), lists.ticks, blocks)
        if (dealt.end, index) < (best.end, number):
            best, number = dealt, index
        tiles += len(dealt.taken)
    return best


@dataclass(frozen=True, eq=False)
class _Lists:
    """Precomputed costs of CTA tiles.

    Args:
        parts: (first CTA tile, end) of the much longer ones, of the others, and of those without k-blocks.
        ticks: columns of a work tile → time of such a tile for each CTA tile, in the unit of `_deal`.
        cycles: columns → for each part, total cycles of one column of such tiles.
        mean: columns → mean cycles of a work tile of the others.
    """

    parts: tuple[tuple[int, int], ...]
    ticks: Mapping[int, Sequence[float]]
    cycles: Mapping[int, Sequence[float]]
    mean: Mapping[int, float]

    @classmethod
    def of(cls, lengths: tuple[int, ...]) -> "_Lists":
        nonempty = [length for length in lengths if length]
        long = sum(length > LONG * median(nonempty) for length in nonempty)
        parts = ((0, long), (long, len(nonempty)), (len(nonempty), len(lengths)))
        ticks, cycles, mean = {}, {}, {}
        for width in WIDTHS:
            each = {length: tile_cycles(length, width) for length in {*lengths}}
            of_each = {length: float(round(_TICKS * cost) * _BLOCKS) for length, cost in each.items()}
            ticks[width] = [of_each[length] for length in lengths]
            cycles[width] = [sum(each[length] for length in lengths[begin:end]) for begin, end in parts]
            mean[width] = cycles[width][1] / max(1, len(nonempty) - long)
        return cls(parts, ticks, cycles, mean)

    def work(self, part: int, m: int, full: int, width: int) -> tuple[float, int]:
        """Cycles and number of all work tiles of a part; `full` and `width` as in `_Order`."""
        begin, end = self.parts[part]
        columns = _column_counts(m, full, width) if begin < end else ()
        return (
            sum(times * self.cycles[of_width][part] for of_width, times in columns),
            sum(times for _, times in columns) * (end - begin),
        )

    def longest(self, cta_tile: int, width: int) -> float:
        """Cycles of a work tile of this CTA tile, the longest from here on."""
        return self.ticks[width][cta_tile] / (_TICKS * _BLOCKS)


# (first CTA tile, end, column ranges): for each column range, all of these CTA tiles
_Step = tuple[int, int, tuple[tuple[int, int], ...]]


class _Order(NamedTuple):
    """The order in which work tiles are assigned.

    First the longest CTA tiles, in tiles of `long_width` columns. Then the others: the first `full` times 256 columns in
    tiles of 256, in a rasterization order; the other columns in tiles of `width`. Pruned tiles come last and fill gaps.
    """

    full: int
    width: int
    long_width: int
    raster_swizzle: int

    def steps(self, lists: _Lists, m: int) -> list[_Step]:
        long, others, pruned = lists.parts
        columns = _columns(m, self.full, self.width)
        walk = [(*long, _columns(m, 0, self.long_width))] if long[0] < long[1] else []
        for begin in range(*others, self.raster_swizzle):
            walk.append((begin, min(begin + self.raster_swizzle, others[1]), columns[: self.full]))
        walk.append((*others, columns[self.full :]))
        return [*walk, (*pruned, _columns(m, 0, WIDEST))] if pruned[0] < pruned[1] else walk


def _end_of_two(first: int, long: float, then: int, short: float, blocks: int) -> float:
    """Closed-form end of the last block, for `first` tiles of `long` cycles, then `then` others of `short` cycles."""
    rounds, late = divmod(first, blocks)
    early, start = blocks - late, rounds * long  # blocks free at `start`; the others are free `long` cycles later
    least = start + long if late else start
    if not then:
        return least
    skipped = long / short
    # in each turn early blocks take another tile, and late ones too from `skipped` on
    turns = max(1, math.floor((then + late * skipped) / blocks)) if late else -(-then // blocks)
    while early * turns + late * max(0, math.floor(turns - skipped)) < then:
        turns += 1
    return max(least, start + turns * short)


def _orders(lists: _Lists, m: int, blocks: int, raster_swizzle: int, quick: bool) -> list[tuple[float, int, _Order]]:
    """Candidate orders as (cycles, number, order): narrower tiles fill the last round, or all columns if there are few.

    The cycles are a lower bound, for equal work of all blocks. If `quick`, an estimate for the last block, as if all tiles of a
    width were equal, but at least those of the longest tile.
    """
    (_, long), (begin, end), _ = lists.parts
    whole, most_cuts = -(-m // WIDEST), MOST_CUTS_OF_QUICK if quick else MOST_CUTS
    cuts = [(whole, WIDEST)]
    if whole * end < MANY * blocks:
        most = min(whole, 2 + 2 * blocks // max(1, end))
        narrower = [*dict.fromkeys((*range(1, most + 1, -(-most // most_cuts)), whole))]
        cuts += [(whole - narrow, width) for width in WIDTHS[1:] for narrow in narrower]
    of_long = {
        width: (*lists.work(0, m, 0, width), lists.longest(0, width) if long else 0.0)
        for width in (WIDTHS if long else WIDTHS[:1])
    }
    pruned, pruned_tiles = lists.work(2, m, 0, WIDEST)
    orders = []
    for full, width in cuts:
        work, tiles = lists.work(1, m, full, width)
        wide, likely = min(full, m // WIDEST), 0.0
        if quick and begin < end:
            first, then = wide * (end - begin), -(-max(0, m - wide * WIDEST) // width) * (end - begin)
            likely = _end_of_two(first, lists.mean[WIDEST], then, lists.mean[width], blocks)
            likely = max(likely, lists.longest(begin, WIDEST if wide else width))
        for long_width, (long_work, long_tiles, longest) in of_long.items():
            share = (work + long_work + pruned) / max(1, min(blocks, tiles + long_tiles + pruned_tiles))
            cycles = max(share, likely, longest) if quick else share
            orders.append((cycles, len(orders), _Order(full, width, long_width, raster_swizzle)))
    return orders


@functools.lru_cache(maxsize=512)
def column_ranges(m: int, width: int, first: int = 0) -> tuple[tuple[int, int], ...]:
    """(first column, columns) of the work tiles of a CTA tile from `first` on, each of `width`, the last as narrow as possible.

    Cached: all products of a network have equally many columns."""
    return tuple((column, min(width, -(-(m - column) // 64) * 64)) for column in range(first, m, width))


@functools.lru_cache(maxsize=512)
def _columns(m: int, full: int, width: int) -> tuple[tuple[int, int], ...]:
    """As `column_ranges`: `full` of 256 columns, then some of `width`."""
    return column_ranges(m, WIDEST)[:full] + column_ranges(m, width, full * WIDEST)


@functools.lru_cache(maxsize=512)
def _column_counts(m: int, full: int, width: int) -> tuple[tuple[int, int], ...]:
    """(columns, count) of the same work tiles."""
    counts = [(WIDEST, min(full, m // WIDEST))]
    left = m - counts[0][1] * WIDEST
    if counts[0][1] == full:
        counts.append((width, left // width))
        left %= width
    return tuple([*counts, (-(-left // 64) * 64, 1)] if left else counts)


@dataclass(frozen=True)
class _Dealt:
    """An assignment of tiles to blocks.

    Args:
        steps: the tiles in order.
        taken: for each tile, its start in ticks times `_BLOCKS`, plus the index of its block.
        end: end of the last block, in ticks.
    """

    steps: list[_Step]
    taken: list[float]
    end: float


def _deal(steps: list[_Step], ticks: Mapping[int, Sequence[float]], blocks: int) -> _Dealt:
    """Assign each tile to the block that is free first, ties to the lower index."""
    costs: list[float] = []
    for begin, end, columns in steps:
        of_width = {width: ticks[width][begin:end] for width in WIDTHS}
        for _, width in columns:
            costs += of_width[width]
    free = [float(block) for block in range(min(blocks, len(costs)))]
    replace = heapq.heapreplace
    taken = [replace(free, free[0] + cost) for cost in costs]
    return _Dealt(steps, taken, max(free, default=0.0) // _BLOCKS)


def _by_block(dealt: _Dealt, lengths: tuple[int, ...]) -> Schedule:
    """The tiles of each block in its order.

    Uses operations of this thread only: PyTorch indexes a thousand rows with all threads, which is slow on a busy machine.
    """
    if not dealt.taken:
        return Schedule(
            torch.empty(0, 4, dtype=torch.int32, device=CPU), torch.zeros(1, dtype=torch.int32, device=CPU), 0.0
        )
    cta_tiles: list[int] = []
    places: list[int] = []
    for begin, end, columns in dealt.steps:
        cta_tiles += [*range(begin, end)] * len(columns)
        for column, width in columns:
            places += (column | (width // 64 - 1) << COLUMN_BITS,) * (end - begin)
    first_k_blocks = [0, *itertools.accumulate(max(1, length) for length in lengths[:-1])]
    weights = torch.tensor([*zip(range(len(lengths)), first_k_blocks, lengths, lengths)], dtype=torch.int32, device=CPU)
    block = torch.frombuffer(array("d", dealt.taken), dtype=torch.float64).long().bitwise_and_(_BLOCKS - 1)
    order = block.argsort(stable=True)
    cta_tile, place = (
        torch.frombuffer(array("q", each), dtype=torch.int64).gather(0, order) for each in (cta_tiles, places)
    )
    first_tiles = torch.zeros(int(block.max()) + 2, dtype=torch.int32, device=CPU)
    torch.cumsum(torch.bincount(block), 0, dtype=torch.int32, out=first_tiles[1:])
    work = weights.index_select(0, cta_tile)
    work[:, 3] = place
    return Schedule(work, first_tiles, dealt.end / _TICKS)


@functools.lru_cache(maxsize=MOST_SCHEDULES)
def schedule_tensors(
    lengths: tuple[int, ...], m: int, blocks: int, raster_swizzle: int, device: torch.device, *, quick: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """A schedule on a device.

    Args:
        lengths: k-blocks of each CTA tile, stored consecutively; a CTA tile without any occupies one.
        raster_swizzle, quick: see `schedule`.
    Returns:
        the schedule's work, int32 [tiles, 4], and begins, int32 [blocks in use + 1]; firsts, int32 [blocks in use, 4]: a copy of
        each block's first tile.
    Raises:
        ValueError: the number of columns does not fit into a word.
    """
    reason = columns_unsupported_reason(m)
    if reason:
        raise ValueError(f"a schedule {reason}")
    work_schedule = schedule(lengths, m, blocks, raster_swizzle, quick=quick)
    return tables_on_device(work_schedule.work, work_schedule.first_tiles, device)


def tables_on_device(work: Tensor, begins: Tensor, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Copy work and begins to a device at once; returns work, begins and firsts as `schedule_tensors`."""
    firsts = work.index_select(0, begins[:-1].long())
    parts = (work.flatten(), firsts.flatten(), begins)  # rows of 16 bytes first
    there = on_device(torch.cat(parts), device).split([len(part) for part in parts])
    return there[0].view(-1, 4), there[2], there[1].view(-1, 4)


def columns_unsupported_reason(m: int) -> str | None:
    """Why schedules do not support m rows of X, or None."""
    most = 1 << COLUMN_BITS
    return None if m <= most else f"takes at most {most} rows of X, not {m}"
