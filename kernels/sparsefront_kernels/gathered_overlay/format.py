"""Gathered storage plus a CSR remainder: tiles of outputs that share inputs, and single weights."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from sparsefront_kernels.csr.format import CSRFormat
from sparsefront_kernels.format import SparseFormat, check_weight_and_mask, matrix_shape
from sparsefront_kernels.gathered.format import GatheredFormat

LARGEST_GAPS = 16  # between counts of kept weights, tried as thresholds besides 1


@dataclass(frozen=True, eq=False)
class GatheredOverlayFormat(SparseFormat):
    """W = tiles + overlay, with no weight in both. Any mask fits; one with a tile-wise part is stored compactly.

        W, tile = 2                   tiles (gathered)       overlay (csr)
        [ a . b x ]                   [ a . b . ]            [ . . . x ]
        [ c . d . ]                   [ c . d . ]            [ . . . . ]
        [ . y . . ]                   [ . . . . ]            [ . y . . ]

    Args:
        tile, values, kept_inputs, tile_offsets, output_index: of the tiles, as in `GatheredFormat`.
        overlay_values, overlay_row_pointers, overlay_columns: of the overlay, as in `CSRFormat`.
    """

    family: ClassVar[str] = "gathered_overlay"
    tile: int
    values: Tensor
    kept_inputs: Tensor
    tile_offsets: Tensor
    output_index: Tensor
    overlay_values: Tensor
    overlay_row_pointers: Tensor
    overlay_columns: Tensor

    @classmethod
    def from_dense(cls, weight: Tensor, mask: Tensor, *, tile: int) -> Self:
        """Store any mask, split by `split_mask`.

        Args:
            weight: [N, K], any float dtype and device.
            mask: bool [N, K], True = keep.
            tile: outputs per tile, at least 1.
        Raises:
            ValueError: a tile below 1.
        """
        check_weight_and_mask(weight, mask)
        if tile < 1:
            raise ValueError(f"gathered_overlay: tile must be at least 1, not {tile}")
        tiled = split_mask(mask, tile)
        tiles = GatheredFormat.from_dense(weight, tiled, tile=tile)
        overlay = CSRFormat.from_dense(weight, mask & ~tiled)
        return cls(
            shape=matrix_shape(weight),
            tile=tile,
            **tiles.tensors(),
            **{f"overlay_{name}": part for name, part in overlay.tensors().items()},
        )

    @cached_property
    def tiles(self) -> GatheredFormat:
        """The tiles alone, as a weight [N, K]."""
        return GatheredFormat(
            self.shape, self.tile, self.values, self.kept_inputs, self.tile_offsets, self.output_index
        )

    @cached_property
    def overlay(self) -> CSRFormat:
        """The single weights alone."""
        return CSRFormat(self.shape, self.overlay_values, self.overlay_row_pointers, self.overlay_columns)

    def to_dense(self) -> Tensor:
        dense = self.tiles.to_dense()
        # assign instead of add: -0.0 + 0.0 is +0.0
        dense[self.overlay.rows(), self.overlay.columns.long()] = self.overlay.values
        return dense

    def check(self) -> None:
        """Both parts check themselves; a weight in both would count twice in the product."""
        if self.overlay.dtype != self.dtype:
            raise ValueError(f"gathered_overlay: the tiles are {self.dtype}, the overlay {self.overlay.dtype}")
        in_tiles = replace(self.tiles, values=torch.ones_like(self.values)).to_dense()
        twice = int(in_tiles[self.overlay.rows(), self.overlay.columns.long()].count_nonzero())
        if twice:
            raise ValueError(f"gathered_overlay: {twice} weights are in a tile and in the overlay")


def split_mask(mask: Tensor, tile: int) -> Tensor:
    """The part of a mask that tiles of `tile` outputs can hold; the rest of the mask is the overlay.

    Outputs with at least t weights form tiles in ascending order, and a tile stores the inputs that all of its outputs keep. An
    overlay may have restored single weights of outputs that tile-wise pruning had removed: as members they would shift all
    following tiles. Surviving outputs keep far more weights, so t is searched in the widest gaps between sorted counts, and at
    1; the split with the fewest stored numbers wins, ties to the lower t. If counts overlap, the split is exact but less compact.

    Args:
        mask: bool [N, K], True = keep.
        tile: outputs per tile.
    Returns:
        bool [N, K], within `mask`: the rows of a tile are equal.
    """
    counts = mask.sum(dim=1)
    tried = [_tiled(mask, counts >= threshold, tile) for threshold in _thresholds(counts)]
    stored = torch.stack([_stored_numbers(mask, tiled, tile) for tiled in tried])
    return tried[int(stored.argmin())]


def _thresholds(counts: Tensor) -> list[int]:
    """Counts that start a group of outputs, ascending: 1, and those above the widest gaps; ties to the lower."""
    present = torch.unique(counts[counts > 0])  # ascending
    if present.numel() == 0:
        return [1]
    widest = present.diff().sort(descending=True, stable=True).indices[:LARGEST_GAPS]
    return [1, *present[widest.sort().values + 1].tolist()]


def _tiled(mask: Tensor, members: Tensor, tile: int) -> Tensor:
    """Inputs shared by the members among the outputs (bool [N]), tile by tile; bool [N, K]."""
    rows = members.nonzero().flatten()
    result = torch.zeros_like(mask)
    if rows.numel() == 0:
        return result
    missing = -rows.numel() % tile  # pad a narrower last tile with its last output
    padded = mask[torch.cat([rows, rows[-1:].expand(missing)])]
    shared = padded.view(-1, tile, mask.shape[1]).all(dim=1)
    result[rows] = shared.repeat_interleave(tile, dim=0)[: rows.numel()]
    return result


def _stored_numbers(mask: Tensor, tiled: Tensor, tile: int) -> Tensor:
    """Number of stored values and indices: a tile's weights share an input's index, each overlay weight has its own."""
    members = tiled.any(dim=1)
    lists = tiled[members][::tile].sum()  # the first output of each tile has the tile's inputs
    in_tiles = tiled.sum()
    return in_tiles + lists + members.sum() + 2 * (mask.sum() - in_tiles)
