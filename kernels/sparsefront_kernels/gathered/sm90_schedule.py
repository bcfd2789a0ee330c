"""Which block of the grid computes which work tiles, in the persistent kernel: equal work for every block.

A work tile is the 128 outputs of a CTA tile by some columns of Y: 256 where there is much work. Tiles are dealt out in a
rasterization order in which operands stay in L2 (`raster_swizzle` CTA tiles over some columns, then over the next columns; then
the next CTA tiles), each to the block that is free first. CTA tiles may have lists of any length: much longer ones come first.
The last columns are cut into narrower tiles where blocks then end closer together.

The best of these takes milliseconds to find. A network of a hundred products that gets inputs of a new length waits for a
hundred schedules, so that there is a quick one too, of the few orders that look best.
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

CPU = torch.device("cpu")  # whatever the default device is
WIDEST = 256
WIDTHS = (256, 192, 128, 64)  # columns of a work tile
LONG = 1.5  # times the median number of k-blocks: CTA tiles that are dealt out first, so that none ends last
# Tables on a device, some 10 KB each: so many that no launch that is still queued reads an evicted one. Those that a CUDA graph
# reads live longer, see `host_tables.keep_for_graphs`.
MOST_SCHEDULES = 16_384
COLUMN_BITS = 28  # of the word in which a tile's first column and its width are
ALL = 1024  # as `raster_swizzle`: more CTA tiles than any layer has
MOST_CUTS, MOST_CUTS_OF_QUICK = 24, 4  # places that are tried for the beginning of narrower tiles
GOOD_ENOUGH = 0.999  # of the least that is possible
MANY = 40  # tiles of a block: with more, the last one does not matter
MOST_DEALT_OF_QUICK = 600  # tiles, of all orders that are tried
_BLOCKS = 1 << 10  # of a grid, at most: a block's number and the cycles until it is free are one float, which is exact
_TICKS = 1000  # of a cycle
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
        first_tiles: int32 [blocks in use + 1] on the CPU: where each block's tiles begin, and their number at the end.
        cycles: predicted, of the block that ends last.
    """

    work: Tensor
    first_tiles: Tensor
    cycles: float

    @property
    def tiles(self) -> tuple[tuple[int, int, int], ...]:
        """Of each (CTA tile, first column, columns)."""
        mask = (1 << COLUMN_BITS) - 1
        return tuple(
            (cta_tile, place & mask, 64 * ((place >> COLUMN_BITS) + 1)) for cta_tile, _, _, place in self.work.tolist()
        )

    @property
    def begins(self) -> tuple[int, ...]:
        """Where each block's tiles begin, and their number at the end."""
        return tuple(self.first_tiles.tolist())


def schedule(
    lengths: tuple[int, ...], m: int, blocks: int, raster_swizzle: int = ALL, *, quick: bool = False
) -> Schedule:
    """Deal out the product of CTA tiles with these numbers of k-blocks (most first) and m columns to at most `blocks` blocks.

    Args:
        raster_swizzle: CTA tiles that go through all columns before the next ones begin. Blocks at work read the weights of
            so many at most, and rows of X for as many columns as these leave blocks for.
        quick: whether only a few orders are tried. The last block then ends 2 % later on average, at
            worst a third.
    """
    return _by_block(_searched(lengths, m, blocks, raster_swizzle, quick), lengths)


def last_cycles(lengths: tuple[int, ...], m: int, blocks: int, raster_swizzle: int = ALL) -> float:
    """The `cycles` of the quick schedule."""
    return _searched(lengths, m, blocks, raster_swizzle, True).end / _TICKS


