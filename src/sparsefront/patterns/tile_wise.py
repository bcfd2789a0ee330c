"""Tile-wise: first whole outputs go, then, in every tile of surviving outputs, whole inputs."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sparsefront.errors import InvalidSetting
from sparsefront.patterns.apriori import tuned
from sparsefront.patterns.base import Pattern, Step
from sparsefront.patterns.boundaries import Boundaries
from sparsefront.patterns.granularity import unit_length
from sparsefront.patterns.overlay import OverlayStep
from sparsefront.patterns.tile_steps import OutputStep, TileInputStep, surviving_outputs


@dataclass(frozen=True)
class TileWise(Pattern):
    """Keep, in every tile of g surviving outputs, the same inputs for all of them.

    Step 1 takes outputs until 1 - sqrt(1 - s) of the weights are gone, step 2 takes inputs per tile until s are. Both
    count weights, not groups, so the total is s within one group. No step exceeds its target, so that an output is
    never taken where s leaves it a share.

    With an overlay (TEW) the tiles are pruned to s + delta, then the best delta of all pruned weights come back: single
    weights anywhere, also in outputs that no tile holds. On the way of a schedule masks are plain tiles; the overlay comes
    with the last one and brings back nothing that an earlier one had pruned.

    With apriori tuning the mask of element-wise pruning to s guides both steps. Of the weights that a step takes, the share
    a comes from the outputs (step 2: tile inputs) in which element-wise pruning keeps the smallest fraction; of those that
    it leaves, the share a belongs to those in which it keeps the largest; scores decide between the rest. a = 0 is
    tile-wise pruning alone, a = 1 leaves everything to the element-wise mask.

    Args:
        granularity: g, the width of a tile in surviving outputs; the last tile may be narrower, so every layer fits.
        element_overlay: delta, a fraction of all prunable weights, at least 0; s + delta stays below 1.
        apriori_tuning: a, from 0 to 1.
    Source: Guo et al., "Accelerating Sparse DNN Models without Hardware-Support via Tile-Wise Sparsity", 2020. The
        square-root split, the l2/length scores, the global threshold of each step and the overlay are from the authors'
        public code (TileSparsity, `tiled_wise_2d` and `tiled_wise_2d_mix`). Departures: a threshold there counts groups
        and so misses s; a tile's length there includes the pruned outputs that lie between its surviving ones. Apriori
        tuning is named in the talk, beside a picture of how uneven element-wise sparsity is; neither the talk nor the
        public code spells it out. Here the groups that element-wise pruning empties most count as worthless and those that
        it empties least as indispensable; how many of either is our setting.
    """

    granularity: int
    element_overlay: float = 0.0
    apriori_tuning: float = 0.0
    name: ClassVar[str] = "tile_wise"
    uses_granularity: ClassVar[bool] = True

    def __post_init__(self) -> None:
        unit_length(self.granularity)
        if not 0.0 <= self.element_overlay < 1.0:
            raise InvalidSetting(
                "element_overlay", self.element_overlay, "a fraction of all weights, at least 0 and below 1"
            )
        if not 0.0 <= self.apriori_tuning <= 1.0:
            raise InvalidSetting("apriori_tuning", self.apriori_tuning, "a share from 0 to 1")

    @property
    def default_allocation(self) -> str:
        return "global_threshold"

    def check_sparsity(self, sparsity: float) -> None:
        if sparsity + self.element_overlay >= 1.0:
            allowed = f"below {1 - sparsity:.4g}: tiles are pruned to sparsity + element_overlay, which must be below 1"
            raise InvalidSetting("element_overlay", self.element_overlay, allowed)

    def steps(self, sparsity: float, shape: tuple[int, int], final_sparsity: float | None = None) -> tuple[Step, ...]:
        """On the way to a final sparsity the outputs go first: once they are settled, tiles keep their members."""
        final = sparsity if final_sparsity is None else final_sparsity
        tiles_final = min(1.0, final + self.element_overlay)  # an allocation may ask a layer for more than there is
        overlay = (OverlayStep(final),) if self.element_overlay > 0 and sparsity == final else ()
        steps = self._tile_steps(tiles_final if overlay else sparsity, tiles_final)
        if self.apriori_tuning > 0:
            steps = tuned(steps, self.apriori_tuning, final)
        return *steps, *overlay

    def _tile_steps(self, sparsity: float, final: float) -> tuple[OutputStep | TileInputStep, ...]:
        """Outputs, then inputs per tile, of the tiles alone."""
        split = 1 - math.sqrt(1 - final)
        if sparsity <= split < final:
            return (OutputStep(sparsity),)
        return OutputStep(split), TileInputStep(sparsity, self.granularity)

    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        if self.element_overlay > 0:
            return "gathered_overlay", {"tile": self.granularity}
        return "gathered", {"tile": self.granularity, "drop_empty_outputs": True}

    def granule(self, shape: tuple[int, int]) -> int:
        return min(self.granularity, shape[0])

    def check_structure(self, mask: Tensor, sparsity: float) -> None:
        """Every tile of surviving outputs keeps the same inputs.

        With an overlay any mask of one layer is allowed: ranked over the network, a layer may hold many times delta of its
        own weights beside its tiles, up to all that it keeps. What one layer can show is how its storage splits it.
        """
        if self.element_overlay > 0:
            return
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
        if self.element_overlay > 0:
            return Boundaries()  # outputs that no tile holds have weights too, so the mask does not tell tiles apart
        return Boundaries(rows=surviving_outputs(mask)[self.granularity :: self.granularity].tolist())
