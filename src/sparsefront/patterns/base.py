"""What every pattern provides: ordered steps that offer groups of weights, and checks of what came out."""

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from sparsefront.allocation.selection import select_in_layer
from sparsefront.errors import InvalidSetting
from sparsefront.importance.finite import refuse_non_finite
from sparsefront.patterns.groups import Groups

# Allocations that decide freely how much each layer loses. A balanced distribution leaves them nothing to decide.
FREE_ALLOCATIONS = ("per_layer", "global_threshold")
BALANCED_ALLOCATIONS = ("per_layer",)


class Step(Protocol):
    """One round of a pattern: it offers groups, an allocation picks the survivors, and they become a mask."""

    @property
    def target(self) -> float:
        """Sparsity over all prunable weights once this step is done, earlier steps included."""
        ...

    def groups(self, importance: Tensor, mask: Tensor) -> Groups:
        """The groups of one layer, from its importance [N, K] and the bool mask [N, K] that earlier steps left."""
        ...

    def expand(self, kept: Tensor, importance: Tensor, mask: Tensor) -> Tensor:
        """The layer's new mask [N, K] from `kept` (bool, shape of the scores) and what `groups` was given.

        Importance comes again because some layouts follow from it (ranks, permutations); a step holds no state.
        """
        ...


class Pattern(ABC):
    """A structure that masks obey. Subclasses are frozen dataclasses whose fields are the keys of their YAML."""

    name: ClassVar[str]
    uses_granularity: ClassVar[bool] = False

    @property
    def allocations(self) -> tuple[str, ...]:
        """Names of the allocations that this pattern can meet."""
        return FREE_ALLOCATIONS

    @property
    @abstractmethod
    def default_allocation(self) -> str:
        """The allocation that its source uses."""

    @abstractmethod
    def steps(self, sparsity: float, shape: tuple[int, int], final_sparsity: float | None = None) -> tuple[Step, ...]:
        """The rounds that lead to `sparsity`; their targets do not depend on the layer.

        Args:
            sparsity: fraction of zeros wanted now, in [0, 1).
            shape: [N, K] of the layer, which `refusal` does not refuse.
            final_sparsity: where a gradual schedule ends; None: at `sparsity`. Structure that must not change on the
                way (the window of n:m, the membership of tiles) follows from it, so that masks can nest.
        """

    @abstractmethod
    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        """Canonical kernel family of a layer and the keyword parameters of that family's `from_dense`."""

    @abstractmethod
    def granule(self, shape: tuple[int, int]) -> int:
        """By fewer than how many weights (inclusive) a layer's pruned total may miss the target."""

    def refusal(self, shape: tuple[int, int], sparsity: float) -> str | None:
        """Why a layer of this shape cannot be divided and has to stay dense; None where it can."""
        return None

    def check_sparsity(self, sparsity: float) -> None:
        """Raise InvalidSetting where no layer of any shape could express `sparsity`, naming the nearest."""

    def check(self, mask: Tensor, sparsity: float) -> None:
        """Raise ValueError naming the invariant that a mask [N, K] breaks, and the value that breaks it."""
        if mask.dtype != torch.bool or mask.dim() != 2:
            raise ValueError(f"{self.name}: a mask is bool [N, K], not {mask.dtype} {list(mask.shape)}")

    def mask(self, importance: Tensor, sparsity: float) -> Tensor:
        """The mask of one layer on its own, at exactly this layer's sparsity.

        Args:
            importance: [N, K], any float dtype, larger = more worth keeping; ties go to the lower index.
            sparsity: fraction of zeros, in [0, 1).
        Returns:
            bool [N, K] on importance's device, True = keep.
        Raises:
            InvalidSetting: a sparsity out of range, or one that the pattern's settings cannot express.
            ValueError: a shape that the pattern cannot divide, or importance that is not finite.
        """
        refuse_sparsity_out_of_range(sparsity)
        self.check_sparsity(sparsity)
        shape = tuple(importance.shape)
        refuse_indivisible(self, shape, sparsity)
        refuse_non_finite({"importance": importance})
        scores, kept = importance.float(), torch.ones_like(importance, dtype=torch.bool)
        for step in self.steps(sparsity, shape):
            survivors = select_in_layer(step.groups(scores, kept), importance.numel(), step.target)
            kept = step.expand(survivors, scores, kept)
        return kept


def refuse_indivisible(pattern: Pattern, shape: tuple[int, ...], sparsity: float) -> None:
    """Raise ValueError with the reason where a weight of this shape is no matrix or the pattern cannot divide it."""
    if len(shape) != 2:
        raise ValueError(f"{pattern.name} divides matrices [N, K], not a tensor of shape {list(shape)}")
    reason = pattern.refusal(shape, sparsity)
    if reason is not None:
        raise ValueError(f"{pattern.name} cannot divide a weight of shape {list(shape)}: {reason}")


def refuse_sparsity_out_of_range(sparsity: float) -> None:
    """Raise InvalidSetting unless 0 <= sparsity < 1."""
    if not (math.isfinite(sparsity) and 0.0 <= sparsity < 1.0):
        raise InvalidSetting("sparsity", sparsity, "a fraction of zeros, at least 0 and below 1")
