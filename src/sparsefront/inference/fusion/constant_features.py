"""Fold features without weights, which are constant for every token, into the bias of the product that reads them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from sparsefront_kernels import SparseFormat
from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.blocked_2_4.format import Blocked24Format
from sparsefront_kernels.epilogue import ACTIVATIONS
from sparsefront_kernels.gathered.format import GatheredFormat
from torch import Tensor, fx

from sparsefront.inference.fusion.sites import (
    ProductSite,
    ProductWeight,
    complement,
    is_feature_major,
    outputs_in_tiles,
    read_name,
    rebuild,
    store_tiles,
)

# Constant features of the value projection.
#
# A fully pruned output of the value projection equals its bias for every token. Attention averages values over tokens with
# weights that sum to one, so that the feature still equals that bias after attention.

TOLERANCE = 1e-4
SIZES = (2, 3, 5, 7, 11)  # for the free sizes of a graph, in order of appearance


def value_projection(
    reader: ProductSite, sites: Iterable[ProductSite], kept: Mapping[str, Tensor]
) -> ProductSite | None:
    """The Linear whose output features reach the reader only averaged over tokens, not mixed with each other; or None.

    Found by running the operators in between on small random tensors: constant features must arrive unchanged and in
    order, and noise in some features must not affect others.

    Args:
        reader: a product after attention.
        sites: Linears of the block, not joined.
        kept: name -> parameters of the block outside of Linears.
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
        except Exception:  # operators that fail on small tensors are not known to preserve constants
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
    """Evaluate a node recursively; `known` caches results."""
    if node not in known:
        if node.op == "placeholder":
            value = node.meta["val"]
            known[node] = torch.ones(_shape(node, sizes), dtype=value.dtype)
            if value.is_floating_point():
                known[node].zero_()  # an additive mask that masks nothing, as a bool mask of ones
        elif node.op == "get_attr":
            known[node] = kept[read_name(node)].detach().float().cpu()
        else:
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda part: _run(part, known, sizes, kept))
            assert callable(node.target)
            known[node] = node.target(*args, **kwargs)
    return known[node]


def _shape(node: fx.Node, sizes: dict[str, int]) -> tuple[int, ...]:
    """The node's shape with numbers from SIZES for free sizes."""
    shape = []
    for size in node.meta["val"].shape:
        name = str(size)
        if not name.isdigit():
            sizes.setdefault(name, SIZES[len(sizes)])
        shape.append(int(name) if name.isdigit() else sizes[name])
    return tuple(shape)


def _linears_before(node: fx.Node) -> set[fx.Node]:
    """The nearest Linears upstream of a node."""
    linears: set[fx.Node] = set()
    seen: set[fx.Node] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        if current.target is torch.ops.aten.linear.default:
            linears.add(current)
        else:
            pending.extend(current.all_input_nodes)
    return linears


# Removal of hidden features without weights between two products.

# Smallest fraction of hidden features to remove: layers of one network then differ in shape, and each is tuned separately.
WORTH_IT = 1 / 8
# families with index lists of inputs or blocks, which can shrink
INDEXED_FAMILIES = ("gathered", "gathered_2_4", "blocked", "blocked_2_4")
ROUNDING = 16  # kept hidden features are a multiple of it, so that rows of a dense product are aligned


def compact_hidden(
    up: ProductWeight, down: ProductWeight, activation: str
) -> tuple[ProductWeight, ProductWeight] | None:
    """Remove hidden features for which up has no weights from both products; None where that changes little.

    Such a feature is the constant act(bias) for every row. Its contribution is added to down's bias:
    b'[n] = b[n] + sum over pruned j of W[n, j] act(bias[j]), in float32.
    """
    if up.mask is None:
        return None
    unit = math.lcm(_block(up, 0), _block(down, 1))
    read = _whole_units(up.mask.any(1), unit)
    keeps = _round_up(read, unit)
    if (~keeps).sum() < WORTH_IT * keeps.numel():
        return None
    try:
        smaller_up, smaller_down = _rows(up, keeps), _columns(down, keeps, read)
    except ValueError:  # groups of the format would be split
        return None
    return smaller_up, replace(smaller_down, bias=fold_bias(down, _constants(up, activation), ~read))


