"""Balance work tiles over clusters by cutting them into pieces, if there are few tiles or uneven lists.

Each piece has some of a tile's k-blocks, and its cluster writes float32 partial sums; a second kernel adds the pieces of a
tile in k-block order. Longest lists come first. A tile goes to the cluster that is free first, either completely or as much as
fits into an equal share of all work.
"""

import functools
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefront_kernels.cuda.host_tables import on_device

UNIT = 64  # rows of X whose partial sums of a CTA tile are contiguous
FEWEST = 2  # minimum k-blocks per piece, if the list has that many
_SEARCHED = 4  # number of shares tried, to end within 0.1 % of the best
_GUESSED = 3  # number of corrections of an estimated share


@dataclass(frozen=True)
class Costs:
    """Costs of a work tile of one block, and of the reduction; in cycles or any other unit.

    Args:
        whole, piece: of a tile without its k-blocks, if it is complete, and if partial sums are written.
        k_block: of each k-block.
        adding: of the reduction kernel, and of each piece in it.
    """

    whole: float
    piece: float
    k_block: float
    adding: tuple[float, float]

    def of_adding(self, pieces: int) -> float:
        """Cost of reducing all pieces after the last cluster has ended."""
        return self.adding[0] + self.adding[1] * pieces if pieces else 0.0


# (CTA tile, tile column, first k-block within the tile, number of k-blocks, index among all pieces or -1 for a whole tile)
Piece = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class Shares:
    """The work of every cluster.

    Args:
        clusters: pieces of each, in order; never empty.
        cut: for each cut tile: CTA tile, tile column, index of its first piece, number of pieces.
        end: when the last cluster and the reduction end, in the unit of the costs.
    """

    clusters: tuple[tuple[Piece, ...], ...]
    cut: tuple[tuple[int, int, int, int], ...]
    end: float

    @property
    def pieces(self) -> int:
        """Number of pieces of cut tiles."""
        return sum(count for *_, count in self.cut)


def estimated_end(lengths: tuple[int, ...], columns: int, clusters: int, costs: Costs) -> float:
    """Estimate the `end` of `shares` without assigning work."""
    share, pieces, uncut = _estimate(lengths, columns, clusters, costs)
    return min(uncut, share + costs.of_adding(max(pieces, 1)))


def _estimate(lengths: tuple[int, ...], columns: int, clusters: int, costs: Costs) -> tuple[float, int, float]:
    """Estimate the smallest sufficient share, its number of pieces, and the end without cutting."""
    wholes = {length: costs.whole + length * costs.k_block for length in lengths}
    total, tiles = columns * sum(wholes[length] for length in lengths), columns * len(lengths)
    share, counted = total / clusters, Counter(lengths)
    uncut = max(max(wholes.values()), share + total / tiles / 2 if tiles > clusters else 0.0)
    for _ in range(_GUESSED):
        most = max(1.0, (share - costs.piece) / costs.k_block)  # k-blocks per piece
        long = {length: math.ceil(length / most) for length in counted if wholes[length] > share}
        more = sum(times * counted[length] * costs.piece - costs.whole for length, times in long.items())
        least = costs.piece + FEWEST * costs.k_block if long else costs.whole
        share = max((total + columns * more) / clusters, least)
    return share, columns * sum(times * counted[length] for length, times in long.items()), uncut


@functools.lru_cache(maxsize=4096)
def shares(lengths: tuple[int, ...], columns: int, clusters: int, costs: Costs) -> Shares:
    """Assign tiles with these numbers of k-blocks (descending), each in this many columns, to at most `clusters` clusters.

    Of several sufficient shares, the one with the earliest end is used; within some percent of the optimum.
    """
    best = _dealt(lengths, columns, clusters, costs, math.inf)
    assert best is not None
    low = columns * sum(costs.whole + length * costs.k_block for length in lengths) / clusters
    most, high = max(low, _estimate(lengths, columns, clusters, costs)[0]), math.inf
    for _ in range(_SEARCHED):
        candidate = _dealt(lengths, columns, clusters, costs, most)
        if candidate is None:
            low = most
        else:
            high, best = most, min(best, candidate, key=lambda one: one.end)
        most = min(1.05 * most + costs.k_block / 2, (low + high) / 2) if candidate is None else (low + high) / 2
    return best


