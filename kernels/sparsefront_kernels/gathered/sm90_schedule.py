"""Which block of the grid computes which work tiles, in the persistent kernel: equal work for every block.

A work tile is the 128 outputs of a CTA tile by some columns of Y: 256 where there is much work. Tiles are dealt out in a
rasterization order in which operands stay in L2 (`raster_swizzle` CTA tiles over some columns, then over the next columns; then
the next CTA tiles), each to the block that is free first. CTA tiles may have lists of any length: much longer ones come first.
The last columns are cut into narrower tiles where blocks then end closer together.
"""

import functools
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from sparsefront_kernels.performance_model.launch_costs import cuda_tile_cycles

WIDEST = 256
WIDTHS = (256, 192, 128, 64)  # columns of a work tile
LONG = 1.5  # times the median number of k-blocks: CTA tiles that are dealt out first, so that none ends last
# A recorded CUDA graph reads a schedule's tensors without holding them: so many are kept (some 10 KB each) that those of any
# network in use are among them.
MOST_SCHEDULES = 16_384
ALL = 1024  # as `raster_swizzle`: more CTA tiles than any layer has
MOST_CUTS = 24  # places that are tried for the beginning of narrower tiles
GOOD_ENOUGH = 0.999  # of the least that is possible
MANY = 40  # tiles of a block: with more, the last one does not matter


@dataclass(frozen=True)
class Schedule:
    """The work tiles of every block.

    Args:
        tiles: (CTA tile, first column, columns) in the order of each block, block after block.
        begins: where each block's tiles begin, and their number at the end.
        cycles: predicted, of the block that ends last.
    """

    tiles: tuple[tuple[int, int, int], ...]
    begins: tuple[int, ...]
    cycles: float


