"""Which sizes of its tensors an exported graph is right for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten

import sympy
import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from sparsefront.inference.fusion.call import Unfusable

SMALLEST_FREE = 2  # a size of 1 is a number in the graph, but for that of the batch


@dataclass(frozen=True)
class GraphSizes:
    """What a graph asks of the sizes of its tensors.

    Args:
        shapes: of each tensor; a size is a number where it is fixed and a name where it is free: sizes of one name are equal.
        limits: name -> the smallest and the largest size, None where there is no such limit.
    """

    shapes: tuple[tuple[int | str, ...], ...]
    limits: Mapping[str, tuple[int | None, int | None]]

    def allow(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the graph is right for these."""
        known: dict[str, int] = {}
        for shape, tensor in zip(self.shapes, tensors, strict=True):
            for wanted, size in zip(shape, tensor.shape, strict=True):
                if isinstance(wanted, int):
                    if size != wanted:
                        return False
                elif known.setdefault(wanted, size) != size:
                    return False
        for name, (smallest, largest) in self.limits.items():
            if smallest is not None and known[name] < smallest or largest is not None and known[name] > largest:
                return False
        return True


def graph_sizes(exported: torch.export.ExportedProgram) -> GraphSizes:
    """The sizes that an exported block is right for.

    Raises:
        Unfusable: its graph depends on sizes otherwise than by limits of each, as where a length is even, or above another.
    """
    inputs = set(exported.graph_signature.user_inputs)
    tensors = [node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder" and node.name in inputs]
    shapes = tuple(tuple(_size(size) for size in tensor.shape) for tensor in tensors)
    free = [size.node for tensor in tensors for size in tensor.shape if isinstance(size, torch.SymInt)]
    ranges = {str(symbol): found for symbol, found in exported.range_constraints.items()}
    if free:
        _require_limits_only(free[0].shape_env, exported.range_constraints, _places(shapes))
    names = {size for shape in shapes for size in shape if isinstance(size, str)}
    return GraphSizes(shapes, {name: limits for name in sorted(names) if any(limits := _limits(ranges[name]))})


def _size(size: int | torch.SymInt) -> int | str:
    expression = sympy.sympify(size.node.expr if isinstance(size, torch.SymInt) else size)
    if not (expression.is_Integer or expression.is_Symbol):
        raise Unfusable(f"needs a size that is a function of others ({expression})")
    return int(expression) if expression.is_Integer else str(expression)


def _limits(found: ValueRanges) -> tuple[int | None, int | None]:
    smallest = int(found.lower) if found.lower > SMALLEST_FREE else None
    return smallest, None if found.upper == int_oo else int(found.upper)


def _require_limits_only(env: ShapeEnv, ranges: Mapping[sympy.Symbol, ValueRanges], places: Mapping[str, str]) -> None:
    for guard in env.guards:
        condition = env.replace(guard.expr)
        if bound_sympy(condition, ranges).lower != sympy.true:
            names = {symbol: sympy.Symbol(places.get(str(symbol), str(symbol))) for symbol in condition.free_symbols}
            raise Unfusable(f"does something else unless {shorten(str(condition.xreplace(names)), 100)}")


def _places(shapes: Iterable[tuple[int | str, ...]]) -> dict[str, str]:
    """Name of a free size -> where it is found first."""
    places: dict[str, str] = {}
    for number, shape in enumerate(shapes):
        for dim, size in enumerate(shape):
            if isinstance(size, str):
                places.setdefault(size, f"tensor{number}.shape[{dim}]")
    return places
