"""Quantised activations inside a rewritten block: what one product hands over to the next, and what several read."""

import operator
from collections.abc import Mapping
from typing import Any

import torch
from sparsefront_kernels.quantized.quantize import Quantized, quantize, quantize_activated
from torch import Tensor, fx, nn

from sparsefront.inference.fusion.fused_product import FusedProduct
from sparsefront.inference.fusion.sites import ProductSite, hidden_pairs

aten = torch.ops.aten

# The first of two products quantises what it computes, in its epilogue or with its activation, where the second alone reads it.


class HandsOver(nn.Module):
    """A product whose result the next one reads quantised."""

    def __init__(self, product: FusedProduct) -> None:
        super().__init__()
        self.product = product

    def forward(self, x: Tensor | Quantized) -> Tensor | Quantized:
        """Values [..., N] with their scales; as they are where the product emulates its kernel."""
        return self.product(x) if self.product.emulates else self.product.for_next(x)


def handing_over(sites: Mapping[str, ProductSite], products: Mapping[str, FusedProduct]) -> dict[str, HandsOver]:
    """Name of each product that can quantise for the next one, which can read it -> the module to be called instead.

    Args:
        sites: name of the product -> its site in a graph.
        products: the same names.
    """
    names = {site.layers: name for name, site in sites.items()}
    pairs = [(names[up.layers], names[down.layers]) for up, down in hidden_pairs(sites.values())]
    return {
        up: HandsOver(products[up])
        for up, down in pairs
        if (scales := products[up].handed_over) is not None and products[down].takes(scales)
    }


# Products that read the same activation: it is quantised once. So is what attention gives, by our own kernel: nothing that a
# compiler could fuse with its quantisation comes before it.

VIEWS = (
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
    aten.transpose.int,
    aten.permute.default,
    aten.contiguous.default,
    aten.clone.default,
    operator.getitem,
)


class Quantizes(nn.Module):
    """[..., K] -> its values and scales, as a product would quantise it itself.

    Args:
        product: one of those that read it.
        alone: whether nothing could fuse with it.
    """

    def __init__(self, product: FusedProduct, *, alone: bool) -> None:
        super().__init__()
        self.precision, self.alone = product.precision, alone
        self.like = [product]  # in a list: it is no part of this module

    def forward(self, x: Tensor) -> Quantized:
        rows = self.like[0].entered(x.reshape(-1, x.shape[-1]))
        if isinstance(rows, Quantized):
            found = rows
        elif self.alone:
            found = quantize_activated(rows, "none", self.precision)
        else:
            found = quantize(rows, self.precision)
        return Quantized(found.values.view(x.shape), found.scales)


def product_of(module: nn.Module) -> FusedProduct | None:
    """The product of a module that a graph calls: itself, one that hands over, or one for which x is quantised."""
    if isinstance(module, HandsOver):
        return module.product
    if isinstance(module, Quantizes):
        return module.like[0]
    return module if isinstance(module, FusedProduct) else None


def place_quantizations(graph: fx.Graph, modules: Mapping[str, nn.Module]) -> dict[str, Quantizes]:
    """Quantise what several products in low precision read, and what one reads of attention, before the first of them.

    Args:
        graph: with calls of the products.
        modules: name of a product -> the module that is called.
    Returns:
        name of the module -> module, to be added to those of the graph.
    """
    readers: dict[Any, list[fx.Node]] = {}
    for node in graph.find_nodes(op="call_module"):
        product = modules.get(str(node.target))
        product = product.product if isinstance(product, HandsOver) else product
        if isinstance(product, FusedProduct) and product.precision != "none":
            readers.setdefault((node.args[0], product.precision, product.x_scale), []).append(node)
    added: dict[str, Quantizes] = {}
    for (x, *_), nodes in readers.items():
        first = modules[str(nodes[0].target)]
        alone = _is_attention(x)
        if (len(nodes) == 1 and not alone) or isinstance(modules.get(str(x.target)), HandsOver):
            continue
        name = f"quantize_{len(added)}"
        product = first.product if isinstance(first, HandsOver) else first
        added[name] = Quantizes(product, alone=alone)  # type: ignore[arg-type]
        with graph.inserting_before(nodes[0]):
            called = graph.call_module(name, (x,))
        for node in nodes:
            node.update_arg(0, called)
    return added


def _is_attention(node: fx.Node) -> bool:
    """Whether it is what scaled_dot_product_attention gives, seen otherwise."""
    while node.target in VIEWS:
        node = node.all_input_nodes[0]
    return "scaled_dot_product" in str(node.target)
