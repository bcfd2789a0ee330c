"""Apriori tuning: what element-wise pruning would keep guides which outputs and tile inputs go.

Element-wise sparsity is uneven: some outputs and some inputs of a tile hold hardly a weight that it would keep, others hold
many. The first step makes the element-wise mask and hands it on in the place of a mask; the guided steps read densities
from it and bring back all that belongs to the outputs and inputs that stay, hence `regrows`.

Shapes: N outputs, K inputs, tiles of g surviving outputs.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from sparsefront.masks.groups import Groups, Guide
from sparsefront.patterns.base import Step
from sparsefront.patterns.structure.blocks import BlockStep
from sparsefront.patterns.structure.tile_steps import OutputStep, TileInputStep, surviving_outputs


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
