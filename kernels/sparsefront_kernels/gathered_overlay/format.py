"""Gathered storage with a CSR remainder: tiles of outputs that share inputs, plus weights kept one by one."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from sparsefront_kernels.csr.format import CSRFormat
from sparsefront_kernels.format import SparseFormat, check_weight_and_mask, matrix_shape
from sparsefront_kernels.gathered.format import GatheredFormat
from sparsefront_kernels.gathered_overlay.split import split_mask


@dataclass(frozen=True, eq=False)
class GatheredOverlayFormat(SparseFormat):
    """W = tiles + overlay, with no weight in both. Any mask fits; one with a tile-wise part is stored compactly.

        W, tile = 2                   tiles (gathered)       overlay (csr)
        [ a . b x ]                   [ a . b . ]            [ . . . x ]
        [ c . d . ]                   [ c . d . ]            [ . . . . ]
        [ . y . . ]                   [ . . . . ]            [ . y . . ]

    Args:
        tile, values, kept_inputs, tile_offsets, output_index: of the tiles, as `GatheredFormat` has them.
        overlay_values, overlay_row_pointers, overlay_columns: of the overlay, as `CSRFormat` has them.
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
        """The tiles alone, a weight [N, K] of their own."""
        return GatheredFormat(
            self.shape, self.tile, self.values, self.kept_inputs, self.tile_offsets, self.output_index
        )

    @cached_property
    def overlay(self) -> CSRFormat:
        """The single weights alone."""
        return CSRFormat(self.shape, self.overlay_values, self.overlay_row_pointers, self.overlay_columns)

    def to_dense(self) -> Tensor:
        dense = self.tiles.to_dense()
        # written, not added: -0.0 + 0.0 is +0.0
        dense[self.overlay.rows(), self.overlay.columns.long()] = self.overlay.values
        return dense

    def check(self) -> None:
        """Both parts check themselves as they are made; a weight in both would be counted twice by the product."""
        if self.overlay.dtype != self.dtype:
            raise ValueError(f"gathered_overlay: the tiles are {self.dtype}, the overlay {self.overlay.dtype}")
        in_tiles = replace(self.tiles, values=torch.ones_like(self.values)).to_dense()
        twice = int(in_tiles[self.overlay.rows(), self.overlay.columns.long()].count_nonzero())
        if twice:
            raise ValueError(f"gathered_overlay: {twice} weights are in a tile and in the overlay")
