"""torch.compile that lets other processes time while it traces and generates code, for seconds without the GPU."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from sparsefront.gpu_sharing.access import aside, sharing


def compile_unshared(net: nn.Module) -> Callable[..., Any]:
    """`torch.compile(net, dynamic=False)`, to be called once by `first_call`: it then uses the GPU, shared, no sooner than the
    generated code runs.
    """
    return torch.compile(net, dynamic=False, backend=_inductor)


def first_call(call: Callable[[], Any], device: torch.device) -> Any:
    """What a compiled network gives at its first call, in which its code is made, while other processes may time on the GPU."""
    with aside(device), warnings.catch_warnings():
        # torch 2.11 copies its own descriptions of outputs by a way that it calls deprecated
        warnings.filterwarnings(
            "ignore",
            message=r".isinstance\(treespec, LeafSpec\). is deprecated",
            category=FutureWarning,
            module="copyreg",
        )
        return call()


def _inductor(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    """The default backend. One function for all networks: Dynamo compiles again for another one."""
    from torch._inductor.compile_fx import compile_fx

    return _FirstRunShared(compile_fx(graph, inputs))


class _FirstRunShared:
    """The first run loads and tunes kernels; the later ones, which are timed, cost nothing more."""

    def __init__(self, compiled: Callable[..., Any]) -> None:
        self._compiled, self._ran = compiled, False

    def __call__(self, *values: Any) -> Any:
        if self._ran:
            return self._compiled(*values)
        tensors = (value for value in values if isinstance(value, Tensor))
        device = next((tensor.device for tensor in tensors if tensor.is_cuda), torch.device("cpu"))
        with sharing(device):
            found = self._compiled(*values)
        self._ran = True
        return found
