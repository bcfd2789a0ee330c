"""Tile-wise pruning: whole outputs first, then whole inputs of every tile of surviving outputs."""

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from sparsefront.errors import InvalidSetting
from sparsefront.masks.groups import Boundaries, Groups, Guide, group_score
from sparsefront.patterns.base import Pattern, Step
from sparsefront.patterns.blocks import BlockStep
from sparsefront.settings_class import Fraction, Share, settings_class

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
