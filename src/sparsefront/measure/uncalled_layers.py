"""Products with the weights of layers that are not called: another module reads them, as `nn.MultiheadAttention` does."""

from collections.abc import Iterable
from typing import Any

import torch
from sparsefront_kernels import Problem
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
PRODUCTS = {
    aten.linear,
    aten.matmul,
    aten.mm,
    aten.addmm,
    aten.bmm,
    aten.conv2d,
    aten.convolution,
    aten._native_multi_head_attention,
}


class UncalledLayers(TorchDispatchMode):
    """While entered, notes the products with the weights of some layers.

    Args:
        net: whose forward runs meanwhile.
        layers: names of Linear and Conv2d modules that `observe_problems` has seen no call of.
    Attributes:
        problems: layer -> its largest product; a layer whose weight is in none, or only after a cast, is absent.
    """

    def __init__(self, net: nn.Module, layers: Iterable[str]) -> None:
        super().__init__()
        weights = {name: net.get_submodule(name).weight for name in layers}
        self._weights = {weight.untyped_storage().data_ptr(): (name, weight) for name, weight in weights.items()}
        self.problems: dict[str, Problem] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = function(*args, **(kwargs or {}))
        if function.overloadpacket in PRODUCTS:
            for read in (arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, Tensor)):
                if read in self._weights:
                    self._note(*self._weights[read], output if isinstance(output, Tensor) else output[0])
        return output

    def _note(self, name: str, weight: Tensor, output: Tensor) -> None:
        n, k = weight.shape[0], weight[0].numel()
        m = output.numel() // n
        if name not in self.problems or m > self.problems[name].m:
            self.problems[name] = Problem(m=m, k=k, n=n, dtype=weight.dtype, device=weight.device)
