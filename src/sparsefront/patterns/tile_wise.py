"""Tile-wise: first whole outputs go, then, in every tile of surviving outputs, whole inputs."""

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
    surviving_outputs,
    tuned,
)
from sparsefront.settings_class import Fraction, Share, settings_class

# The settings of the authors' public code: TileWise(g, **SOURCES).
SOURCES = {"whole_tiles": False, "input_multiple": 1, "aggregate": "l2_over_length"}


@settings_class()
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

    `whole_tiles` and `input_multiple` suit the hardware: a layer keeps a multiple of g outputs, its best ones and at least one
    tile of them, and a tile a multiple of inputs. Each may instead keep all that it has, so a layer of at most g outputs
    loses none in step 1. Step 2 makes up for what step 1 leaves, so the total is s within one group of step 2:
    input_multiple inputs of a tile.

    The sources' variant has neither, and scores by l2_over_length: see `SOURCES`.

    Args:
        granularity: g, the width of a tile in surviving outputs; the last tile may be narrower, so every layer fits;
            a run is rejected where no layer has g outputs.
        element_overlay: delta, a fraction of all prunable weights, at least 0; s + delta stays below 1.
        apriori_tuning: a, from 0 to 1.
        whole_tiles: only a layer that keeps all of its outputs has a narrower last tile.
        input_multiple: 1, or what the instructions of a tensor core take at once: 16.
        aggregate: score of an output or tile input: rms, mean or l2_over_length (see `group_score`). Within a step of one layer
            rms and l2_over_length differ for a narrower last tile only, between layers for outputs of different length.
    Source: Guo et al., "Accelerating Sparse DNN Models without Hardware-Support via Tile-Wise Sparsity", 2020. The
        square-root split, the l2/length scores, the global threshold of each step and the overlay are from the authors'
        public code (TileSparsity, `tiled_wise_2d` and `tiled_wise_2d_mix`). Departures: a threshold there counts groups
        and so misses s; a tile's length there includes the pruned outputs that lie between its surviving ones. Whole
        tiles, inputs in multiples, rms and mean are ours, from what uneven tiles cost on a GPU. Apriori tuning is named in the
        talk, beside a picture of how uneven element-wise sparsity is. The public code holds its outcome for BERT: lists
        of blocks of 8 to 64 outputs, those where pruning leaves the most, written down by number for two tasks, whose
        scores it sets to 0 or to infinity before the threshold. How the lists were made it does not say. Here they are
        made for any network: the groups that element-wise pruning empties most count as worthless and those that it
        empties least as indispensable; how many of either is our setting.
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
        """On the way to a final sparsity the outputs go first: once they are fixed, tiles keep their members."""
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
        multiple = self.granularity if self.whole_tiles else 1
        if sparsity <= split < final:
            return (OutputStep(sparsity, multiple, self.aggregate),)
        inputs = TileInputStep(sparsity, self.granularity, self.input_multiple, self.aggregate)
        return OutputStep(split, multiple, self.aggregate), inputs

    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        if self.element_overlay > 0:
            return "gathered_overlay", {"tile": self.granularity}
        return "gathered", {"tile": self.granularity, "drop_empty_outputs": True}

    def rounding_unit(self, shape: tuple[int, int]) -> int:
        """One group of the last step: the inputs of a tile that go together."""
        return min(self.granularity, shape[0]) * min(self.input_multiple, shape[1])

    def check_structure(self, mask: Tensor, sparsity: float) -> None:
        """Every tile of surviving outputs keeps the same inputs, and as many outputs and inputs as the settings say.

        With an overlay any mask of one layer is allowed: ranked over the network, a layer may hold many times delta of its
        own weights beside its tiles, up to all that it keeps. What one layer can show is how its storage splits it.
        """
        if self.element_overlay > 0:
            return
        rows = surviving_outputs(mask)
        # Step 2 may empty a tile, so a layer that step 1 left whole is known by the width of its last tile alone.
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
            return Boundaries()  # outputs that no tile holds have weights too, so the mask does not tell tiles apart
        return Boundaries(rows=surviving_outputs(mask)[self.granularity :: self.granularity].tolist())