@functools.lru_cache(maxsize=512)
def _searched(lengths: tuple[int, ...], m: int, blocks: int, raster_swizzle: int, quick: bool) -> "_Dealt":
    """The best order, dealt out."""
    lists, blocks = _Lists.of(lengths), min(blocks, _BLOCKS)
    orders = _orders(lists, m, blocks, raster_swizzle, quick)
    best, number, tiles = _Dealt([], [], math.inf), 0, 0
    # a layer may be asked for dozens of orders of thousands of tiles: the promising ones first, most of the others are not tried
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
    """What a schedule asks of the CTA tiles again and again.

    Args:
        parts: the much longer ones, the others, those without k-blocks: first CTA tile and the one behind the last.
        ticks: columns of a work tile → of each CTA tile, what such a tile takes, in the unit of `_deal`.
        cycles: columns → of each part, what a column of such tiles takes together.
        mean: columns → what a work tile of the others takes on average, in cycles.
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
        """Cycles and number of all work tiles of a part; `full` and `width` as of an order."""
        begin, end = self.parts[part]
        columns = _column_counts(m, full, width) if begin < end else ()
        return (
            sum(times * self.cycles[of_width][part] for of_width, times in columns),
            sum(times for _, times in columns) * (end - begin),
        )

    def longest(self, cta_tile: int, width: int) -> float:
        """Cycles of a work tile of this CTA tile, whose list is the longest of those from it on."""
        return self.ticks[width][cta_tile] / (_TICKS * _BLOCKS)


# (First CTA tile, the one behind the last, columns): for each of the columns all of these CTA tiles.
_Step = tuple[int, int, tuple[tuple[int, int], ...]]


class _Order(NamedTuple):
    """The order in which work tiles are dealt out.

    First the longest CTA tiles, in tiles of `long_width` columns. Then the others: the first `full` times 256 columns in
    tiles of 256, in a rasterization order; the other columns in tiles of `width`. What is pruned comes last and fills the gaps.
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
    """When the last block ends that takes the `first` tiles of `long` cycles, `then` others of `short` cycles, in closed form."""
    rounds, late = divmod(first, blocks)
    early, start = (
        blocks - late,
        rounds * long,
    )  # blocks that are free at `start`; the others are so `long` cycles later
    least = start + long if late else start
    if not then:
        return least
    skipped = long / short
    # each of `turns` lets early blocks take a tile more, and late ones too, from `skipped` on
    turns = max(1, math.floor((then + late * skipped) / blocks)) if late else -(-then // blocks)
    while early * turns + late * max(0, math.floor(turns - skipped)) < then:
        turns += 1
    return max(least, start + turns * short)


def _orders(lists: _Lists, m: int, blocks: int, raster_swizzle: int, quick: bool) -> list[tuple[float, int, _Order]]:
    """Those among which the best may be, with their cycles and numbers: narrower tiles fill the last round, or all columns
    where there are few.

    The cycles are those of a block where all have equal work: no order of these tiles ends earlier. Where `quick`, about
    those of the last block: as if all tiles of a width were equal, and not before the longest has ended.
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


# All products of a network have equally many columns, so that these are made once for all.


@functools.lru_cache(maxsize=512)
def column_ranges(m: int, width: int, first: int = 0) -> tuple[tuple[int, int], ...]:
    """(First column, columns) of the work tiles of a CTA tile from `first` on: each of `width`, the last as narrow as it may."""
    return tuple((column, min(width, -(-(m - column) // 64) * 64)) for column in range(first, m, width))


@functools.lru_cache(maxsize=512)
def _columns(m: int, full: int, width: int) -> tuple[tuple[int, int], ...]:
    """As `column_ranges`: `full` of 256 columns, then some of `width`."""
    return column_ranges(m, WIDEST)[:full] + column_ranges(m, width, full * WIDEST)


@functools.lru_cache(maxsize=512)
def _column_counts(m: int, full: int, width: int) -> tuple[tuple[int, int], ...]:
    """(Columns, how many times) of the same work tiles."""
    counts = [(WIDEST, min(full, m // WIDEST))]
    left = m - counts[0][1] * WIDEST
    if counts[0][1] == full:
        counts.append((width, left // width))
        left %= width
    return tuple([*counts, (-(-left // 64) * 64, 1)] if left else counts)


@dataclass(frozen=True)
class _Dealt:
    """Which block takes each tile.

    Args:
        steps: the tiles in the order in which they are dealt out.
        taken: of each tile when it begins, in ticks, times `_BLOCKS`, plus the number of its block.
        end: when the last block ends, in ticks.
    """

    steps: list[_Step]
    taken: list[float]
    end: float


def _deal(steps: list[_Step], ticks: Mapping[int, Sequence[float]], blocks: int) -> _Dealt:
    """Each tile to the block that is free first, of several the one of the lowest number."""
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
    """The tiles of each block in the order in which it takes them.

    By operations of this thread alone: PyTorch indexes a thousand rows in all threads, for which it waits on a busy machine.
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
    """A schedule as kernels read it.

    Args:
        lengths: k-blocks of each CTA tile, which lie one after the other; a CTA tile without any occupies one.
        raster_swizzle, quick: see `schedule`.
    Returns:
        the schedule's work, int32 [tiles, 4], and begins, int32 [blocks in use + 1]; firsts, int32 [blocks in use, 4]: the first
        tile of each block once more.
    Raises:
        ValueError: more columns than a word holds besides that.
    """
    if reason := columns_unsupported_reason(m):
        raise ValueError(f"a schedule {reason}")
    work_schedule = schedule(lengths, m, blocks, raster_swizzle, quick=quick)
    return tables_on_device(work_schedule.work, work_schedule.first_tiles, device)


def tables_on_device(work: Tensor, begins: Tensor, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Work, begins and firsts on a device, as `schedule_tensors` returns them, from what the host has made; copied at once."""
    firsts = work.index_select(0, begins[:-1].long())
    parts = (work.flatten(), firsts.flatten(), begins)  # rows of 16 bytes first
    there = on_device(torch.cat(parts), device).split([len(part) for part in parts])
    return there[0].view(-1, 4), there[2], there[1].view(-1, 4)


def columns_unsupported_reason(m: int) -> str | None:
    """Why kernels that read such schedules are unsupported for m rows of X, or None."""
    most = 1 << COLUMN_BITS
    return None if m <= most else f"takes at most {most} rows of X, not {m}"