def _dealt(lengths: tuple[int, ...], columns: int, clusters: int, costs: Costs, most: float) -> Shares | None:
    """The assignment in which no cluster exceeds `most`; None if that is too little."""
    free = [(0.0, at) for at in range(clusters)]
    taken: list[list[Piece]] = [[] for _ in free]
    cut: list[tuple[int, int, int, int]] = []
    pieces = 0
    for tile, length in enumerate(lengths):
        for column in range(columns):
            begin, first = 0, pieces
            while True:
                busy, at = free[0]
                left, room = length - begin, most - busy
                if begin == 0 and costs.whole + left * costs.k_block <= room:
                    heapq.heapreplace(free, (busy + costs.whole + left * costs.k_block, at))
                    taken[at].append((tile, column, 0, left, -1))
                    break
                fitting = min(left, int((room - costs.piece) / costs.k_block))
                if 0 < left - fitting < FEWEST:
                    fitting = left - FEWEST
                if fitting < min(FEWEST, left) or left == 0:
                    return None
                heapq.heapreplace(free, (busy + costs.piece + fitting * costs.k_block, at))
                taken[at].append((tile, column, begin, fitting, pieces))
                begin, pieces = begin + fitting, pieces + 1
                if begin == length:
                    break
            if pieces > first:
                cut.append((tile, column, first, pieces - first))
    end = max(busy for busy, _ in free) + costs.of_adding(pieces)
    return Shares(tuple(tuple(own) for own in taken if own), tuple(cut), end)


@dataclass(frozen=True, eq=False)
class PieceTables:
    """Shares as device tensors for the kernels.

    Args:
        work, begins, firsts: as returned by `sm90.work_tensors`.
        units: int32 [tiles of all clusters]: first unit of a piece's sums, -1 for a whole tile.
        cut: int32 [cut tiles, 4]: CTA tile, first row of X, first unit, number of pieces.
        units_in_all: total number of units.
    """

    work: Tensor
    begins: Tensor
    firsts: Tensor
    units: Tensor
    cut: Tensor
    units_in_all: int


def piece_tables(
    found: Shares,
    lengths: tuple[int, ...],
    tiles: Sequence[int],
    places: Sequence[int],
    rows: int,
    device: torch.device,
) -> PieceTables:
    """Convert shares to tables.

    Args:
        lengths: k-blocks of each CTA tile, stored consecutively.
        tiles: id of each CTA tile in kernels, the first word of `work` and `cut`.
        places: position of each tile column, the last word of `work`.
        rows: of X per column; a multiple of 64.
    """
    starts, piece_units = [0, *itertools.accumulate(lengths)], rows // UNIT
    every = [piece for own in found.clusters for piece in own]
    work = [(tiles[tile], starts[tile] + begin, count, places[column]) for tile, column, begin, count, _ in every]
    cut = [(tiles[tile], column * rows, first * piece_units, count) for tile, column, first, count in found.cut]
    units = [number if number < 0 else number * piece_units for *_, number in every]
    begins = [0, *itertools.accumulate(map(len, found.clusters))]
    firsts = [work[begin] for begin in begins[:-1]]
    rows_of_four = list(itertools.chain.from_iterable((*work, *firsts, *cut)))
    with torch.device("cpu"):  # regardless of the default device
        words = torch.tensor((*rows_of_four, *units, *begins), dtype=torch.int32)
    sizes = [4 * len(work), 4 * len(firsts), 4 * len(cut), len(units), len(begins)]
    there = on_device(words, device).split(sizes)
    return PieceTables(
        there[0].view(-1, 4), there[4], there[1].view(-1, 4), there[3], there[2].view(-1, 4), found.pieces * piece_units
    )
