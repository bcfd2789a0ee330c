"""Tiles that are 2:4 sparse inside."""

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
    """Keep 2 of every 4 consecutive kept inputs of a tile, separately for each output.

    Windows run along the K axis of the panel, which is what a sparse tensor core reads. A last window of r < 4 inputs
    keeps min(2, r).

    Args:
        target: sparsity after the step; the windows imply it.
        width: of a tile, in surviving outputs.
    """

    target: float
    width: int

    def groups(self, importance: Tensor, mask: Tensor) -> Groups:
        """Scores [surviving outputs, windows, 4]; -inf pads the last window."""
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
        """Map each input of an output to its slot in the windows.

        If outputs of one tile differ, the windows were already pruned: each holds 2 inputs of every output, and repeating
        the step changes nothing. Windows are then counted by 2, because inputs that every output dropped left no trace. If
        all outputs of all tiles agree (all scores equal), a pruned mask cannot be recognized and would be halved again, so
        a schedule makes its last mask only once.

        Args:
            kept: bool [outputs, K].
        Returns:
            int64 [outputs, K] with 4 * window + slot, or the number of slots for inputs that are not kept; and that number.
        """
        per_window = WINDOW.n if _tiles_differ(kept, self.width) else WINDOW.m
        order = kept.cumsum(dim=1)
        windows = math.ceil(int(order[:, -1].max()) / per_window) if len(kept) else 0
        order -= 1
        places = order if per_window == WINDOW.m else order // per_window * WINDOW.m + order % per_window
        return places.masked_fill_(~kept, windows * WINDOW.m), windows * WINDOW.m


def _tiles_differ(kept: Tensor, width: int) -> bool:
    """Whether any two outputs of one tile keep different inputs; `kept` is bool [surviving outputs, K]."""
    place = torch.arange(len(kept), device=kept.device)
    return not torch.equal(kept, kept[place - place % width])


@settings_class()
class Tile24(Pattern):
    """tile_wise, then 2:4 inside: each output keeps 2 of every 4 consecutive kept inputs of its tile.

    The densities multiply: outputs and tile inputs are pruned to 2s - 1, so that halving the rest gives s. The allocation
    decides only on outputs and inputs. A last window with fewer than four inputs keeps two, so a layer may keep up to one
    weight per output too many.

    During a schedule the masks are tile-wise up to 2s - 1 and then unchanged; the last mask halves them. Unlike block_2_4
    there is no 3:4 in between: if all outputs of a tile dropped the same input, the next step could not recover the windows.

    Stored as gathered panels with half the values and their indices. Hopper kernels run them on sparse tensor cores for tiles
    of multiples of 64 outputs; every other kernel multiplies dense panels with zeros, so the windows save no time there.

    Args:
        granularity: g, the width of a tile in surviving outputs, at least 2; the last tile may be narrower.
    Source: "Blocks that are 2:4 sparse themselves" under "Future Work" of the PyTorch talk, with tiles instead of blocks;
        Guo et al., "Accelerating Sparse DNNs Based on Tiled GEMM", 2024, propose the same combination as tile-vector-wise
        (TVW): tiles in global memory, 2:4 inside the sparse tensor core.
    """

    granularity: Annotated[int, Field(ge=2, description="a tile is known by its outputs' agreement")] = 128
    name: ClassVar[str] = "tile_2_4"
    uses_granularity: ClassVar[bool] = True

    @property
    def tiles(self) -> TileWise:
        """The outer pattern as in its source; the settings for tile_wise kernels have no benefit here."""
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