def drop_constant_inputs(value: ProductWeight, reader: ProductWeight) -> tuple[ProductWeight, int] | None:
    """The reader without inputs for which `value`, before attention, has no weights, and their number; None without any.

    The features stay in the tensor in between, since heads have equal widths; only the reader's index lists shrink.
    """
    if value.mask is None or reader.mask is None or reader.family not in INDEXED_FAMILIES:
        return None
    read = _whole_units(value.mask.any(1), _block(reader, 1))
    if not (reader.mask & ~read).any():
        return None
    try:
        lighter = _columns(reader, torch.ones_like(read), read)
    except ValueError:
        return None
    return replace(lighter, bias=fold_bias(reader, _constants(value, "none"), ~read)), int((~read).sum())


def fold_bias(down: ProductWeight, constants: Tensor, pruned: Tensor) -> Tensor:
    """down's bias plus the contribution of pruned inputs, which are constant for every row: float32 [N] (or wider).

    Args:
        constants: [K], the value of each input; only pruned ones are read.
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
    """Outputs (side 0) or inputs (side 1) per block if the weight is stored in blocks, which must stay whole; else 1."""
    return weight.stored.block[side] if isinstance(weight.stored, BlockedFormat | Blocked24Format) else 1


def _whole_units(alive: Tensor, unit: int) -> Tensor:
    """bool mask of all features in units of which any feature is alive."""
    if len(alive) % unit:
        return torch.ones_like(alive)
    return alive.view(-1, unit).any(1).repeat_interleave(unit)


def _round_up(read: Tensor, unit: int) -> Tensor:
    """The read features plus enough other units for a multiple of ROUNDING, and at least one unit."""
    keeps = read.cpu().clone()  # on a GPU each question would wait for it
    while not keeps.all() and (not keeps.any() or int(keeps.sum()) % ROUNDING):
        first = int((~keeps).nonzero()[0]) // unit * unit
        keeps[first : first + unit] = True
    return keeps.to(read.device)


def _rows(up: ProductWeight, kept: Tensor) -> ProductWeight:
    assert up.mask is not None and up.stored is not None  # the product is pruned
    weight, mask = up.weight[kept], up.mask[kept]
    bias = None if up.bias is None else up.bias[kept]
    stored = _store_rows(up.stored, weight, mask, kept)
    return replace(up, rows=(len(weight),), weight=weight, bias=bias, mask=mask, stored=stored)


def _store_rows(stored: SparseFormat, weight: Tensor, mask: Tensor, kept: Tensor) -> SparseFormat:
    if not isinstance(stored, GatheredFormat):
        return rebuild(stored, weight, mask)
    place = kept.cumsum(0) - 1  # of each kept output in the smaller weight
    inside = outputs_in_tiles(stored)
    if not kept[inside].all():
        raise ValueError("gathered: a tile would lose an output")
    order = place[inside]
    return store_tiles(stored, weight, mask, torch.cat([order, complement(order, len(weight))]))


def _columns(down: ProductWeight, kept: Tensor, read: Tensor) -> ProductWeight:
    """Select the kept columns; those that are not read become zero."""
    weight = torch.where(read, down.weight, 0)[:, kept]
    if down.stored is None or down.mask is None:
        return replace(down, weight=weight)
    mask = (down.mask & read)[:, kept]
    if not isinstance(down.stored, GatheredFormat):
        return replace(down, weight=weight, mask=mask, stored=rebuild(down.stored, weight, mask))
    inside = outputs_in_tiles(down.stored)
    order = torch.cat([inside, complement(inside, len(weight))])
    return replace(down, weight=weight, mask=mask, stored=store_tiles(down.stored, weight, mask, order))
