"""Tile-wise pruning: whole outputs first, then whole inputs of every tile of surviving outputs."""

import math
from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt
from torch import Tensor

from sparsefront.errors import InvalidSetting
from sparsefront.masks.groups import Boundaries
from sparsefront.patterns.base import Pattern, Step
from sparsefront.patterns.tile_steps import (
    Aggregate,
    OutputStep,
    OverlayStep,
    TileInputStep,
    guide,
    surviving_outputs,
)
from sparsefront.settings_class import Fraction, Share, settings_class

# The settings of the authors' public code: TileWise(g, **SOURCES).
SOURCES = {"whole_tiles": False, "input_multiple": 1, "aggregate": "l2_over_length"}


@settings_class()
class TileWise(Pattern):
    """Keep the same inputs for all g surviving outputs of a tile.

    Step 1 prunes outputs until 1 - sqrt(1 - s) of the weights are gone, step 2 prunes inputs per tile until s are. Both
    count weights, not groups, and never exceed their target, so the total is s within one group.

    With an overlay (TEW), the tiles are pruned to s + delta, then the best delta of all pruned weights are restored: single
    weights anywhere, also in pruned outputs. A schedule applies plain tiles until its last mask, which adds the overlay but
    restores nothing that an earlier mask pruned.

    With apriori tuning, the element-wise mask at s guides both steps. Of the weights that a step prunes, the share a comes
    from the outputs (step 2: tile inputs) where element-wise pruning keeps the smallest fraction; of those that it keeps,
    the share a comes from where it keeps the largest; scores decide the rest. a = 0 is plain tile-wise pruning, a = 1
    follows the element-wise mask alone.

    `whole_tiles` and `input_multiple` are for the hardware: a layer keeps a multiple of g outputs (at least one tile of its
    best) or all, and a tile keeps a multiple of `input_multiple` inputs or all. A layer of at most g outputs thus loses none
    in step 1. Step 2 makes up for the rounding of step 1, so the total is s within `input_multiple` inputs of a tile.

    The sources use neither, and score by l2_over_length: see `SOURCES`.

    Args:
        granularity: g, the width of a tile in surviving outputs; the last tile may be narrower, so every layer fits.
            A run is rejected if no layer has g outputs.
        element_overlay: delta, a fraction of all prunable weights, at least 0; s + delta stays below 1.
        apriori_tuning: a, from 0 to 1.
        whole_tiles: only a layer that keeps all of its outputs may have a narrower last tile.
        input_multiple: 1, or the K of a tensor core instruction: 16.
        aggregate: score of an output or tile input: rms, mean or l2_over_length (see `group_score`). rms and l2_over_length
            rank differently only for a narrower last tile and across layers whose outputs differ in length.
    Source: Guo et al., "Accelerating Sparse DNN Models without Hardware-Support via Tile-Wise Sparsity", 2020. The
        square-root split, the l2/length scores, the global threshold of each step and the overlay are from the authors'
        public code (TileSparsity, `tiled_wise_2d` and `tiled_wise_2d_mix`). Departures: their threshold counts groups and
        so misses s, and their tile length includes the pruned outputs between its surviving ones. Whole tiles, input
        multiples, rms and mean are ours, because uneven tiles are slow on a GPU. The talk mentions apriori tuning next to a
        picture of uneven element-wise sparsity. The public code contains only its result for BERT on two tasks: hard-coded
        lists of blocks of 8 to 64 outputs whose scores are set to 0 or infinity before the threshold, without saying how
        they were made. Here the lists are computed for any network: groups that element-wise pruning empties most are
        pruned, those that it empties least are kept; how many of each is our setting.
    """

    granularity: PositiveInt = 128
    element_overlay: Annotated[Fraction, Field(description="of all weights")] = 0.0
    apriori_tuning: Share = 0.0
    whole_tiles: bool = False
    input_multiple: PositiveInt = 16
    aggregate: Aggregate = "rms"
    name: ClassVar[str] = "tile_wise"
    uses_granularity: ClassVar[bool] = True
    trains_sparse: ClassVar[bool] = True

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        return {"granularity": (self.granularity, 1)}

    def check_sparsity(self, sparsity: float) -> None:
        if sparsity + self.element_overlay >= 1.0:
            allowed = f"below {1 - sparsity:.4g}: tiles are pruned to sparsity + element_overlay, which must be below 1"
            raise InvalidSetting("element_overlay", self.element_overlay, allowed)

    def steps(self, sparsity: float, shape: tuple[int, int], final_sparsity: float | None = None) -> tuple[Step, ...]:
        """During a schedule the outputs are pruned first: once they are fixed, tiles keep their members."""
        final = sparsity if final_sparsity is None else final_sparsity
        tiles_final = min(1.0, final + self.element_overlay)  # an allocation may ask a layer for more than it has
        overlay = (OverlayStep(final),) if self.element_overlay > 0 and sparsity == final else ()
        steps = self._tile_steps(tiles_final if overlay else sparsity, tiles_final, shape[0])
        if self.apriori_tuning > 0:
            steps = guide(steps, self.apriori_tuning, final)
        return *steps, *overlay

    def _tile_steps(self, sparsity: float, final: float, outputs: int) -> tuple[OutputStep | TileInputStep, ...]:
        """The steps without the overlay: outputs, then inputs per tile."""
        split = 1 - math.sqrt(1 - final)
        multiple = self.granularity if self.whole_tiles else 1
        inputs = TileInputStep(sparsity, self.granularity, self.input_multiple, self.aggregate)
        if sparsity <= split < final:  # the inputs of a single whole tile, which loses no outputs
            return (OutputStep(sparsity, multiple, self.aggregate) if outputs > multiple else inputs,)
        return OutputStep(split, multiple, self.aggregate), inputs

    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        if self.element_overlay > 0:
            return "gathered_overlay", {"tile": self.granularity}
        return "gathered", {"tile": self.granularity, "drop_empty_outputs": True}

    def rounding_unit(self, shape: tuple[int, int]) -> int:
        """One group of the last step: `input_multiple` inputs of a tile."""
        return min(self.granularity, shape[0]) * min(self.input_multiple, shape[1])

    def check_structure(self, mask: Tensor, sparsity: float) -> None:
        """Check that all outputs of a tile keep the same inputs, and that `whole_tiles` and `input_multiple` hold.

        With an overlay any mask of a single layer is valid: weights are ranked over the network, so one layer may hold many
        times delta of its own weights outside its tiles. The storage format shows how a mask splits.
        """
        if self.element_overlay > 0:
            return
        rows = surviving_outputs(mask)
        # Step 2 may empty a tile, so only the width of the last tile shows that step 1 left the layer whole.
        if self.whole_tiles and len(rows) % self.granularity not in (0, len(mask) % self.granularity):
            raise ValueError(
                f"tile_wise: {len(rows)} outputs survive: a part of a tile of granularity {self.granularity} is gone"
            )
        for index, tile in enumerate(mask[rows].split(self.granularity)):
            uneven = tile.any(dim=0) & ~tile.all(dim=0)
            if uneven.any():
                column = int(uneven.nonzero()[0])
                raise ValueError(
                    f"tile_wise: input {column} of tile {index} is kept by {int(tile[:, column].sum())} of its "
                    f"{len(tile)} outputs"
                )
            inputs = int(tile.any(dim=0).sum())
            if inputs % self.input_multiple and inputs < mask.shape[1]:
                raise ValueError(
                    f"tile_wise: tile {index} keeps {inputs} inputs, neither a multiple of {self.input_multiple} nor all"
                )

    def boundaries(self, mask: Tensor, sparsity: float) -> Boundaries:
        if self.element_overlay > 0:
            return Boundaries()  # pruned outputs have overlay weights too, so the mask does not show the tiles
        return Boundaries(rows=surviving_outputs(mask)[self.granularity :: self.granularity].tolist())
