"""Features that are constant, since pruning left them no weight: they go into the bias of the product that reads them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from sparsefront_kernels import SparseFormat
from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.blocked_2_4.format import Blocked24Format
from sparsefront_kernels.common.epilogue import ACTIVATIONS
from sparsefront_kernels.gathered.format import GatheredFormat
from torch import Tensor, fx

from sparsefront.inference.fusion.sites import (
    ProductSite,
    ProductWeight,
    is_feature_major,
    outputs_in_tiles,
    read_name,
    remade,
    tiled,
)

# Inputs of a product that are the same for every token, because the value projection before attention has no weights
# for them.
#
# Attention mixes the values of tokens with weights that sum to one. An output of the value projection that pruning
# left without weights is its bias for every token, so it is still that bias behind attention, wherever the feature
# then stands.

TOLERANCE = 1e-4
SIZES = (2, 3, 5, 7, 11)  # for the free sizes of a graph, in the order in which they appear


def value_projection(
    reader: ProductSite, sites: Iterable[ProductSite], kept: Mapping[str, Tensor]
) -> ProductSite | None:
    """The Linear whose features reach the reader unmixed and averaged over tokens, or None.

    Found by running what lies between on small random tensors: constant features have to arrive as they are, in order, and
    noise in some features must not reach others.

    Args:
        reader: a product behind attention.
        sites: Linears of the block, each its own site.
        kept: parameters of the block that are no Linear's, by name.
    """
    if len(reader.layers) != 1 or is_feature_major(reader.x):
        return None
    before = _linears_before(reader.x)
    for site in sites:
        linear = site.linears[0]
        if linear not in before or site.out is not linear:
            continue
        try:
            if _passes_constants(reader.x, linear, before, kept):
                return site
        except Exception:  # whatever cannot be run on small tensors is not known to pass constants
            continue
    return None


def _passes_constants(end: fx.Node, value: fx.Node, linears: set[fx.Node], kept: Mapping[str, Tensor]) -> bool:
    generator = torch.Generator().manual_seed(0)
    sizes: dict[str, int] = {}
    known = {
        node: torch.randn(_shape(node, sizes), generator=generator)
        for node in sorted(linears, key=lambda node: node.name)
    }
    features = known[value].shape[-1]
    known[value] = torch.arange(1.0, features + 1).expand(known[value].shape)
    constant = torch.arange(1.0, features + 1)
    arrived = _run(end, dict(known), sizes, kept)
    if arrived.shape[-1] != features or not torch.allclose(arrived, constant.expand(arrived.shape), rtol=TOLERANCE):
        return False
    noisy = torch.rand(features, generator=generator) < 0.5
    known[value] = torch.where(noisy, torch.randn(known[value].shape, generator=generator), known[value])
    arrived = _run(end, dict(known), sizes, kept)[..., ~noisy]
    return torch.allclose(arrived, constant[~noisy].expand(arrived.shape), rtol=TOLERANCE)


def _run(node: fx.Node, known: dict[fx.Node, Any], sizes: dict[str, int], kept: Mapping[str, Tensor]) -> Any:
    """What the node computes, from the results of those that are known."""
    if node not in known:
        if node.op == "placeholder":
            value = node.meta["val"]
            known[node] = torch.ones(_shape(node, sizes), dtype=value.dtype)
            if value.is_floating_point():
                known[node].zero_()  # an additive mask that hides nothing; a mask of bools shows everything
        elif node.op == "get_attr":
            known[node] = kept[read_name(node)].detach().float().cpu()
        else:
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda part: _run(part, known, sizes, kept))
            assert callable(node.target)
            known[node] = node.target(*args, **kwargs)
    return known[node]


def _shape(node: fx.Node, sizes: dict[str, int]) -> tuple[int, ...]:
    """The node's shape with a number for each free size."""
    shape = []
    for size in node.meta["val"].shape:
        name = str(size)
        if not name.isdigit():
            sizes.setdefault(name, SIZES[len(sizes)])
        shape.append(int(name) if name.isdigit() else sizes[name])
    return tuple(shape)


def _linears_before(node: fx.Node) -> set[fx.Node]:
    """The Linears nearest before a node."""
    found: set[fx.Node] = set()
    seen: set[fx.Node] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        if current.target is torch.ops.aten.linear.default:
            found.add(current)
        else:
            pending.extend(current.all_input_nodes)
    return found


# Hidden features that pruning left without a weight vanish between two products.

# Of the hidden features, that vanish: layers of one network then differ in shape, and each is tuned and timed anew.
WORTH_IT = 1 / 8
LISTED = ("gathered", "gathered_2_4", "blocked", "blocked_2_4")  # with lists of inputs or blocks, which may lose some
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
    if value.mask is None or reader.mask is None or reader.family not in LISTED:
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
    return weight.stored.block[side] if isinstance(weight.stored, BlockedFormat | Blocked24Format) else 1


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
    assert up.mask is not None and up.stored is not None  # of a product that is pruned
    weight, mask = up.weight[kept], up.mask[kept]
    bias = None if up.bias is None else up.bias[kept]
    stored = _stored_rows(up.stored, weight, mask, kept)
    return replace(up, rows=(len(weight),), weight=weight, bias=bias, mask=mask, stored=stored)


def _stored_rows(stored: SparseFormat, weight: Tensor, mask: Tensor, kept: Tensor) -> SparseFormat:
    if not isinstance(stored, GatheredFormat):
        return remade(stored, weight, mask)
    place = kept.cumsum(0) - 1  # of each kept output in the smaller weight
    inside = outputs_in_tiles(stored)
    if not kept[inside].all():
        raise ValueError("gathered: a tile would lose an output")
    order = place[inside]
    rest = torch.ones(len(weight), dtype=torch.bool, device=weight.device)
    rest[order] = False
    return tiled(stored, weight, mask, torch.cat([order, rest.nonzero().flatten()]))


def _columns(down: ProductWeight, kept: Tensor, read: Tensor) -> ProductWeight:
    """The kept columns; of these, those that are not read hold zeros."""
    weight = torch.where(read, down.weight, 0)[:, kept]
    if down.stored is None or down.mask is None:
        return replace(down, weight=weight)
    mask = (down.mask & read)[:, kept]
    made: SparseFormat
    if isinstance(down.stored, GatheredFormat):
        stored = down.stored
        inside = outputs_in_tiles(stored)
        others = torch.ones(len(weight), dtype=torch.bool, device=weight.device)
        others[inside] = False
        made = tiled(stored, weight, mask, torch.cat([inside, others.nonzero().flatten()]))
    else:
        made = remade(down.stored, weight, mask)
    return replace(down, weight=weight, mask=mask, stored=made)
