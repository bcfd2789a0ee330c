"""Tile-wise: first whole outputs go, then, in every tile of surviving outputs, whole inputs."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sparsefront.patterns.base import Pattern, Step
from sparsefront.patterns.boundaries import Boundaries
from sparsefront.patterns.granularity import unit_length
from sparsefront.patterns.groups import Groups, group_score


@dataclass(frozen=True)
class OutputStep:
    """Let whole outputs (rows of W) live or die."""

    target: float

    def groups(self, importance: Tensor, mask: Tensor) -> Groups:
        """Scores [N]."""
        alive = mask.sum(dim=1)
        scores = group_score(importance, (1,), importance.shape[1])
        if ((alive > 0) & (alive < mask.shape[1])).any():
            # Tiles have lost inputs already. Without one of its outputs a tile would take in the next tile's first,
            # which keeps other inputs.
            scores = torch.full_like(scores, math.inf)
        return Groups(scores.masked_fill(alive == 0, -math.inf), alive)

    def expand(self, kept: Tensor, importance: Tensor, mask: Tensor) -> Tensor:
        """An output keeps all the inputs it had, or none."""
        return mask & kept[:, None]


@dataclass(frozen=True)
class TileInputStep:
    """Let whole inputs of a tile live or die; tiles are formed anew from `width` surviving outputs each.

    The last tile may be narrower. Scores and sizes are [tiles, K].
    """

    target: float
    width: int

    def groups(self, importance: Tensor, mask: Tensor) -> Groups:
        rows = surviving_outputs(mask)
        # A group's length is its tile's width, also where an earlier, looser mask has already taken it out.
        starts = torch.arange(0, len(rows), self.width, device=mask.device)
        length = (len(rows) - starts).clamp(max=self.width)[:, None]
        scores = group_score(self._tiles(importance, rows), (1,), length)
        alive = self._tiles(mask, rows).sum(dim=1, dtype=torch.int32)
        return Groups(scores.masked_fill(alive == 0, -math.inf), alive)

    def expand(self, kept: Tensor, importance: Tensor, mask: Tensor) -> Tensor:
        """All outputs of a tile keep the tile's inputs."""
        rows = surviving_outputs(mask)
        result = torch.zeros_like(mask)
        result[rows] = kept.repeat_interleave(self.width, dim=0)[: len(rows)] & mask[rows]
        return result

    def _tiles(self, matrix: Tensor, rows: Tensor) -> Tensor:
        """The given rows of [N, K] as [tiles, width, K]; what the last tile lacks is zero."""
        tiles = math.ceil(len(rows) / self.width)
        padded = matrix.new_zeros(tiles * self.width, matrix.shape[1])
        padded[: len(rows)] = matrix[rows]
        return padded.view(tiles, self.width, matrix.shape[1])


def surviving_outputs(mask: Tensor) -> Tensor:
    """Indices of the rows of a bool mask [N, K] that keep any input, ascending; int64."""
    return mask.any(dim=1).nonzero().flatten()


@dataclass(frozen=True)
class TileWise(Pattern):
    """Keep, in every tile of g surviving outputs, the same inputs for all of them.

    Step 1 takes outputs until 1 - sqrt(1 - s) of the weights are gone, step 2 takes inputs per tile until s are. Both
    count weights, not groups, so the total is s within one group. No step exceeds its target, so that an output is
    never taken where s leaves it a share.

    Args:
        granularity: g, the width of a tile in surviving outputs; the last tile may be narrower, so every layer fits.
    Source: Guo et al., "Accelerating Sparse DNN Models without Hardware-Support via Tile-Wise Sparsity", 2020. The
        square-root split, the l2/length scores and the global threshold of each step are from the authors' public code.
        Departures: a threshold there counts groups and so misses s, and a tile's length there includes the pruned
        outputs that lie between its surviving ones.
    """

    granularity: int
    name: ClassVar[str] = "tile_wise"
    uses_granularity: ClassVar[bool] = True

    def __post_init__(self) -> None:
        unit_length(self.granularity)

    @property
    def default_allocation(self) -> str:
        return "global_threshold"

    def steps(self, sparsity: float, shape: tuple[int, int], final_sparsity: float | None = None) -> tuple[Step, ...]:
        """On the way to a final sparsity the outputs go first: once they are settled, tiles keep their members."""
        final = sparsity if final_sparsity is None else final_sparsity
        split = 1 - math.sqrt(1 - final)
        if sparsity <= split < final:
            return (OutputStep(sparsity),)
        return OutputStep(split), TileInputStep(sparsity, self.granularity)

    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        return "gathered", {"tile": self.granularity, "drop_empty_outputs": True}

    def granule(self, shape: tuple[int, int]) -> int:
        return min(self.granularity, shape[0])

    def check_structure(self, mask: Tensor, sparsity: float) -> None:
        rows = surviving_outputs(mask)
        for index, tile in enumerate(mask[rows].split(self.granularity)):
            uneven = tile.any(dim=0) & ~tile.all(dim=0)
            if uneven.any():
                column = int(uneven.nonzero()[0])
                raise ValueError(
                    f"tile_wise: input {column} of tile {index} is kept by {int(tile[:, column].sum())} of its "
                    f"{len(tile)} outputs"
                )

    def boundaries(self, mask: Tensor, sparsity: float) -> Boundaries:
        return Boundaries(rows=surviving_outputs(mask)[self.granularity :: self.granularity].tolist())
