"""4x4 tiles in which every row and every column keeps two weights: 2:4 for W and for its transpose."""

import functools
import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefront.masks.groups import Groups
from sparsefront.patterns.structure.blocks import in_blocks

SIDE = 4


@functools.cache
def tile_candidates(kept: int) -> Tensor:
    """Every mask of a 4x4 tile that keeps `kept` weights in each row and each column.

    Returns:
        bool [candidates, 16], a tile read row by row: 90 for 2, 24 for 3, 1 for 4. Candidates that keep earlier places come
        first: as binary numbers, first place highest, they descend. On the CPU.
    """
    rows = [row for row in itertools.product((True, False), repeat=SIDE) if sum(row) == kept]
    tiles = itertools.product(rows, repeat=SIDE)
    regular = [tile for tile in tiles if all(sum(column) == kept for column in zip(*tile, strict=True))]
    return torch.tensor(regular).flatten(1)


@dataclass(frozen=True)
class TransposableStep:
    """Let every 4x4 tile choose one of the candidates that lie within what is left of it.

    Masks on the way to a schedule's end keep 4, 3, then 2 of each row and column, and they nest: where one weight per row
    and column is pruned, what is left is a regular bipartite graph, which always holds another such set (a perfect
    matching), so there is a candidate within every earlier mask.

    Args:
        target: see `Step`: what `kept` implies.
        kept: weights kept per row and column of a tile: 2, 3 or 4.
    Source: Hubara et al., "Accelerated Sparse Neural Training: A Provable and Efficient Method to Find N:M Transposable
        Masks", NeurIPS 2021, who find a tile's best mask as a minimum-cost flow; a tile of 4x4 has few enough candidates to
        score them all, which is exact too.
    """

    target: float
    kept: int

    def groups(self, importance: Tensor, mask: Tensor) -> Groups:
        """Scores [tiles, candidates], the importance that each keeps; one per tile survives, ties to the lower index."""
        candidates = tile_candidates(self.kept).to(importance.device)
        # float64 holds sums of so few float32 exactly: no device, and no order of summation, breaks a tie another way
        scores = (_tiles(importance).double() @ candidates.double().t()).to(importance.dtype)
        if not bool(mask.all()):
            outside = _tiles(~mask).to(importance.dtype) @ candidates.to(importance.dtype).t()
            scores = scores.masked_fill_(outside > 0, -math.inf)
        return Groups(scores, self.kept * SIDE, keep_of_last=1)

    def to_mask(self, kept: Tensor, importance: Tensor, mask: Tensor) -> Tensor:
        """Every tile as the candidate that it chose."""
        n, k = mask.shape
        chosen = tile_candidates(self.kept).to(mask.device)[kept.byte().argmax(dim=1)]
        tiles = chosen.view(n // SIDE, k // SIDE, SIDE, SIDE).transpose(1, 2)
        return tiles.reshape(n, k) & mask


def _tiles(matrix: Tensor) -> Tensor:
    """[N, K] as [tiles, 16], tiles and their places row by row."""
    return in_blocks(matrix, (SIDE, SIDE)).transpose(1, 2).reshape(-1, SIDE * SIDE)
