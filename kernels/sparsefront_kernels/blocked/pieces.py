"""Which cluster of blocks computes which k-blocks of which work tiles, where there are few tiles or some with long lists.

A tile may be cut into pieces, each with some of its k-blocks, that clusters leave as sums in float32; a second kernel adds
up those of a tile in the order of its k-blocks. Longest lists come first. A tile goes whole to the cluster that is free first,
or that cluster takes as much of it as fits into an equal share of all work.
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

from sparsefront_kernels.common.host_tables import on_device

UNIT = 64  # rows of X of which the sums of a CTA tile lie together
FEWEST = 2  # k-blocks of a piece, where its list has as many
_SEARCHED = 4  # shares that are tried, which end 0.1 % later than the best
_GUESSED = 3  # times that an estimated share is corrected


@dataclass(frozen=True)
class Costs:
    """Of a work tile of one block, and of all blocks afterwards; in cycles or any other unit.

    Args:
        whole, piece: of a tile beside its k-blocks, where it is whole, and where its sums are left in memory.
        k_block: of each k-block.
        adding: of adding up, where there is any piece, and of each piece.
    """

    whole: float
    piece: float
    k_block: float
    adding: tuple[float, float]

    def of_adding(self, pieces: int) -> float:
        """What all pieces cost after the last cluster has ended."""
        return self.adding[0] + self.adding[1] * pieces if pieces else 0.0


# (CTA tile, column of tiles, first k-block within the tile's, k-blocks, number among the pieces of all or -1 where it is whole)
Piece = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class Shares:
    """Work of every cluster.

    Args:
        clusters: the pieces of each, in its order; none is without any.
        cut: of each tile that was cut: CTA tile, column of tiles, number of its first piece, number of pieces.
        end: when the last cluster ends, in the unit of the costs, and after that all pieces are added up.
    """

    clusters: tuple[tuple[Piece, ...], ...]
    cut: tuple[tuple[int, int, int, int], ...]
    end: float

    @property
    def pieces(self) -> int:
        """Of the tiles that were cut."""
        return sum(count for *_, count in self.cut)


def estimated_end(lengths: tuple[int, ...], columns: int, clusters: int, costs: Costs) -> float:
    """About the `end` of `shares`, without dealing anything out."""
    share, pieces, uncut = _estimate(lengths, columns, clusters, costs)
    return min(uncut, share + costs.of_adding(max(pieces, 1)))


def _estimate(lengths: tuple[int, ...], columns: int, clusters: int, costs: Costs) -> tuple[float, int, float]:
    """About the least share that suffices, its number of pieces, and the end where no tile is cut."""
    wholes = {length: costs.whole + length * costs.k_block for length in lengths}
    total, tiles = columns * sum(wholes[length] for length in lengths), columns * len(lengths)
    share, counted = total / clusters, Counter(lengths)
    uncut = max(max(wholes.values()), share + total / tiles / 2 if tiles > clusters else 0.0)
    for _ in range(_GUESSED):
        most = max(1.0, (share - costs.piece) / costs.k_block)  # k-blocks of a piece
        long = {length: math.ceil(length / most) for length in counted if wholes[length] > share}
        more = sum(times * counted[length] * costs.piece - costs.whole for length, times in long.items())
        least = costs.piece + FEWEST * costs.k_block if long else costs.whole
        share = max((total + columns * more) / clusters, least)
    return share, columns * sum(times * counted[length] for length, times in long.items()), uncut


@functools.lru_cache(maxsize=4096)
def shares(lengths: tuple[int, ...], columns: int, clusters: int, costs: Costs) -> Shares:
    """Deal out tiles with these numbers of k-blocks (most first), each in so many columns, to at most `clusters` clusters.

    Of the shares of the work that suffice for each that with the earliest end, within some percent.
    """
    best = _dealt(lengths, columns, clusters, costs, math.inf)
    assert best is not None
    low = columns * sum(costs.whole + length * costs.k_block for length in lengths) / clusters
    most, high = max(low, _estimate(lengths, columns, clusters, costs)[0]), math.inf
    for _ in range(_SEARCHED):
        found = _dealt(lengths, columns, clusters, costs, most)
        if found is None:
            low = most
        else:
            high, best = most, min(best, found, key=lambda one: one.end)
        most = min(1.05 * most + costs.k_block / 2, (low + high) / 2) if found is None else (low + high) / 2
    return best


def _dealt(lengths: tuple[int, ...], columns: int, clusters: int, costs: Costs, most: float) -> Shares | None:
    """The work where no cluster takes more than `most`; None where that is too little."""
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
    """Shares as kernels read them, on a device.

    Args:
        work, begins, firsts: as `sm90.work_tensors` returns them.
        units: int32 [tiles of all clusters]: the first unit of a piece's sums, -1 where the tile is whole.
        cut: int32 [cut tiles, 4]: CTA tile, first row of X, first unit, number of pieces.
        units_in_all: of all sums.
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
    """Tables of shares.

    Args:
        lengths: k-blocks of each CTA tile, which lie one after the other.
        tiles: of each CTA tile how kernels name it, the first word of `work` and `cut`.
        places: of each column of tiles where it lies, the last word of `work`.
        rows: of X, of such a column; a multiple of 64.
    """
    starts, piece_units = [0, *itertools.accumulate(lengths)], rows // UNIT
    every = [piece for own in found.clusters for piece in own]
    work = [(tiles[tile], starts[tile] + begin, count, places[column]) for tile, column, begin, count, _ in every]
    cut = [(tiles[tile], column * rows, first * piece_units, count) for tile, column, first, count in found.cut]
    units = [number if number < 0 else number * piece_units for *_, number in every]
    begins = [0, *itertools.accumulate(map(len, found.clusters))]
    firsts = [work[begin] for begin in begins[:-1]]
    rows_of_four = list(itertools.chain.from_iterable((*work, *firsts, *cut)))
    with torch.device("cpu"):  # whatever the default device is
        words = torch.tensor((*rows_of_four, *units, *begins), dtype=torch.int32)
    sizes = [4 * len(work), 4 * len(firsts), 4 * len(cut), len(units), len(begins)]
    there = on_device(words, device).split(sizes)
    return PieceTables(
        there[0].view(-1, 4), there[4], there[1].view(-1, 4), there[3], there[2].view(-1, 4), found.pieces * piece_units
    )
