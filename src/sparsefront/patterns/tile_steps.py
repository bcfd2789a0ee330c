"""The steps of tile-wise pruning: whole outputs, then whole inputs of every tile of surviving outputs; apriori tuning."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sparsefront.masks.groups import Groups, Guide, group_score
from sparsefront.patterns.base import Step
from sparsefront.patterns.blocks import BlockStep

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


# Apriori tuning: what element-wise pruning would keep guides which outputs and tile inputs go.
#
# Element-wise sparsity is uneven: some outputs and some inputs of a tile hold hardly a weight that it would keep,
# others hold many. The first step makes the element-wise mask and hands it on in the place of a mask; the guided
# steps read densities from it and bring back all that belongs to the outputs and inputs that stay, hence `regrows`.
#
# Shapes: N outputs, K inputs, tiles of g surviving outputs.


def tuned(steps: tuple[OutputStep | TileInputStep, ...], share: float, element_sparsity: float) -> tuple[Step, ...]:
    """The steps of tile_wise, guided.

    Args:
        steps: outputs, or outputs and then tile inputs.
        share: of what a step takes, and of what it leaves, that the element-wise mask decides.
        element_sparsity: of that mask.
    """
    outputs, *inputs = steps
    guided = [GuidedOutputStep(**vars(outputs), share=share, hands_on=bool(inputs))]
    guided += [GuidedTileInputStep(**vars(step), share=share, start=outputs.target) for step in inputs]
    return BlockStep(element_sparsity, (1, 1)), *guided


@dataclass(frozen=True)
class GuidedOutputStep(OutputStep):
    """Keep or prune whole outputs, those first that element-wise pruning empties most.

    Args:
        share: see `tuned`.
        hands_on: another guided step follows and needs the element-wise mask of the outputs that stay.
    """

    share: float
    hands_on: bool
    regrows: ClassVar[bool] = True

    def groups(self, importance: Tensor, mask: Tensor, *, allowed: Tensor) -> Groups:
        """Scores [N]; `mask` is the element-wise one."""
        groups = super().groups(importance, allowed)
        return _guided(groups, mask.sum(dim=1, dtype=torch.int32), self.share, start=0.0)

    def to_mask(self, kept: Tensor, importance: Tensor, mask: Tensor, *, allowed: Tensor) -> Tensor:
        left = super().to_mask(kept, importance, allowed)
        if not self.hands_on:
            return left
        # An output that stays although element-wise pruning empties it would not be seen among the survivors: it counts
        # as one that element-wise pruning leaves alone.
        return left & (mask | ~mask.any(dim=1, keepdim=True))


@dataclass(frozen=True)
class GuidedTileInputStep(TileInputStep):
    """Keep or prune whole inputs of a tile, those first that element-wise pruning empties most.

    Args:
        share: see `tuned`.
        start: the target of the step before.
    """

    share: float
    start: float
    regrows: ClassVar[bool] = True

    def groups(self, importance: Tensor, mask: Tensor, *, allowed: Tensor) -> Groups:
        """Scores [tiles, K]; `mask` is the element-wise one of the outputs that stay."""
        left = allowed & mask.any(dim=1, keepdim=True)
        groups = super().groups(importance, left)
        counts = self._tiles(mask, surviving_outputs(left)).sum(dim=1, dtype=torch.int32)
        return _guided(groups, counts, self.share, start=self.start)

    def to_mask(self, kept: Tensor, importance: Tensor, mask: Tensor, *, allowed: Tensor) -> Tensor:
        return super().to_mask(kept, importance, allowed & mask.any(dim=1, keepdim=True))


def _guided(groups: Groups, counts: Tensor, share: float, *, start: float) -> Groups:
    """The groups with the density of the element-wise mask as their guide; what is gone or must stay remains so."""
    density = counts / groups.sizes.clamp(min=1)
    density = density.where(groups.scores.abs() < math.inf, groups.scores)
    return replace(groups, guide=Guide(density, share, start))
