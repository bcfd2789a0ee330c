"""Patterns on a fixed grid of blocks, and what the patterns with 2:4 inside blocks or tiles share."""

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from sparsefront.errors import InvalidSetting
from sparsefront.masks.groups import Boundaries, Groups, grid_boundaries, group_score, keep_best_of_last
from sparsefront.patterns.base import (
    TOLERANCE,
    Pattern,
    Window,
    WindowSize,
    check_window_sparsity,
    find_window,
    require_divisible,
    window_unsupported_reason,
)

# Patterns on a fixed grid of blocks: a weight is a 1x1 block, a vector of v outputs is vx1.
#
# They share one step: score the blocks, keep the best (free) or n of every m along K (balanced).


def in_blocks(matrix: Tensor, block: tuple[int, int]) -> Tensor:
    """View a matrix [N, K] as [N/bn, bn, K/bk, bk], without a copy; dims 1 and 3 run inside a block."""
    (outputs, inputs), (n, k) = block, matrix.shape
    return matrix.reshape(n // outputs, outputs, k // inputs, inputs)


@dataclass(frozen=True)
class BlockStep:
    """Keep or prune whole blocks.

    Args:
        target: see `Step`; if windows are not `between`, they imply it.
        block: (outputs, inputs) of a block; both divide the layer.
        window: None = free, otherwise n blocks survive of every m along K.
        aggregate: score of a block, see `group_score`; single weights keep their importance.
        between: the windows with the best (n + 1)-th block keep n + 1, as many as `target` leaves; all others keep n.
    """

    target: float
    block: tuple[int, int]
    window: Window | None = None
    aggregate: str = "l2"
    between: bool = False

    def groups(self, importance: Tensor, mask: Tensor) -> Groups:
        """Scores [N/bn, K/bk], or [N/bn, K/bk/m, m] if balanced."""
        size = math.prod(self.block)
        # Do not aggregate single weights: squares and roots would lose signs and create ties.
        blocks = None if size == 1 else in_blocks(importance, self.block)
        scores = importance if blocks is None else group_score(blocks, (1, 3), size, self.aggregate)
        alive = mask if size == 1 else in_blocks(mask, self.block).any(dim=3).any(dim=1)
        if not bool(alive.all()):
            scores = scores.masked_fill(~alive, -math.inf)
        if self.window is None:
            return Groups(scores, size)
        scores = scores.unflatten(1, (-1, self.window.m))
        if not self.between:
            return Groups(scores, size, keep_of_last=self.window.n)
        fewer, more = (keep_best_of_last(scores, kept_count) for kept_count in (self.window.n, self.window.n + 1))
        return Groups(scores, size, stays=fewer, gone=~more)

    def to_mask(self, kept: Tensor, importance: Tensor, mask: Tensor) -> Tensor:
        """Expand the blocks to weights."""
        (outputs, inputs), (n, k) = self.block, mask.shape
        blocks = kept.reshape(n // outputs, 1, k // inputs, 1).expand(-1, outputs, -1, inputs)
        return blocks.reshape(n, k) & mask


class BlockPattern(Pattern):
    """Base of patterns on a fixed grid; a subclass defines its block and, if balanced, its window settings."""

    @property
    @abstractmethod
    def block(self) -> tuple[int, int]:
        """(outputs, inputs) of a group."""

    @property
    def outputs_together(self) -> int | None:
        return self.block[0]

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        sizes = {"granularity": self.block} if self.uses_granularity else {}
        m = self.window_settings["m"] if self.balanced else None
        return sizes if m is None else sizes | {"m": (self.block[0], self.block[1] * m)}

    @property
    def block_aggregate(self) -> str:
        """Score of a block, see `group_score`. All blocks of a network have the same size."""
        return "l2"

    @property
    def window_settings(self) -> dict[str, int | None]:
        """The settings {n, m} of a balanced distribution."""
        return {"n": None, "m": None}

    def window(self, shape: tuple[int, int], sparsity: float) -> Window | None:
        """The window of a layer; None if the distribution is free."""
        if not self.balanced:
            return None
        require_divisible(self, shape, sparsity)
        return find_window(shape[1] // self.block[1], sparsity, **self.window_settings)

    def check_sparsity(self, sparsity: float) -> None:
        if self.balanced:
            check_window_sparsity(sparsity, **self.window_settings)

    def unsupported_reason(self, shape: tuple[int, int], sparsity: float) -> str | None:
        for count, side, name in zip(shape, self.block, ("outputs", "inputs"), strict=True):
            if count % side:
                return f"{name} {count} are not a multiple of {self.group_text(side)}"
        if not self.balanced:
            return None
        units = shape[1] // self.block[1]
        counted = f"inputs {units}" if self.block[1] == 1 else f"{units} blocks of {self.block[1]} inputs"
        return window_unsupported_reason(units, counted, sparsity, **self.window_settings)

    def group_text(self, side: int) -> str:
        """One side of the block, for error messages."""
        return f"granularity {side}"

    def steps(
        self, sparsity: float, shape: tuple[int, int], final_sparsity: float | None = None
    ) -> tuple[BlockStep, ...]:
        if not self.balanced:
            return (BlockStep(sparsity, self.block, aggregate=self.block_aggregate),)
        final = sparsity if final_sparsity is None else final_sparsity
        window = self.window(shape, final)
        if sparsity < final:
            return (BlockStep(sparsity, self.block, window.before(sparsity), self.block_aggregate, between=True),)
        return (BlockStep(window.sparsity, self.block, window, self.block_aggregate),)

    def rounding_unit(self, shape: tuple[int, int]) -> int:
        block = math.prod(self.block)
        return block if not self.balanced else max(block, math.ceil(TOLERANCE * math.prod(shape)))

    def check_structure(self, mask: Tensor, sparsity: float) -> None:
        shape = (mask.shape[0], mask.shape[1])
        require_divisible(self, shape, sparsity)
        blocks = in_blocks(mask, self.block)
        alive = blocks.any(dim=3).any(dim=1)
        torn = alive & ~blocks.all(dim=3).all(dim=1)
        if torn.any():
            row, column = (int(i) for i in torn.nonzero()[0])
            raise ValueError(f"{self.name}: the block at row {row}, column {column} of blocks is kept only in part")
        window = self.window(shape, sparsity)
        if window is None:
            return
        keeps = alive.unflatten(1, (-1, window.m)).sum(dim=2)
        if (keeps != window.n).any():
            row, index = (int(i) for i in (keeps != window.n).nonzero()[0])
            raise ValueError(
                f"{self.name}: window {index} of row {row} keeps {int(keeps[row, index])} of {window.m}, not {window.n}"
            )

    def boundaries(self, mask: Tensor, sparsity: float) -> Boundaries:
        shape = (mask.shape[0], mask.shape[1])
        window = self.window(shape, sparsity)
        return grid_boundaries(shape, self.block, None if window is None else window.m)


Distribution = Literal["free", "balanced"]
VectorScore = Literal["l2", "l1"]


class FreeOrBalanced(BlockPattern):
    """Base of grid patterns with a `distribution`; a subclass declares these settings.

    Attributes:
        distribution: free, or balanced = n of every m blocks along K.
        m: window of the balanced distribution, in blocks; None chooses it as n_m does.
        aggregate: score of a block, l2 or l1.
    """

    distribution: Distribution
    m: WindowSize
    aggregate: VectorScore

    def __post_init__(self) -> None:
        if self.distribution == "free" and self.m is not None:
            raise InvalidSetting("m", self.m, "null with distribution=free: only a balanced distribution has windows")

    @property
    def balanced(self) -> bool:
        return self.distribution == "balanced"

    @property
    def block_aggregate(self) -> str:
        return self.aggregate

    @property
    def window_settings(self) -> dict[str, int | None]:
        return {"n": None, "m": self.m}


def windows_text(pattern: Pattern, layers: Mapping[str, tuple[tuple[int, ...], float]]) -> str | None:
    """Format the windows of the layers: `2:4`, or with counts if they differ, most common first: `1:4 in 20, 3:32 in 4`.

    Args:
        layers: pruned layer -> shape of its weight (2-d or 4-d) and its final sparsity.
    Returns:
        None if the pattern has no windows.
    """
    if not isinstance(pattern, BlockPattern):
        return None
    windows = Counter(
        pattern.window((shape[0], math.prod(shape[1:])), sparsity) for shape, sparsity in layers.values() if sparsity
    )
    window_counts = [(f"{window.n}:{window.m}", count) for window, count in windows.most_common() if window is not None]
    if len(window_counts) == 1:
        return window_counts[0][0]
    return ", ".join(f"{text} in {count}" for text, count in window_counts) or None


# Shared by block_2_4 and tile_2_4: prune whole groups, then 2:4 halves the rest.

WINDOW = Window(2, 4)


def outer_sparsity(sparsity: float) -> float:
    """The sparsity s1 of the groups that reaches `sparsity` with 2:4 inside: 1 - s = (1 - s1) / 2."""
    return max(0.0, 2 * sparsity - 1)


def check_halved_sparsity(pattern: str, sparsity: float) -> None:
    """Raise InvalidSetting below 0.5, the sparsity of 2:4 alone."""
    if sparsity < WINDOW.sparsity:
        raise InvalidSetting("sparsity", sparsity, f"{pattern} keeps 2 of 4 in every group: at least {WINDOW.sparsity}")


def halved_unsupported_reason(sparsity: float) -> str | None:
    """Why no layer can have this sparsity, or None; an allocation may give a layer less than the network's sparsity."""
    return None if sparsity >= WINDOW.sparsity else f"sparsity {sparsity:g} is below the {WINDOW.sparsity} of 2:4"
