"""The steps of tile-wise pruning: whole outputs, then whole inputs of each tile; overlay and apriori tuning."""

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
        multiple: a layer keeps a multiple of this many outputs, or all of them. If above 1, at least one multiple of its
            best outputs stays, so that rounding never empties a layer.
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
            # Tiles have lost inputs already. If one of their outputs went too, a tile would take over the next tile's first
            # output, which keeps other inputs.
            scores = torch.full_like(scores, math.inf)
        elif self.multiple > 1:
            best = scores.masked_fill(alive == 0, -math.inf).sort(descending=True, stable=True).indices
            scores[best[: self.multiple]] = math.inf
        return Groups(scores.masked_fill(alive == 0, -math.inf), alive, multiple=self.multiple)

    def to_mask(self, kept: Tensor, importance: Tensor, mask: Tensor) -> Tensor:
        """Prune whole rows of the mask."""
        return mask & kept[:, None]


@dataclass(frozen=True)
class TileInputStep:
    """Keep or prune whole inputs of a tile; tiles are re-formed from `width` surviving outputs each.

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
        # The length of a group is the width of its tile, also for groups that an earlier mask already pruned.
        starts = torch.arange(0, len(rows), self.width, device=mask.device)
        length = (len(rows) - starts).clamp(max=self.width)[:, None]
        scores = group_score(self._tiles(importance, rows), (1,), length, self.aggregate)
        alive = self._tiles(mask, rows).sum(dim=1, dtype=torch.int32)
        return Groups(scores.masked_fill(alive == 0, -math.inf), alive, multiple=self.multiple)

    def to_mask(self, kept: Tensor, importance: Tensor, mask: Tensor) -> Tensor:
        """All outputs of a tile keep the same inputs."""
        rows = surviving_outputs(mask)
        result = torch.zeros_like(mask)
        result[rows] = kept.repeat_interleave(min(self.width, max(1, len(rows))), dim=0)[: len(rows)] & mask[rows]
        return result

    def _tiles(self, matrix: Tensor, rows: Tensor) -> Tensor:
        """Gather these rows of [N, K] into [tiles, width, K], zero-padding the last tile."""
        width = min(self.width, max(1, len(rows)))  # no padding beyond the rows there are
        tiles = math.ceil(len(rows) / width)
        padded = matrix.new_zeros(tiles * width, matrix.shape[1])
        padded[: len(rows)] = matrix[rows]
        return padded.view(tiles, width, matrix.shape[1])


def surviving_outputs(mask: Tensor) -> Tensor:
    """Indices of the rows of a bool mask [N, K] that keep any input, int64, ascending."""
    return mask.any(dim=1).nonzero().flatten()


@dataclass(frozen=True)
class OverlayStep:
    """Element-wise overlay: restore the most important single weights that the tiles pruned until `target` is reached.

    What an earlier mask of the schedule pruned stays pruned, so that masks are nested.
    """

    target: float
    regrows: ClassVar[bool] = True

    def groups(self, importance: Tensor, mask: Tensor, *, allowed: Tensor) -> Groups:
        """Scores [N, K], one per weight: weights in tiles stay, the other allowed ones are ranked."""
        return Groups(importance, 1, stays=mask, gone=~allowed)

    def to_mask(self, kept: Tensor, importance: Tensor, mask: Tensor, *, allowed: Tensor) -> Tensor:
        return kept


# Apriori tuning: an element-wise mask guides which outputs and tile inputs are pruned.
#
# Element-wise sparsity is uneven: some outputs and tile inputs lose almost all weights, others few. The first step
# returns the element-wise mask instead of the pattern's mask; the guided steps read densities from it and restore all
# weights of the outputs and inputs that stay, hence `regrows`.
#
# Shapes: N outputs, K inputs, tiles of g surviving outputs.


def guide(steps: tuple[OutputStep | TileInputStep, ...], share: float, element_sparsity: float) -> tuple[Step, ...]:
    """Wrap the steps of tile_wise with the guidance of an element-wise mask.

    Args:
        steps: outputs, tile inputs, or both.
        share: fraction of what a step prunes, and of what it keeps, that the element-wise mask decides.
        element_sparsity: sparsity of that mask.
    """
    elements, first, *inputs = BlockStep(element_sparsity, (1, 1)), *steps
    if isinstance(first, TileInputStep):
        return elements, GuidedTileInputStep(**vars(first), share=share, start=0.0)
    guided = [GuidedTileInputStep(**vars(step), share=share, start=first.target) for step in inputs]
    return elements, GuidedOutputStep(**vars(first), share=share, hands_on=bool(inputs)), *guided


@dataclass(frozen=True)
class GuidedOutputStep(OutputStep):
    """Keep or prune whole outputs, starting with those that element-wise pruning empties most.

    Args:
        share: see `guide`.
        hands_on: another guided step follows and needs the element-wise mask of the remaining outputs.
    """

    share: float
    hands_on: bool
    regrows: ClassVar[bool] = True

    def groups(self, importance: Tensor, mask: Tensor, *, allowed: Tensor) -> Groups:
        """Scores [N]; `mask` is element-wise."""
        groups = super().groups(importance, allowed)
        return _attach_guide(groups, mask.sum(dim=1, dtype=torch.int32), self.share, start=0.0)

    def to_mask(self, kept: Tensor, importance: Tensor, mask: Tensor, *, allowed: Tensor) -> Tensor:
        left = super().to_mask(kept, importance, allowed)
        if not self.hands_on:
            return left
        # An output that stays although its element-wise mask is empty would look pruned to the next step: treat it as
        # untouched by element-wise pruning.
        return left & (mask | ~mask.any(dim=1, keepdim=True))


@dataclass(frozen=True)
class GuidedTileInputStep(TileInputStep):
    """Keep or prune whole inputs of a tile, starting with those that element-wise pruning empties most.

    Args:
        share: see `guide`.
        start: target of the step before; 0: there was none, so that no output is pruned.
    """

    share: float
    start: float
    regrows: ClassVar[bool] = True

    def groups(self, importance: Tensor, mask: Tensor, *, allowed: Tensor) -> Groups:
        """Scores [tiles, K]; `mask` is the element-wise mask of the remaining outputs."""
        left = self._restrict(mask, allowed)
        groups = super().groups(importance, left)
        counts = self._tiles(mask, surviving_outputs(left)).sum(dim=1, dtype=torch.int32)
        return _attach_guide(groups, counts, self.share, start=self.start)

    def to_mask(self, kept: Tensor, importance: Tensor, mask: Tensor, *, allowed: Tensor) -> Tensor:
        return super().to_mask(kept, importance, self._restrict(mask, allowed))

    def _restrict(self, mask: Tensor, allowed: Tensor) -> Tensor:
        return allowed & mask.any(dim=1, keepdim=True) if self.start > 0 else allowed


def _attach_guide(groups: Groups, counts: Tensor, share: float, *, start: float) -> Groups:
    """Attach the density of the element-wise mask as the guide; groups that are pruned or must stay remain so."""
    density = counts / groups.sizes.clamp(min=1)
    density = density.where(groups.scores.abs() < math.inf, groups.scores)
    return replace(groups, guide=Guide(density, share, start))
