"""A block as a graph of ATen operators, for any batch and length."""

import copy
import logging
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim
from torch.utils import _pytree as pytree

from sparsefront.errors import failure_reason
from sparsefront.inference.fusion.attribute_reads import Attribute, attribute_reads
from sparsefront.inference.fusion.call import Unfusable, call_tensors, with_tensors
from sparsefront.inference.fusion.graph_sizes import GraphSizes, graph_sizes

aten = torch.ops.aten
IDENTITIES = (aten.alias.default, aten.detach.default, aten.detach_.default, aten.lift_fresh_copy.default)
OUT_OF_PLACE = {aten.relu_.default: aten.relu.default, aten.add_.Tensor: aten.add.Tensor}
# Their results share no memory with anything else.
FRESH = (aten.linear.default, aten.layer_norm.default, aten.add.Tensor, aten.relu.default)
CHECKS = ("_assert", "sym_constrain_range", "_guards_fn", "_check")


@dataclass(frozen=True)
class Captured:
    """One way of calling a block.

    Args:
        graph: placeholders are the tensors of `call_tensors`; parameters are `get_attr` nodes named as in the block. It
            has no dropout and no checks, and reshapes where the block views.
        out_spec: how its outputs are put together again.
        sizes: of its tensors, for which it is right.
        reads: attributes of the block's modules on which the graph may depend.
    """

    graph: fx.Graph
    out_spec: pytree.TreeSpec
    sizes: GraphSizes
    reads: frozenset[Attribute]


def skeleton(block: nn.Module) -> nn.Module:
    """The same module without weights: parameters and buffers are on the meta device."""
    tensors = [*block.parameters(), *block.buffers()]
    memo = {id(tensor): _on_meta(tensor) for tensor in tensors}
    return copy.deepcopy(block, memo)


def capture(bare: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Captured:
    """Export one way of calling a block; sizes of its tensors other than 1 stay free, as far as the block treats them alike.

    Args:
        bare: from `skeleton`, in eval mode.
        args, kwargs: of a call; shapes, dtypes and constants are read, no values.
    Raises:
        Unfusable: the block cannot be exported, or its graph holds what depends on the device, on values, or on sizes otherwise
            than `GraphSizes` can say.
    """
    tensors = [torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for tensor in _example(args, kwargs)]
    dynamic = (tuple(tuple(Dim.AUTO for _ in tensor.shape) for tensor in tensors),)
    try:
        with _silent(), torch.no_grad(), attribute_reads(bare) as reads:
            flat = _Flat(bare, args, kwargs)
            exported = torch.export.export(flat, tuple(tensors), dynamic_shapes=dynamic, strict=False)
            module = _module_of(exported)
    except Exception as error:  # export may fail in any way; the block then stays as it is
        raise Unfusable(f"cannot be exported: {failure_reason(error)}") from error
    sizes = graph_sizes(exported)
    if not sizes.allow(call_tensors(args, kwargs)):
        raise Unfusable("does something else for a batch of 1")
    graph = module.graph
    out_spec = exported.call_spec.out_spec
    graph.set_codegen(fx.graph.CodeGen())
    _simplify(graph)
    _require_dynamic(graph)
    return Captured(graph, out_spec, sizes, frozenset(reads))


class _Flat(nn.Module):
    """The block behind a list of tensors."""

    def __init__(self, block: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.block, self.args, self.kwargs = block, args, kwargs

    def forward(self, *tensors: Tensor) -> Any:
        args, kwargs = with_tensors(self.args, self.kwargs, tensors)
        return self.block(*args, **kwargs)


def _example(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    tensors = call_tensors(args, kwargs)
    if not tensors:
        raise Unfusable("is called without a tensor")
    if tensors[0].shape[0] == 1:  # a size of 1 would be taken for fixed
        tensors = [tensor.expand(2, *tensor.shape[1:]) if tensor.shape[0] == 1 else tensor for tensor in tensors]
    return tensors


def _on_meta(tensor: Tensor) -> Tensor:
    bare = torch.empty_like(tensor, device="meta")
    return nn.Parameter(bare, requires_grad=False) if isinstance(tensor, nn.Parameter) else bare


def _module_of(exported: torch.export.ExportedProgram) -> fx.GraphModule:
    try:
        return exported.module(check_guards=False)
    except TypeError:  # releases before the guards
        return exported.module()


@contextmanager
def _silent():
    """Export warns of every size of 1; no user can act on that."""
    logger = logging.getLogger("torch._export.non_strict_utils")
    level, logger.level = logger.level, logging.ERROR
    try:
        yield
    finally:
        logger.setLevel(level)


def _simplify(graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        if node.op in ("call_function", "call_module") and any(part in str(node.target) for part in CHECKS):
            graph.erase_node(node)
        elif node.target is aten.dropout.default and not node.args[2] or node.target in IDENTITIES:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.target is aten.view.default:
            node.target = aten.reshape.default  # a feature-major tensor may have no such view
        elif node.target in OUT_OF_PLACE and node.args[0].target in FRESH and len(node.args[0].users) == 1:
            node.target = OUT_OF_PLACE[node.target]
    graph.eliminate_dead_code()
    for node in graph.find_nodes(op="get_attr"):
        node.target = node.target.removeprefix("block.")


def _require_dynamic(graph: fx.Graph) -> None:
    for node in graph.nodes:
        devices = [value for value in (*node.args, *node.kwargs.values()) if isinstance(value, torch.device)]
        if devices:
            raise Unfusable(f"makes a tensor on a fixed device ({node.name})")
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            raise Unfusable(f"changes a tensor in place ({node.name})")
        if node.op == "get_attr" and "lifted_tensor" in node.target or node.op == "call_module":
            raise Unfusable(f"holds a constant that its graph cannot carry ({node.name})")
