"""Hidden features that pruning left without a weight vanish between two products."""

import math
from dataclasses import replace

import torch
from sparsefront_kernels import SparseFormat
from sparsefront_kernels.common.epilogue import ACTIVATIONS
from sparsefront_kernels.gathered import GatheredFormat
from torch import Tensor

from sparsefront.inference.fusion.product_weight import ProductWeight, outputs_in_tiles, remade, tiled

WORTH_IT = (
    1 / 8
)  # of the hidden features, that vanish: layers of one network then differ in shape, and each is tuned and timed anew
LISTED = (
    "gathered",
    "gathered_2_4",
    "blocked",
    "blocked_2_4",
)  # families with lists of inputs or blocks, which may lose some
ROUNDING = 16  # hidden features are kept in multiples of it: what a dense product needs for aligned rows


def compacted(up: ProductWeight, down: ProductWeight, activation: str) -> tuple[ProductWeight, ProductWeight] | None:
    """Both products without the hidden features that up has no weights for, or None where that changes little.

    Such a feature is the constant act(bias) for every row. Down multiplies it by a fixed weight, which goes into down's bias:
    b'[n] = b[n] + sum over pruned j of W[n, j] act(bias[j]), in float32.
    """
    if up.mask is None:
        return None
    unit = math.lcm(_block(up, 0), _block(down, 1))
    read = _in_units(up.mask.any(1), unit)
    kept = _with_rounding(read, unit)
    if (~kept).sum() < WORTH_IT * kept.numel():
        return None
    try:
        smaller_up, smaller_down = _rows(up, kept), _columns(down, kept, read)
    except ValueError:  # a format whose groups would be cut
        return None
    return smaller_up, replace(smaller_down, bias=folded_bias(down, _constants(up, activation), ~read))


def without_constants(value: ProductWeight, reader: ProductWeight) -> tuple[ProductWeight, int] | None:
    """The reader without the inputs that value, before attention, has no weights for, and their number.

    None where nothing changes.

    Their features stay in the tensor between, since heads have equal widths; the reader's lists of inputs lose them.
    """
    if value.mask is None or reader.family not in LISTED:
        return None
    read = _in_units(value.mask.any(1), _block(reader, 1))
    if not (reader.mask & ~read).any():
        return None
    try:
        lighter = _columns(reader, torch.ones_like(read), read)
    except ValueError:
        return None
    return replace(lighter, bias=folded_bias(reader, _constants(value, "none"), ~read)), int((~read).sum())


def folded_bias(down: ProductWeight, constants: Tensor, pruned: Tensor) -> Tensor:
    """down's bias plus what the pruned inputs, constant for every row, add to it: float32 [N] (or wider).

    Args:
        constants: [K], the value of each input; only those of pruned ones are read.
        pruned: bool [K].
    """
    wide = torch.promote_types(torch.float32, down.weight.dtype)
    added = down.weight[:, pruned].to(wide) @ constants[pruned].to(wide)
    return added if down.bias is None else added + down.bias.to(wide)


def _constants(up: ProductWeight, activation: str) -> Tensor:
    wide = torch.promote_types(torch.float32, up.weight.dtype)
    bias = up.weight.new_zeros(len(up.weight), dtype=wide) if up.bias is None else up.bias.to(wide)
    return ACTIVATIONS[activation](bias)


def _block(weight: ProductWeight, side: int) -> int:
    """Outputs (side 0) or inputs (side 1) of a block where the weight is stored in blocks, which must not be cut; else 1."""
    return weight.stored.block[side] if weight.family in ("blocked", "blocked_2_4") else 1


def _in_units(alive: Tensor, unit: int) -> Tensor:
    """The features of every unit in which one is alive."""
    if len(alive) % unit:
        return torch.ones_like(alive)
    return alive.view(-1, unit).any(1).repeat_interleave(unit)


def _with_rounding(read: Tensor, unit: int) -> Tensor:
    """The features that are read, and as many units of the others as make a multiple of ROUNDING, and at least one."""
    kept = read.clone()
    while not kept.all() and (not kept.any() or int(kept.sum()) % ROUNDING):
        first = int((~kept).nonzero()[0]) // unit * unit
        kept[first : first + unit] = True
    return kept


def _rows(up: ProductWeight, kept: Tensor) -> ProductWeight:
    weight, mask = up.weight[kept], up.mask[kept]
    bias = None if up.bias is None else up.bias[kept]
    stored = _stored_rows(up, weight, mask, kept)
    return replace(up, rows=(len(weight),), weight=weight, bias=bias, mask=mask, stored=stored)


def _stored_rows(up: ProductWeight, weight: Tensor, mask: Tensor, kept: Tensor) -> SparseFormat:
    if not isinstance(up.stored, GatheredFormat):
        return remade(up.stored, weight, mask)
    place = kept.cumsum(0) - 1  # of each kept output in the smaller weight
    inside = outputs_in_tiles(up.stored)
    if not kept[inside].all():
        raise ValueError("gathered: a tile would lose an output")
    order = place[inside]
    rest = torch.ones(len(weight), dtype=torch.bool, device=weight.device)
    rest[order] = False
    return tiled(up.stored, weight, mask, torch.cat([order, rest.nonzero().flatten()]))


def _columns(down: ProductWeight, kept: Tensor, read: Tensor) -> ProductWeight:
    """The kept columns; of these, those that are not read hold zeros."""
    weight = torch.where(read, down.weight, 0)[:, kept]
    if down.stored is None:
        return replace(down, weight=weight)
    mask = (down.mask & read)[:, kept]
    if isinstance(down.stored, GatheredFormat):
        stored = down.stored
        inside = outputs_in_tiles(stored)
        others = torch.ones(len(weight), dtype=torch.bool, device=weight.device)
        others[inside] = False
        made = tiled(stored, weight, mask, torch.cat([inside, others.nonzero().flatten()]))
    else:
        made = remade(down.stored, weight, mask)
    return replace(down, weight=weight, mask=mask, stored=made)
