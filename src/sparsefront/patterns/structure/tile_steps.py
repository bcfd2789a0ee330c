"""The steps of tile-wise pruning: whole outputs go, then, in every tile of surviving outputs, whole inputs; the overlay."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sparsefront.masks.groups import Groups, group_score

Aggregate = Literal["rms", "mean", "l2_over_length"]


@dataclass(frozen=True)
class OutputStep:
    """Keep or prune whole outputs (rows of W).

    Args:
        target: sparsity when the step is done.
        multiple: a layer keeps a multiple of this many outputs, or all of them. Above 1 its best ones stay in any case,
            one multiple or all: what single outputs would leave of a layer must not be rounded to nothing.
        aggregate: score of a group, see `group_score`.
    """

    target: float
    multiple: int
    aggregate: Aggregate

    def groups(self, importance: Tensor, mask: Tensor) -> Groups:
        """Scores [N]."""
        alive = mask.sum(dim=1)
        scores = group_score(importance, (1,), importance.shape[1], self.aggregate)
        if ((alive > 0) & (alive < mask.shape[1])).any():
            # Tiles have lost inputs already. Without one of its outputs a tile would take in the next tile's first,
            # which keeps other inputs.
            scores = torch.full_like(scores, math.inf)
        elif self.multiple > 1:
            best = scores.masked_fill(alive == 0, -math.inf).sort(descending=True, stable=True).indices
            scores[best[: self.multiple]] = math.inf
        return Groups(scores.masked_fill(alive == 0, -math.inf), alive, multiple=self.multiple)

    def to_mask(self, kept: Tensor, importance: Tensor, mask: Tensor) -> Tensor:
        """An output keeps all the inputs it had, or none."""
        return mask & kept[:, None]


@dataclass(frozen=True)
class TileInputStep:
    """Keep or prune whole inputs of a tile; tiles are formed again from `width` surviving outputs each.

    The last tile may be narrower. Scores and sizes are [tiles, K].

    Args:
        target: sparsity when the step is done.
        width: of a tile, in surviving outputs.
        multiple: a tile keeps a multiple of this many inputs, or all of them.
        aggregate: score of a group, see `group_score`.
    """

    target: float
    width: int
    multiple: int
    aggregate: Aggregate

    def groups(self, importance: Tensor, mask: Tensor) -> Groups:
        rows = surviving_outputs(mask)
        # A group's length is its tile's width, also where an earlier, looser mask has already taken it out.
        starts = torch.arange(0, len(rows), self.width, device=mask.device)
        length = (len(rows) - starts).clamp(max=self.width)[:, None]
        scores = group_score(self._tiles(importance, rows), (1,), length, self.aggregate)
        alive = self._tiles(mask, rows).sum(dim=1, dtype=torch.int32)
        return Groups(scores.masked_fill(alive == 0, -math.inf), alive, multiple=self.multiple)

    def to_mask(self, kept: Tensor, importance: Tensor, mask: Tensor) -> Tensor:
        """All outputs of a tile keep the tile's inputs."""
        rows = surviving_outputs(mask)
        result = torch.zeros_like(mask)
        result[rows] = kept.repeat_interleave(min(self.width, max(1, len(rows))), dim=0)[: len(rows)] & mask[rows]
        return result

    def _tiles(self, matrix: Tensor, rows: Tensor) -> Tensor:
        """The given rows of [N, K] as [tiles, width, K]; what the last tile lacks is zero."""
        width = min(self.width, max(1, len(rows)))  # a wider tile holds no more outputs, and no zeros are made for it
        tiles = math.ceil(len(rows) / width)
        padded = matrix.new_zeros(tiles * width, matrix.shape[1])
        padded[: len(rows)] = matrix[rows]
        return padded.view(tiles, width, matrix.shape[1])


def surviving_outputs(mask: Tensor) -> Tensor:
    """Indices of the rows of a bool mask [N, K] that keep any input, ascending; int64."""
    return mask.any(dim=1).nonzero().flatten()


@dataclass(frozen=True)
class OverlayStep:
    """Element-wise overlay: out of all that the tiles took, bring single weights back until `target` is reached.

    Those with the highest importance come back. What an earlier mask of the schedule pruned stays pruned, so that masks nest.
    """

    target: float
    regrows: ClassVar[bool] = True

    def groups(self, importance: Tensor, mask: Tensor, *, allowed: Tensor) -> Groups:
        """Scores [N, K], one per weight: what the tiles hold stays, the rest of what is allowed is ranked."""
        return Groups(importance, 1, stays=mask, gone=~allowed)

    def to_mask(self, kept: Tensor, importance: Tensor, mask: Tensor, *, allowed: Tensor) -> Tensor:
        return kept
