"""Tiles that are 2:4 sparse inside."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from sparsefront.masks.groups import Boundaries, Groups, group_score, keep_best_of_last
from sparsefront.patterns.base import Pattern, Step
from sparsefront.patterns.blocks import WINDOW, check_halved_sparsity, halved_unsupported_reason, outer_sparsity
from sparsefront.patterns.tile_wise import SOURCES, TileWise, surviving_outputs
from sparsefront.settings_class import settings_class


@dataclass(frozen=True)
class TileWindowStep:
    """Keep 2 of every 4 consecutive kept inputs of a tile, separately for each output.

    Windows run along the K axis of the panel, which is what a sparse tensor core reads. A last window of r < 4 inputs
    keeps min(2, r).

    Args:
        target: sparsity after the step; implied by the windows unless `between`.
        width: of a tile, in surviving outputs.
        between: the best windows stay whole, as many as `target` leaves. Every input of a tile is then still kept by one of
            its outputs, because the next mask reads the windows off the inputs that are left.
    """

    target: float
    width: int
    between: bool = False

    def groups(self, importance: Tensor, mask: Tensor) -> Groups:
        """Scores [surviving outputs, windows, 4]; -inf pads the last window.

        `between`, [surviving outputs, windows, 2]: the best 2 inputs of a window, which stay, and the others.
        """
        rows = surviving_outputs(mask)
        scores = self._windows(importance[rows], mask[rows])[0]
        if not self.between:
            return Groups(scores, 1, keep_of_last=WINDOW.n)
        best, alive = keep_best_of_last(scores, WINDOW.n), scores > -math.inf
        sizes = torch.stack([best.sum(dim=2), (alive & ~best).sum(dim=2)], dim=2)
        others = group_score(scores.masked_fill(best | ~alive, 0.0), (2,), 1, "l2")
        # The windows of a tile with one output can be read off it only while they are whole.
        place = torch.arange(len(rows), device=mask.device)
        alone = (place % self.width == 0) & (place == len(rows) - 1)
        others = others.masked_fill(alone[:, None], math.inf).masked_fill(sizes[..., 1] == 0, -math.inf)
        return Groups(torch.stack([torch.full_like(others, math.inf), others], dim=2), sizes)

    def to_mask(self, kept: Tensor, importance: Tensor, mask: Tensor) -> Tensor:
        rows = surviving_outputs(mask)
        scores, places = self._windows(importance[rows], mask[rows])
        if self.between:
            alive = scores > -math.inf
            kept = self._cover(keep_best_of_last(scores, WINDOW.n) | (kept[..., 1:] & alive), alive, scores)
        nowhere = kept.new_zeros(len(rows), 1)
        result = torch.zeros_like(mask)
        result[rows] = torch.cat([kept.flatten(1), nowhere], dim=1).gather(1, places)
        return result

    def _cover(self, kept: Tensor, alive: Tensor, scores: Tensor) -> Tensor:
        """Let the first output that can keep what all others of its tile drop, without keeping more inputs of a window.

        kept, alive, scores: [surviving outputs, windows, 4].
        """
        counts = self._in_tiles(kept).sum(dim=1, keepdim=True)  # [tiles, 1, windows, 4]
        dropped = self._in_tiles(alive).any(dim=1, keepdim=True) & (counts == 0)
        able = (self._in_tiles(alive) | ~dropped).all(dim=3) & dropped.any(dim=3)  # [tiles, width, windows]
        first = able & (able.cumsum(dim=1) == 1)
        needed = self._in_tiles(alive) & (counts == self._in_tiles(kept))  # which no other output keeps
        chosen = keep_best_of_last(self._in_tiles(scores).masked_fill(needed, math.inf), WINDOW.n)
        return torch.where(first[..., None], chosen, self._in_tiles(kept)).flatten(0, 1)[: len(kept)]

    def _in_tiles(self, values: Tensor) -> Tensor:
        """[outputs, ...] as [tiles, width, ...], padded with False or -inf."""
        tiles = math.ceil(len(values) / self.width)
        nothing = -math.inf if values.is_floating_point() else 0
        padded = values.new_full((tiles * self.width, *values.shape[1:]), nothing)
        padded[: len(values)] = values
        return padded.view(tiles, self.width, *values.shape[1:])

    def _windows(self, importance: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Sort the inputs of each output into the windows of its tile.

        The windows are every 4 inputs that any output of the tile keeps, as long as each output keeps all or 2 of each. If
        not, they were pruned for good, which may leave inputs that no output keeps: each then holds 2 inputs of every output.
        If all outputs of a tile agree, such a mask cannot be recognized and would be halved again, so a schedule makes its
        last mask only once.

        Args:
            importance: [surviving outputs, K].
            kept: bool, of the same shape.
        Returns:
            scores [outputs, windows, 4], -inf where nothing is kept; int64 [outputs, K] with 4 * window + slot, or the number
            of slots for inputs that are not kept.
        """
        m, n = WINDOW.m, WINDOW.n
        if not len(kept):
            return importance.new_zeros(0, 0, m), kept.long()
        inputs = self._in_tiles(kept).any(dim=1)  # [tiles, K]
        union = (inputs.cumsum(dim=1) - 1).clamp(min=0)
        of_tile = torch.arange(len(kept), device=kept.device) // self.width
        window = (union // m)[of_tile]
        slots = m * (int(union.max()) // m + 1)
        counts = kept.new_zeros(len(kept), slots // m, dtype=torch.int64).scatter_add_(1, window, kept.long())
        left = inputs.sum(dim=1, keepdim=True) - m * torch.arange(slots // m, device=kept.device)
        sizes = left.clamp(0, m)[of_tile]
        whole_or_half = (counts == sizes) | (counts == sizes.clamp(max=n))
        by_union = self._in_tiles(~whole_or_half.all(dim=1)).any(dim=1).logical_not_()[of_tile, None]
        order = kept.cumsum(dim=1) - 1
        places = torch.where(by_union, union[of_tile], order // n * m + order % n)
        slots = m * (int(places.masked_fill(~kept, 0).max()) // m + 1)
        places = places.masked_fill(~kept, slots)
        scores = importance.new_full((len(kept), slots + 1), -math.inf).scatter_(1, places, importance)
        return scores[:, :slots].unflatten(1, (-1, m)), places


@settings_class()
class Tile24(Pattern):
    """tile_wise, then 2:4 inside: each output keeps 2 of every 4 consecutive kept inputs of its tile.

    The densities multiply: outputs and tile inputs are pruned to 2s - 1, so that halving the rest gives s. The allocation
    decides only on outputs and inputs. A last window with fewer than four inputs keeps two, so a layer may keep up to one
    weight per output too many.

    During a schedule the masks are tile-wise up to 2s - 1; then single windows are halved, the worst first. Unlike block_2_4
    there is no 3:4 in between: the windows are read off the inputs that the outputs of a tile keep.

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
        if sparsity < final and sparsity <= outer:
            return steps
        return *steps, TileWindowStep(sparsity, self.granularity, between=sparsity < final)

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
        widest = int(widths.max())
        if widest > WINDOW.m:
            widest_at = int(widths.argmax())
            raise ValueError(f"tile_2_4: window {widest_at} of tile {index} needs {widest} inputs, not {WINDOW.m}")

    def boundaries(self, mask: Tensor, sparsity: float) -> Boundaries:
        return self.tiles.boundaries(mask, sparsity)
