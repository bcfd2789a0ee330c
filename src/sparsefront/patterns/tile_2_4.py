"""Tiles whose panels are 2:4 sparse themselves."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from sparsefront.masks.groups import Boundaries, Groups
from sparsefront.patterns.base import Pattern, Step
from sparsefront.patterns.blocks import (
    WINDOW,
    check_halved_sparsity,
    halved_unsupported_reason,
    outer_sparsity,
)
from sparsefront.patterns.tile_steps import surviving_outputs
from sparsefront.patterns.tile_wise import SOURCES, TileWise
from sparsefront.settings_class import settings_class


@dataclass(frozen=True)
class TileWindowStep:
    """Keep 2 of every 4 consecutive inputs of a tile's list, output by output.

    Windows are formed on the panel, for its K axis is what a sparse tensor core would read. A last window of r < 4 inputs
    keeps min(2, r).

    Args:
        target: sparsity when the step is done; the windows imply it.
        width: of a tile, in surviving outputs.
    """

    target: float
    width: int

    def groups(self, importance: Tensor, mask: Tensor) -> Groups:
        """Scores [surviving outputs, windows, 4]; -inf fills what the last window lacks."""
        rows = surviving_outputs(mask)
        places, count = self._places(mask[rows])
        scores = importance.new_full((len(rows), count + 1), -math.inf)
        scores.scatter_(1, places, importance[rows])
        return Groups(scores[:, :count].unflatten(1, (-1, WINDOW.m)), 1, keep_of_last=WINDOW.n)

    def to_mask(self, kept: Tensor, importance: Tensor, mask: Tensor) -> Tensor:
        rows = surviving_outputs(mask)
        places, count = self._places(mask[rows])
        nowhere = kept.new_zeros(len(rows), 1)
        result = torch.zeros_like(mask)
        result[rows] = torch.cat([kept.reshape(len(rows), count), nowhere], dim=1).gather(1, places)
        return result

    def _places(self, kept: Tensor) -> tuple[Tensor, int]:
        """Where in the windows each input of an output lies, and how many places there are.

        Outputs of a tile that differ show that the windows have been decided: each then holds 2 inputs of every output,
        and deciding again changes nothing. An input that all outputs have dropped has left no trace by then, so that
        counting by 4 would build other windows. Where all outputs of all tiles agree (scores that are equal throughout)
        nothing shows it, and deciding again would halve again: a schedule makes its last mask once.

        Args:
            kept: bool [outputs, K].
        Returns:
            int64 [outputs, K], 4 * window + place in it, and one past the last place for what is not kept; that last.
        """
        per_window = WINDOW.n if _tiles_differ(kept, self.width) else WINDOW.m
        order = kept.cumsum(dim=1)
        windows = math.ceil(int(order[:, -1].max()) / per_window) if len(kept) else 0
        order -= 1
        places = order if per_window == WINDOW.m else order // per_window * WINDOW.m + order % per_window
        return places.masked_fill_(~kept, windows * WINDOW.m), windows * WINDOW.m


def _tiles_differ(kept: Tensor, width: int) -> bool:
    """Whether two outputs of one tile keep different inputs; bool [surviving outputs, K]."""
    place = torch.arange(len(kept), device=kept.device)
    return not torch.equal(kept, kept[place - place % width])


@settings_class()
class Tile24(Pattern):
    """tile_wise first, then half of what is left: 2 of every 4 consecutive kept inputs of a tile, for each output.

    The densities multiply: outputs and tile inputs go until 2s - 1 of the weights are gone, so that halving the rest makes
    s. The allocation decides on outputs and inputs; the windows leave it nothing. A last window with fewer than four inputs
    keeps two, so that a layer may keep up to one weight per output more than its share.

    On the way to a final sparsity masks are tile-wise, first towards 2s - 1, then unchanged; the last mask halves them. There
    is no 3:4 on the way, as block_2_4 has it: where all outputs of a tile drop the same input, the next mask could not tell
    which windows there were.

    Stored as gathered panels of half the values and their places. On Hopper sparse tensor cores multiply by these, in tiles of
    multiples of 64 outputs; every other kernel multiplies by dense panels, zeros inside, so that the windows then save no time.

    Args:
        granularity: g, the width of a tile in surviving outputs, at least 2; the last tile may be narrower.
    Source: "Blocks that are 2:4 sparse themselves" under "Future Work" of the PyTorch talk, with tiles for blocks; Guo et
        al., "Accelerating Sparse DNNs Based on Tiled GEMM", 2024, propose the same pair as tile-vector-wise (TVW): tiles in
        global memory, 2:4 inside the sparse tensor core.
    """

    granularity: Annotated[int, Field(ge=2, description="a tile is known by its outputs' agreement")] = 128
    name: ClassVar[str] = "tile_2_4"
    uses_granularity: ClassVar[bool] = True

    @property
    def tiles(self) -> TileWise:
        """The outer pattern, as in its source: what suits the kernels of tile_wise does nothing where there is none."""
        return TileWise(self.granularity, **SOURCES)

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        return self.tiles.sizes

    @property
    def any_sparsity(self) -> bool:
        return False  # 2:4 takes a half of every layer

    def check_sparsity(self, sparsity: float) -> None:
        check_halved_sparsity(self.name, sparsity)

    def unsupported_reason(self, shape: tuple[int, int], sparsity: float) -> str | None:
        return halved_unsupported_reason(sparsity)

    def steps(self, sparsity: float, shape: tuple[int, int], final_sparsity: float | None = None) -> tuple[Step, ...]:
        final = sparsity if final_sparsity is None else final_sparsity
        outer = outer_sparsity(final)
        steps = self.tiles.steps(min(sparsity, outer), shape, outer)
        return steps if sparsity < final else (*steps, TileWindowStep(sparsity, self.granularity))

    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        return "gathered_2_4", {"tile": self.granularity}

    def rounding_unit(self, shape: tuple[int, int]) -> int:
        """Half a group of tile_wise, and one weight in the last window of every output."""
        return shape[0] + math.ceil(self.tiles.rounding_unit(shape) / 2)

    def check_structure(self, mask: Tensor, sparsity: float) -> None:
        """A panel of at most 4 inputs per window can hold every tile: each output keeps two inputs in each window.

        Inputs that all outputs of a tile drop have left no trace; windows are read off the order of what each output keeps.
        """
        rows = surviving_outputs(mask)
        if len(rows) == 0:
            return  # the layer is empty, and still split would make one tile of it
        for index, tile in enumerate(mask[rows].split(self.granularity)):
            counts = tile.sum(dim=1)
            if (counts != counts[0]).any():
                least, most = int(counts.min()), int(counts.max())
                raise ValueError(f"tile_2_4: outputs of tile {index} keep {least} to {most} inputs, not equally many")
            self._check_windows(index, tile)

    def _check_windows(self, index: int, tile: Tensor) -> None:
        """Raise ValueError unless the windows of a tile, bool [outputs, K], are the same for all of its outputs."""
        window = (tile.cumsum(dim=1) - 1) // WINDOW.n
        lowest = window.masked_fill(~tile, tile.shape[1]).amin(dim=0)
        highest = window.masked_fill(~tile, -1).amax(dim=0)
        inputs = tile.any(dim=0)
        if (torn := inputs & (lowest != highest)).any():
            k = int(torn.nonzero()[0])
            raise ValueError(
                f"tile_2_4: input {k} of tile {index} lies in window {int(lowest[k])} of one output and "
                f"{int(highest[k])} of another"
            )
        windows = lowest[inputs]
        if (windows.diff() < 0).any():
            raise ValueError(f"tile_2_4: windows of tile {index} overlap")
        widths = windows.bincount(minlength=1)
        if (widest := int(widths.max())) > WINDOW.m:
            widest_at = int(widths.argmax())
            raise ValueError(f"tile_2_4: window {widest_at} of tile {index} needs {widest} inputs, not {WINDOW.m}")

    def boundaries(self, mask: Tensor, sparsity: float) -> Boundaries:
        return self.tiles.boundaries(mask, sparsity)
