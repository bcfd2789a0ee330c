"""Quantized activations inside a rewritten block: quantized once, by the product before them or for all their readers."""

import operator
from collections.abc import Mapping
from typing import Any

import torch
from sparsefront_kernels.quantized.quantize import Quantized, quantize, quantize_activated
from torch import Tensor, fx, nn

from sparsefront.inference.fusion.fused_product import FusedProduct
from sparsefront.inference.fusion.sites import ProductSite, hidden_pairs

aten = torch.ops.aten

# A product quantizes its output, in its epilogue or with its activation, if only one low-precision product reads it.


class QuantizesOutput(nn.Module):
    """A product that quantizes its output for the next one."""

    def __init__(self, product: FusedProduct) -> None:
        super().__init__()
        self.product = product

    def forward(self, x: Tensor | Quantized) -> Tensor | Quantized:
        """Quantized values [..., N] with their scales; unquantized where the product emulates its kernel."""
        return self.product(x) if self.product.emulates else self.product.quantized_output(x)


def quantizing_producers(
    sites: Mapping[str, ProductSite], products: Mapping[str, FusedProduct]
) -> dict[str, QuantizesOutput]:
    """Name of each product whose quantized output the next product accepts -> the module to call instead.

    Args:
        sites: name of the product -> its site in a graph.
        products: the same names -> products.
    """
    names = {site.layers: name for name, site in sites.items()}
    pairs = [(names[up.layers], names[down.layers]) for up, down in hidden_pairs(sites.values())]
    return {
        up: QuantizesOutput(products[up])
        for up, down in pairs
        if (scales := products[up].output_scales) is not None and products[down].takes(scales)
    }


# An activation that several products read is quantized once. Attention's output is quantized by our own kernel, since a compiler
# has nothing before it to fuse the quantization with.

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
    """Quantizes [..., K] as a product that reads it would.

    Args:
        product: one of its readers.
        alone: whether a compiler has nothing to fuse it with.
    """

    def __init__(self, product: FusedProduct, *, alone: bool) -> None:
        super().__init__()
        self.precision, self.alone = product.precision, alone
        self.like = [product]  # in a list, so that it is not registered as a submodule

    def forward(self, x: Tensor) -> Quantized:
        rows = self.like[0].entered(x.reshape(-1, x.shape[-1]))
        if isinstance(rows, Quantized):
            quantized = rows
        elif self.alone:
            quantized = quantize_activated(rows, "none", self.precision)
        else:
            quantized = quantize(rows, self.precision)
        return Quantized(quantized.values.view(x.shape), quantized.scales)


def product_of(module: nn.Module) -> FusedProduct | None:
    """The product behind a module of a graph: itself, or that of a `QuantizesOutput` or `Quantizes`."""
    if isinstance(module, QuantizesOutput):
        return module.product
    if isinstance(module, Quantizes):
        return module.like[0]
    return module if isinstance(module, FusedProduct) else None


def place_quantizations(graph: fx.Graph, modules: Mapping[str, nn.Module]) -> dict[str, Quantizes]:
    """Insert quantizations of activations that several low-precision products read, and of attention's output.

    Args:
        graph: with calls of the products.
        modules: name of a product -> the module that is called.
    Returns:
        name -> new module, to add to those of the graph.
    """
    readers: dict[Any, list[fx.Node]] = {}
    for node in graph.find_nodes(op="call_module"):
        product = modules.get(str(node.target))
        product = product.product if isinstance(product, QuantizesOutput) else product
        if isinstance(product, FusedProduct) and product.precision != "none":
            readers.setdefault((node.args[0], product.precision, product.x_scale), []).append(node)
    added: dict[str, Quantizes] = {}
    for (x, *_), nodes in readers.items():
        first = modules[str(nodes[0].target)]
        alone = _is_attention(x)
        if (len(nodes) == 1 and not alone) or isinstance(modules.get(str(x.target)), QuantizesOutput):
            continue
        name = f"quantize_{len(added)}"
        product = first.product if isinstance(first, QuantizesOutput) else first
        added[name] = Quantizes(product, alone=alone)  # type: ignore[arg-type]
        with graph.inserting_before(nodes[0]):
            called = graph.call_module(name, (x,))
        for node in nodes:
            node.update_arg(0, called)
    return added


def _is_attention(node: fx.Node) -> bool:
    """Whether a node is the output of scaled_dot_product_attention, or a view of it."""
    while node.target in VIEWS:
        node = node.all_input_nodes[0]
    return "scaled_dot_product" in str(node.target)
