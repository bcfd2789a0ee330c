"""A network's forward as a graph in which sparse layers stay whole."""

from sparsefront_kernels.sparse_layer import SparseLayer
from torch import fx, nn

from sparsefront.errors import failure_reason


class CannotTrace(Exception):
    """A network whose forward is no graph of calls; the message says why."""


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, SparseLayer) or super().is_leaf_module(m, module_qualified_name)


def traced(net: nn.Module) -> fx.Graph:
    """Its calls of modules, functions and methods.

    Raises:
        CannotTrace: with the reason.
    """
    try:
        return _Tracer().trace(net)
    except Exception as error:  # a forward may do anything
        raise CannotTrace(f"its forward cannot be traced: {failure_reason(error)}") from error
