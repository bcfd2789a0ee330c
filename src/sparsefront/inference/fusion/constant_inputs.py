"""Inputs of a product that are the same for every token, because the value projection before attention has no weights for them.

Attention mixes the values of tokens with weights that sum to one. An output of the value projection that pruning left without
weights is its bias for every token, so it is still that bias behind attention, wherever the feature then stands.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from sparsefront.inference.fusion.sites import ProductSite, is_feature_major

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
            known[node] = kept[node.target].detach().float().cpu()
        else:
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda part: _run(part, known, sizes, kept))
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
