"""Gathered storage with 2:4 sparse panels: half of a panel's values, and a two-bit index for each."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.format import SparseFormat, check_weight_and_mask, matrix_shape, zero_where_pruned
from sparsefront_kernels.gathered.format import GatheredFormat
from sparsefront_kernels.indices import GROUP, packed_places, places_of_kept, unpacked_places


@dataclass(frozen=True, eq=False)
class Gathered24Format(SparseFormat):
    """Tiles of `tile` stored outputs; a tile has a list of windows of up to four inputs, of which each output keeps two.

        W, tile = 2                          stored
               k0 k1 k2 k3 k4 k5
        n0   [  a  b  .  .  .  . ]  tile 0   window 0  inputs 0 1 3 4    values  a b   indices  0 1
        n1   [  .  .  .  c  d  . ]                                               c d           2 3

    Outputs that keep nothing are not stored. If an output keeps fewer than two inputs of a window, zeros are stored.

    Args:
        tile: outputs per tile; the last one is padded with zeros.
        values: [windows, tile, 2].
        metadata: uint8 [windows, ceil(tile / 2)], from `indices.packed_places`, for the outputs of a window.
        inputs: int32 [windows, 4], ascending, padded with -1.
        tile_offsets: int64 [tiles + 1]; tile t owns windows tile_offsets[t] to tile_offsets[t + 1].
        output_index: int32 [stored outputs], ascending; tile t owns `tile` of them from t * tile on.
    """

    family: ClassVar[str] = "gathered_2_4"
    tile: int
    values: Tensor
    metadata: Tensor
    inputs: Tensor
    tile_offsets: Tensor
    output_index: Tensor

    @classmethod
    def from_dense(cls, weight: Tensor, mask: Tensor, *, tile: int) -> Self:
        """Store any mask, in as few windows as possible for inputs in ascending order (`_windows_of_inputs`).

        Tiles whose outputs keep two of every four of its inputs need a window for every four.

        Args:
            weight: [N, K], any float dtype and device.
            mask: bool [N, K], True = keep. Outputs that keep nothing are dropped before tiles are formed.
            tile: outputs per tile, at least 1.
        Raises:
            ValueError: a tile below 1.
        """
        check_weight_and_mask(weight, mask)
        if tile < 1:
            raise ValueError(f"gathered_2_4: tile must be at least 1, not {tile}")
        stored = mask.any(dim=1).nonzero().flatten()
        keeps = _in_tiles(mask[stored], tile)
        of_tiles = _in_tiles(zero_where_pruned(weight[stored], mask[stored]), tile)
        tile_of, inputs, offsets = _windows(keeps)
        there, columns = inputs >= 0, inputs.clamp(min=0)
        at = tile_of[:, None, None], torch.arange(tile, device=mask.device)[:, None], columns[:, None, :]
        groups = keeps[at] & there[:, None, :]  # [windows, tile, 4]
        indices = places_of_kept(groups, 2, family=cls.family)
        return cls(
            shape=matrix_shape(weight),
            tile=tile,
            values=torch.where(groups, of_tiles[at], 0.0).gather(2, indices),
            metadata=packed_places(indices),
            inputs=inputs.to(torch.int32),
            tile_offsets=offsets,
            output_index=stored.to(torch.int32),
        )

    def window_tiles(self) -> Tensor:
        """The tile of every window, int64 [windows]."""
        tiles = torch.arange(self.tile_offsets.numel() - 1, device=self.values.device)
        return tiles.repeat_interleave(self.tile_offsets.diff(), output_size=len(self.inputs))

    def panels(self) -> Tensor:
        """[windows, tile, 4], with zeros: the weights of each window's tile for its inputs."""
        indices = unpacked_places(self.metadata, self.tile)
        return self.values.new_zeros(*self.values.shape[:2], GROUP).scatter(2, indices, self.values)

    def to_dense(self) -> Tensor:
        n, k = self.shape
        tile_outputs = self.output_index.new_full((len(self.tile_offsets) * self.tile,), n)
        tile_outputs[: len(self.output_index)] = self.output_index
        rows = tile_outputs.view(-1, self.tile)[self.window_tiles()].long()  # [windows, tile]
        columns = torch.where(self.inputs >= 0, self.inputs, k).long()
        dense = self.values.new_zeros(n + 1, k + 1)  # the last row and column take padding
        dense[rows[:, :, None], columns[:, None, :]] = self.panels()
        return dense[:n, :k].contiguous()

    def filled(self) -> GatheredFormat:
        """The same weight with dense panels, including zeros."""
        dense = self.to_dense()
        keeps = torch.zeros(self.shape, dtype=torch.bool, device=self.device)
        there = self.inputs >= 0
        kept_inputs = self.window_tiles()[:, None].expand_as(self.inputs)[there], self.inputs[there].long()
        of_tiles = keeps.new_zeros(len(self.tile_offsets), self.shape[1])
        of_tiles[kept_inputs] = True
        outputs = self.output_index.long()
        keeps[outputs] = of_tiles[torch.arange(len(outputs), device=self.device) // self.tile]
        return GatheredFormat.from_dense(dense, keeps, tile=self.tile)

    def check(self) -> None:
        n, k = self.shape
        tiles = -(-self.output_index.numel() // self.tile) if self.tile >= 1 else 0
        windows = len(self.inputs)
        offsets = self.tile_offsets
        if self.tile < 1 or offsets.shape != (tiles + 1,) or offsets[0] != 0 or (offsets.diff() < 0).any():
            raise ValueError(
                f"gathered_2_4: {self.output_index.numel()} outputs in tiles of {self.tile} need {tiles + 1} offsets that rise "
                f"from 0, not {offsets.tolist()}"
            )
        expected = {
            "values": (windows, self.tile, 2),
            "metadata": (windows, -(-self.tile // 2)),
            "inputs": (int(offsets[-1]), GROUP),
        }
        for name, shape in expected.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"gathered_2_4: {name} must be {list(shape)}, not {list(getattr(self, name).shape)}")
        dtypes = {
            "metadata": torch.uint8,
            "inputs": torch.int32,
            "tile_offsets": torch.int64,
            "output_index": torch.int32,
        }
        for name, dtype in dtypes.items():
            if getattr(self, name).dtype != dtype:
                raise ValueError(f"gathered_2_4: {name} must be {dtype}, not {getattr(self, name).dtype}")
        indices = unpacked_places(self.metadata, self.tile)
        if (indices[..., 0] >= indices[..., 1]).any():
            raise ValueError("gathered_2_4: the two indices of a window must rise")
        if windows and (int(self.inputs.min()) < -1 or int(self.inputs.max()) >= k):
            raise ValueError(f"gathered_2_4: inputs must lie in [-1, {k})")
        outputs = self.output_index
        if outputs.numel() and (int(outputs[0]) < 0 or int(outputs[-1]) >= n or not (outputs.diff() > 0).all()):
            raise ValueError(f"gathered_2_4: output_index must rise in [0, {n})")


def _in_tiles(matrix: Tensor, tile: int) -> Tensor:
    """[outputs, K] → [tiles, tile, K], padded with zeros."""
    return pad(matrix, (0, 0, 0, -len(matrix) % tile)).view(-1, tile, matrix.shape[1])


def _windows(kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From bool [tiles, tile, K]: each window's tile, its inputs int64 [windows, 4], and `tile_offsets`."""
    window = _windows_of_inputs(kept)
    counts = window.amax(dim=1) + 1
    offsets = pad(counts.cumsum(0), (1, 0))
    tile, column = (window >= 0).nonzero(as_tuple=True)  # tile by tile, ascending
    number = offsets[tile] + window[tile, column]
    widths = number.bincount(minlength=int(offsets[-1]))
    position = torch.arange(len(number), device=kept.device) - (widths.cumsum(0) - widths)[number]
    inputs = column.new_full((len(widths), GROUP), -1)
    inputs[number, position] = column
    tile_of = torch.arange(len(kept), device=kept.device).repeat_interleave(counts, output_size=len(widths))
    return tile_of, inputs, offsets


def _windows_of_inputs(kept: Tensor) -> Tensor:
    """Windows of neighboring inputs, each as long as possible.

    A window takes the next input that any output keeps until it has four or an output would keep a third one. For masks of
    `tile_2_4`, whose outputs keep two of every window, this finds these windows, even if all outputs dropped the same input.

    Args:
        kept: bool [tiles, outputs, K].
    Returns:
        int64 [tiles, K], index of each input's window in its tile, -1 if no output keeps it.
    """
    by_input = kept.permute(2, 0, 1).contiguous()  # [K, tiles, outputs]
    alive = by_input.any(dim=2)
    count = kept.new_zeros(kept.shape[:2], dtype=torch.int8)  # kept inputs of each output in the window
    width = kept.new_zeros(len(kept), dtype=torch.int64)
    window = torch.zeros_like(width)
    windows = []
    for of_outputs, of_tiles in zip(by_input.to(torch.int8), alive, strict=True):
        more = count + of_outputs
        full = of_tiles & ((more > 2).any(dim=1) | (width == GROUP))
        count = torch.where(full[:, None], of_outputs, more)
        width = width.masked_fill(full, 0) + of_tiles
        window = window + full
        windows.append(window)
    return torch.stack(windows, dim=1).masked_fill(~alive.t(), -1)
