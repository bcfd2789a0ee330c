"""Hidden features between two products, in chunks of rows that stay in L2: memory is neither written nor read for them, but few
rows may not fill the GPU, and a copy joins the outputs of the chunks.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from sparsefront_kernels.quantized.quantize import Quantized
from torch import Tensor, fx, nn

from sparsefront.inference.fusion.fused_product import FusedProduct
from sparsefront.inference.fusion.placement import QuantizesOutput, product_of
from sparsefront.inference.fusion.sites import GATES

aten = torch.ops.aten
ROWS = 256  # of X: chunks are multiples of it, as are the kernels' tiles


class RowChunks(nn.Module):
    """Calls a part of a block's graph by chunks of rows.

    Args:
        part: X [M, K], and the residuals that there are, of M rows -> Y [M, N].
        rows: most rows of a chunk.
        feature_major: memory layout of Y.
    """

    def __init__(self, part: nn.Module, rows: int, *, feature_major: bool) -> None:
        super().__init__()
        self.part, self.rows, self.feature_major = part, rows, feature_major

    def forward(self, x: Tensor | Quantized, *residual: Tensor) -> Tensor:
        values, scales = (x, None) if isinstance(x, Tensor) else x
        m = values.numel() // values.shape[-1]
        if m <= self.rows or torch.compiler.is_exporting():  # an exported program takes any number of rows
            return self.part(x, *residual)
        step = math.ceil(m / math.ceil(m / self.rows) / ROWS) * ROWS
        flat, *added = (tensor.reshape(m, tensor.shape[-1]) for tensor in (values, *residual))
        outputs = []
        for first in range(0, m, step):
            chunk = slice(first, first + step)
            own: Tensor | Quantized = flat[chunk]
            if scales is not None:
                own = Quantized(flat[chunk], scales if len(scales) == 1 else scales[chunk])
            outputs.append(self.part(own, *(tensor[chunk] for tensor in added)))
        y = torch.cat([y.t() for y in outputs], dim=1).t() if self.feature_major else torch.cat(outputs)
        return y.view(*values.shape[:-1], y.shape[-1])

    def extra_repr(self) -> str:
        return f"rows={self.rows}"


def place_chunks(graph: fx.Graph, modules: Mapping[str, nn.Module], hidden_bytes: int) -> dict[str, RowChunks]:
    """Replace two products, of which the second alone reads the first, also gated, by a module that computes them in chunks.

    Args:
        graph: with everything else in place.
        modules: name -> module of the graph.
        hidden_bytes: most bytes of the first product's output in a chunk.
    Returns:
        name -> new module, to add to those of the graph.
    """
    placed: dict[str, RowChunks] = {}
    for result in graph.find_nodes(op="call_module"):
        down = modules.get(str(result.target))
        nodes = _hidden_part(result, modules) if isinstance(down, FusedProduct) else []
        if not nodes:
            continue
        up = modules[str(nodes[0].target)]
        product = product_of(up)
        assert product is not None and isinstance(down, FusedProduct)
        operands = tuple(dict.fromkeys((*nodes[0].args, *result.args[1:])))
        part = fx.Graph()
        copies: dict[Any, fx.Node] = {x: part.placeholder(f"x_{place}") for place, x in enumerate(operands)}
        for node in nodes:
            copies[node] = part.node_copy(node, copies.__getitem__)
        part.output(copies[result])
        name = f"in_chunks_{len(placed)}"
        width = product.format.dtype.itemsize
        if isinstance(up, QuantizesOutput):  # in its epilogue, or in another pass over 16 bits
            width = 1 if product.output_scales == "group128" else width + 1
        rows = max(1, hidden_bytes // (product.out_features * width * ROWS)) * ROWS
        body = fx.GraphModule(dict(modules), part)
        placed[name] = RowChunks(body, rows, feature_major=down.y_feature_major)
        with graph.inserting_before(result):
            called = graph.call_module(name, operands)
        called.meta = dict(result.meta)
        result.replace_all_uses_with(called)
        for node in reversed(nodes):
            graph.erase_node(node)
    return placed


def _hidden_part(result: fx.Node, modules: Mapping[str, nn.Module]) -> list[fx.Node]:
    """The product whose output only `result`, a product, reads, the operators in between, and `result`; or none."""

    def is_product(node: fx.Node) -> bool:
        return node.op == "call_module" and isinstance(modules.get(str(node.target)), FusedProduct | QuantizesOutput)

    between: list[fx.Node] = [result]
    ups: set[fx.Node] = set()
    for node in reversed(list(result.graph.nodes)):
        if node is result or not node.users or not all(user in between for user in node.users):
            continue
        if node in (result.args[0], *(x for inner in between[1:] for x in inner.all_input_nodes)):
            if is_product(node):
                ups.add(node)
            elif node.target in (*GATES, aten.mul.Tensor) or (node.target is aten.slice.Tensor and node.args[1] == -1):
                between.append(node)
    inputs, nodes = {x for inner in between[1:] for x in inner.all_input_nodes} | {result.args[0]}, ups | set(between)
    return [*ups, *reversed(between)] if len(ups) == 1 and inputs <= nodes and nodes.isdisjoint(result.args[1:]) else []