@functools.lru_cache(maxsize=512)
def schedule(lengths: tuple[int, ...], m: int, blocks: int, raster_swizzle: int = ALL) -> Schedule:
    """Deal out the product of CTA tiles with these numbers of k-blocks (most first) and m columns to at most `blocks` blocks.

    Args:
        raster_swizzle: CTA tiles that go through all columns before the next ones begin. Blocks at work read the weights of
            so many at most, and rows of X for as many columns as these leave blocks for.
    """
    whole, kept = -(-m // WIDEST), [length for length in lengths if length]
    # narrower tiles fill the last round, or all columns where there are few
    most = min(whole, 2 + 2 * blocks // max(1, len(kept)))
    cuts = [(whole, WIDEST)]
    if whole * len(kept) < MANY * blocks:
        narrower = [*dict.fromkeys((*range(1, most + 1, -(-most // MOST_CUTS)), whole))]
        cuts += [(whole - narrow, width) for width in WIDTHS[1:] for narrow in narrower]
    long = sum(length > LONG * median(kept) for length in kept)
    orders = [_Order(*cut, long, width, raster_swizzle) for cut in cuts for width in (WIDTHS if long else WIDTHS[:1])]
    cycles = {width: [cuda_tile_cycles(length, width) for length in lengths] for width in WIDTHS}
    best, least = 0, math.inf
    earliest = [_earliest_end(order, cycles, m, len(kept), blocks) for order in orders]
    # a layer may be asked for dozens of orders of thousands of tiles: the promising ones first, most of the others are not tried
    for index in sorted(range(len(orders)), key=earliest.__getitem__):
        if earliest[index] > GOOD_ENOUGH * least:
            break
        ends = _end(orders[index], cycles, m, len(kept), blocks)
        if (ends, index) < (least, best):
            best, least = index, ends
    return _dealt_out(orders[best], cycles, m, len(kept), blocks)


@dataclass(frozen=True)
class _Order:
    """The order in which work tiles are dealt out.

    First the `long` longest CTA tiles, in tiles of `long_width` columns. Then the others: the first `full` times 256 columns in
    tiles of 256, in a rasterization order; the other columns in tiles of `width`. What is pruned comes last and fills the gaps.
    """

    full: int
    width: int
    long: int
    long_width: int
    raster_swizzle: int

    def steps(self, m: int, kept: int, cta_tiles: int) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
        """(First CTA tile, the one behind the last, columns): for each of the columns all of these CTA tiles."""
        yield 0, self.long, _columns(m, 0, self.long_width)
        columns = _columns(m, self.full, self.width)
        for begin in range(self.long, kept, self.raster_swizzle):
            yield begin, min(begin + self.raster_swizzle, kept), columns[: self.full]
        yield self.long, kept, columns[self.full :]
        yield kept, cta_tiles, _columns(m, 0, WIDEST)


def _columns(m: int, full: int, width: int) -> list[tuple[int, int]]:
    """(First column, columns) of the work tiles of a CTA tile: `full` of 256 columns, then some of `width`."""
    columns = [(column, WIDEST) for column in range(0, min(full * WIDEST, m), WIDEST)]
    columns += [(column, width) for column in range(full * WIDEST, m, width)]
    return [(first, min(count, -(-(m - first) // 64) * 64)) for first, count in columns]


def _earliest_end(order: _Order, cycles: Mapping[int, Sequence[float]], m: int, kept: int, blocks: int) -> float:
    """Cycles of a block where all have equal work: no order of these tiles ends earlier."""
    work, tiles = 0.0, 0
    for begin, end, columns in order.steps(m, kept, len(cycles[WIDEST])):
        tiles += (end - begin) * len(columns)
        for width, times in Counter(width for _, width in columns).items():
            work += times * sum(cycles[width][begin:end])
    return work / max(1, min(blocks, tiles))


def _end(order: _Order, cycles: Mapping[int, Sequence[float]], m: int, kept: int, blocks: int) -> float:
    """When the last block ends, in cycles."""
    steps = order.steps(m, kept, len(cycles[WIDEST]))
    costs = [cycles[width][begin:end] for begin, end, columns in steps for _, width in columns]
    free = [0.0] * min(blocks, sum(map(len, costs)))
    replace = heapq.heapreplace
    for cost in itertools.chain.from_iterable(costs):
        replace(free, free[0] + cost)
    return max(free, default=0.0)


def _dealt_out(order: _Order, cycles: Mapping[int, Sequence[float]], m: int, kept: int, blocks: int) -> Schedule:
    """Each tile to the block that is free first."""
    tiles = [
        (cta_tile, *part)
        for begin, end, columns in order.steps(m, kept, len(cycles[WIDEST]))
        for part in columns
        for cta_tile in range(begin, end)
    ]
    free = [(0.0, block) for block in range(min(blocks, len(tiles)))]
    dealt: list[list[tuple[int, int, int]]] = [[] for _ in free]
    for tile in tiles:
        busy, block = free[0]
        heapq.heapreplace(free, (busy + cycles[tile[2]][tile[0]], block))
        dealt[block].append(tile)
    begins = [0, *itertools.accumulate(len(tiles_of_block) for tiles_of_block in dealt)]
    last = max((busy for busy, _ in free), default=0.0)
    return Schedule(tuple(itertools.chain.from_iterable(dealt)), tuple(begins), last)


@functools.lru_cache(maxsize=MOST_SCHEDULES)
def schedule_tensors(
    lengths: tuple[int, ...], m: int, blocks: int, raster_swizzle: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """A schedule as the kernel reads it.

    Args:
        lengths: k-blocks of each CTA tile, which lie one after the other; a CTA tile without any occupies one.
        raster_swizzle: see `schedule`.
    Returns:
        work, int32 [tiles, 4]: CTA tile, its first k-block, its number of k-blocks, column and columns / 64 - 1 in the upper four
        bits; begins, int32 [blocks in use + 1].
    """
    found = schedule(lengths, m, blocks, raster_swizzle)
    firsts = [0, *itertools.accumulate(max(1, length) for length in lengths)]
    work = [
        (cta_tile, firsts[cta_tile], lengths[cta_tile], column | (width // 64 - 1) << 28)
        for cta_tile, column, width in found.tiles
    ]
    return (
        torch.tensor(work, dtype=torch.int32).view(-1, 4).to(device),
        torch.tensor(found.begins, dtype=torch.int32).to(device),
    )
