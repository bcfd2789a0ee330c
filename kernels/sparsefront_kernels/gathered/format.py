"""Gathered storage: per tile of outputs, a list of kept inputs and a dense panel of weights."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.format import SparseFormat, check_weight_and_mask, matrix_shape, zero_where_pruned
from sparsefront_kernels.indices import permutation


@dataclass(frozen=True, eq=False)
class GatheredFormat(SparseFormat):
    """Tiles of `tile` stored outputs; inside a tile every output keeps the same inputs.

        W, tile = 2                       stored
               k0 k1 k2 k3 k4
        n0   [  a  .  .  b  . ]  tile 0   inputs 0 3     panel  a c     (a row per kept input:
        n1   [  c  .  .  d  . ]                                 b d      its weights to the tile's outputs)
        n2   [  .  .  .  .  . ]  dropped
        n3   [  .  e  f  .  g ]  tile 1   inputs 1 2 4   panel  e h
        n4   [  .  h  i  .  j ]                                 f i
                                                                g j

        output_index = 0 1 3 4     tile_offsets = 0 2 5     kept_inputs = 0 3 1 2 4     values = a c b d e h f i g j

    Tiles may keep different numbers of inputs, including none. The last tile may have fewer outputs and a narrower panel.
    Outputs that are not stored are zero for every X. Tiles may also be formed from permuted outputs (shuffled sparsity): then
    output_index is not ascending, and kernels write through it.

    Args:
        tile: outputs per tile.
        values: all panels concatenated, flat; tile t's is [inputs of t, outputs of t] in row-major order.
        kept_inputs: int32 [sum of kept inputs], ascending within a tile.
        tile_offsets: int64 [tiles + 1]; tile t owns kept_inputs[tile_offsets[t] : tile_offsets[t + 1]].
        output_index: int32 [stored outputs], without duplicates; tile t owns `tile` of them from t * tile on.
    """

    family: ClassVar[str] = "gathered"
    tile: int
    values: Tensor
    kept_inputs: Tensor
    tile_offsets: Tensor
    output_index: Tensor

    @classmethod
    def from_dense(
        cls,
        weight: Tensor,
        mask: Tensor,
        *,
        tile: int,
        drop_empty_outputs: bool = True,
        output_order: Tensor | None = None,
        fill: bool = False,
    ) -> Self:
        """Store a mask whose tiles keep whole inputs.

        Args:
            weight: [N, K], any float dtype and device.
            mask: bool [N, K], True = keep; all rows of a tile must be equal, unless `fill`.
            tile: outputs per tile, at least 1.
            drop_empty_outputs: True omits outputs that keep nothing and forms tiles from the others, as in tile-wise
                pruning; False forms them from all N outputs in order, as in vector-wise pruning.
            output_order: int [N], a permutation; the tiles are formed from outputs in this order. None: ascending.
            fill: True stores every input that any output of a tile keeps, filled with zeros.
        Raises:
            ValueError: a tile below 1, an order that is not a permutation, or rows of one tile that keep different inputs
                (names tile and count).
        """
        check_weight_and_mask(weight, mask)
        if tile < 1:
            raise ValueError(f"gathered: tile must be at least 1, not {tile}")
        order = permutation("gathered: output_order", output_order, mask.shape[0], mask.device)
        stored = order[mask.any(dim=1)[order]] if drop_empty_outputs else order
        stored_mask = mask[stored]
        kept_weight = zero_where_pruned(weight[stored], stored_mask)
        shared = _shared_inputs(stored_mask, tile, fill=fill)  # [tiles, K]
        offsets = pad(shared.sum(dim=1).cumsum(dim=0), (1, 0))
        missing = -len(stored) % tile  # outputs in the last tile
        filled = pad(kept_weight, (0, 0, 0, missing)).view(len(shared), tile, mask.shape[1])
        rows = filled.transpose(1, 2)[shared]  # [kept inputs, tile]
        last = rows[len(rows) - int(shared[-1:].sum()) :]
        return cls(
            shape=matrix_shape(weight),
            tile=tile,
            values=torch.cat([rows[: len(rows) - len(last)].flatten(), last[:, : tile - missing].flatten()]),
            kept_inputs=shared.nonzero()[:, 1].to(torch.int32),
            tile_offsets=offsets,
            output_index=stored.to(torch.int32),
        )

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        return self.tile_offsets.numel() - 1

    @property
    def consecutive(self) -> bool:
        """Whether all N outputs are stored in ascending order, so that a product has Y's own order."""
        index = self.output_index
        return index.numel() == self.shape[0] and bool((index.diff() > 0).all())

    @property
    def keeps(self) -> Tensor:
        """The inputs that each tile keeps, bool [tiles, K]."""
        keeps = torch.zeros(self.tiles, self.shape[1], dtype=torch.bool, device=self.device)
        tile_of = torch.repeat_interleave(torch.arange(self.tiles, device=self.device), self.tile_offsets.diff())
        keeps[tile_of, self.kept_inputs.long()] = True
        return keeps

    @property
    def dropped_outputs(self) -> Tensor:
        """The outputs that no tile stores, int32, ascending."""
        stored = torch.zeros(self.shape[0], dtype=torch.bool, device=self.device)
        stored[self.output_index.long()] = True
        return (~stored).nonzero().flatten().to(torch.int32)

    def panels(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Per tile: its outputs (int32 [w]), its inputs (int32 [c]) and its panel [c, w], all views."""
        bounds = self.tile_offsets.tolist()
        parts = []
        for tile, (start, stop) in enumerate(pairwise(bounds)):
            outputs = self.output_index[tile * self.tile : (tile + 1) * self.tile]
            # all tiles before this one have full width
            values = self.values[start * self.tile :][: (stop - start) * outputs.numel()]
            parts.append((outputs, self.kept_inputs[start:stop], values.view(stop - start, outputs.numel())))
        return parts

    def to_dense(self) -> Tensor:
        dense = self.values.new_zeros(self.shape)
        for outputs, inputs, panel in self.panels():
            dense[outputs.long()[:, None], inputs.long()[None, :]] = panel.t()
        return dense

    def check(self) -> None:
        n, k = self.shape
        stored = self.output_index.numel()
        tiles = -(-stored // self.tile) if self.tile >= 1 else 0
        if self.tile < 1 or self.tile_offsets.shape != (tiles + 1,):
            raise ValueError(
                f"gathered: {stored} outputs in tiles of {self.tile} need {tiles + 1} tile offsets, "
                f"not {list(self.tile_offsets.shape)}"
            )
        for name, dtype in (("kept_inputs", torch.int32), ("tile_offsets", torch.int64), ("output_index", torch.int32)):
            if getattr(self, name).dtype != dtype:
                raise ValueError(f"gathered: {name} must be {dtype}, not {getattr(self, name).dtype}")
        counts = self.tile_offsets.diff()
        if self.tile_offsets[0] != 0 or (counts < 0).any() or self.tile_offsets[-1] != self.kept_inputs.numel():
            raise ValueError(f"gathered: tile offsets must rise from 0 to {self.kept_inputs.numel()} kept inputs")
        last_count = int(counts[-1]) if tiles else 0
        expected = self.kept_inputs.numel() * self.tile - last_count * (tiles * self.tile - stored)
        if self.values.shape != (expected,):
            raise ValueError(f"gathered: the panels hold {expected} values, {list(self.values.shape)} given")
        _check_range("output_index", self.output_index, limit=n)
        if stored and int(self.output_index.bincount(minlength=n).max()) > 1:
            raise ValueError("gathered: output_index names an output twice")
        _check_range("kept_inputs", self.kept_inputs, limit=k)
        _check_ascending("kept_inputs", self.kept_inputs, restarts=self.tile_offsets[1:-1])


def width_unsupported_reason(tile: int, width: int) -> str | None:
    """Why CTA tiles of this width cannot be cut from tiles, or None."""
    if tile % width == 0 or width % tile == 0:
        return None
    return f"takes tiles that divide {width} or are multiples of it, not tiles of {tile} outputs"


def cut_into_cta_tiles(stored: GatheredFormat, width: int) -> tuple[Tensor, Tensor]:
    """Cut wide tiles into CTA tiles with the same list, or merge narrow ones and their lists.

    Outputs that are not stored form CTA tiles at the end that keep nothing, so that each output is in one CTA tile.

    Args:
        width: outputs per CTA tile; divides the tile or is a multiple of it.
    Returns:
        outputs, int32 [cta_tiles, width], padded with -1; the inputs they keep, bool [cta_tiles, K].
    Raises:
        ValueError: `width_unsupported_reason` rejects the width.
    """
    reason = width_unsupported_reason(stored.tile, width)
    if reason:
        raise ValueError(f"gathered: {reason}")
    outputs, keeps = in_rows(stored.output_index, width), stored.keeps
    if stored.tile >= width:
        keeps = keeps[torch.arange(len(outputs), device=stored.device) * width // stored.tile]
    else:
        together = width // stored.tile
        keeps = pad(keeps, (0, 0, 0, -len(keeps) % together)).view(-1, together, keeps.shape[1]).any(dim=1)
    outputs = torch.cat([outputs, in_rows(stored.dropped_outputs, width)])
    return outputs, pad(keeps, (0, 0, 0, len(outputs) - len(keeps)))


def in_rows(index: Tensor, length: int) -> Tensor:
    """[ceil(len / length), length], padded with -1."""
    return pad(index, (0, -index.numel() % length), value=-1).view(-1, length)


def _shared_inputs(mask: Tensor, tile: int, *, fill: bool) -> Tensor:
    """The inputs that each tile of rows keeps, bool [tiles, K]; ValueError if rows differ and `fill` is False."""
    rows, k = mask.shape
    tiles = -(-rows // tile)
    if rows == 0:
        return mask.new_zeros(0, k)
    padded = torch.cat([mask, mask[-1:].expand(tiles * tile - rows, k)]).view(tiles, tile, k)
    some = padded.any(dim=1)
    if fill:
        return some
    differing = (some & ~padded.all(dim=1)).sum(dim=1)
    if differing.any():
        worst = int(differing.argmax())
        raise ValueError(
            f"gathered: tile {worst} of {tiles} (tile = {tile} outputs) has {int(differing[worst])} inputs that only "
            f"some of its outputs keep; {int((differing > 0).sum())} tiles are like that"
        )
    return some


def _check_range(name: str, index: Tensor, *, limit: int) -> None:
    """Raise ValueError unless index lies in [0, limit)."""
    if index.numel() == 0:
        return
    low, high = int(index.min()), int(index.max())
    if low < 0 or high >= limit:
        raise ValueError(f"gathered: {name} must lie in [0, {limit}), found {low} to {high}")


def _check_ascending(name: str, index: Tensor, *, restarts: Tensor) -> None:
    """Raise ValueError unless index is ascending, except at the start of a list."""
    rises = index.diff() > 0
    starts = restarts[(restarts > 0) & (restarts < index.numel())]
    rises[starts - 1] = True
    if not rises.all():
        raise ValueError(f"gathered: {name} does not rise at position {int((~rises).nonzero()[0]) + 1}")
