"""Linear layers that read the same tensor, computed as one product: Q, K and V of an attention for one."""

import copy
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import Tensor, nn

from sparsefront.forward_calls import before_forward, first_argument
from sparsefront.forward_hooks import has_forward_hooks


class FusedLinears(nn.Module):
    """One weight [N1 + N2 + ..., K] for several Linear layers; the first one called multiplies, the others take slices.

    Args:
        linears: layers of the same K, dtype and device, in the order in which the network calls them.
    """

    def __init__(self, linears: list[nn.Linear]) -> None:
        super().__init__()
        self.sizes = [linear.out_features for linear in linears]
        weight = torch.cat([linear.weight.detach() for linear in linears])
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None
        if any(linear.bias is not None for linear in linears):
            biases = [
                weight.new_zeros(n) if linear.bias is None else linear.bias for n, linear in zip(self.sizes, linears)
            ]
            self.bias = nn.Parameter(torch.cat([bias.detach() for bias in biases]), requires_grad=False)
        self._input: Tensor | None = None
        self._outputs: tuple[Tensor, ...] = ()

    def part(self, x: Tensor, index: int) -> Tensor:
        """What layer `index` gives for x [..., K]: [..., N of the layer], a slice of the common product.

        A call with another tensor than the first layer's is multiplied on its own, so the result never depends on the
        order of the calls.
        """
        if index == 0:
            self._input, self._outputs = x, F.linear(x, self.weight, self.bias).split(self.sizes, dim=-1)
        elif x is not self._input:
            start, size = sum(self.sizes[:index]), self.sizes[index]
            bias = None if self.bias is None else self.bias.narrow(0, start, size)
            return F.linear(x, self.weight.narrow(0, start, size), bias)
        output = self._outputs[index]
        if index == len(self.sizes) - 1:  # nothing outlives the forward pass
            self._input, self._outputs = None, ()
        return output


class FusedPart(nn.Module):
    """One of the layers of a `FusedLinears`, at its place in the network."""

    def __init__(self, fused: FusedLinears, index: int) -> None:
        super().__init__()
        self.fused, self.index = fused, index

    def forward(self, input: Tensor) -> Tensor:
        """`input` is called as nn.Linear calls it."""
        return self.fused.part(input, self.index)


def fuse_linears(net: nn.Module, /, *args: Any, **inputs: Any) -> nn.Module | None:
    """A network with the same outputs in which Linear layers that read the same tensor are one product.

    Args:
        net: in eval mode; left as it is, all other parameters are shared with it.
        args, inputs: arguments of one forward pass, in which the layers are watched.
    Returns:
        None where no two layers read the same tensor.
    """
    groups = shared_input_linears(net, *args, **inputs)
    if not groups:
        return None
    fused_net = copy_sharing_weights(net)
    for names in groups:
        fused = FusedLinears([net.get_submodule(name) for name in names])
        for index, name in enumerate(names):
            fused_net.set_submodule(name, FusedPart(fused, index))
    return fused_net.eval()


@dataclass(frozen=True)
class _Call:
    name: str
    x: Tensor  # held, so that no later tensor gets its identity
    version: int


def shared_input_linears(net: nn.Module, /, *args: Any, **inputs: Any) -> list[list[str]]:
    """Names of Linear layers that one forward pass calls once each with the same unchanged tensor, in call order."""
    calls: list[_Call] = []
    linears = {name: module for name, module in net.named_modules() if _is_plain(module)}
    # outside of inference mode, whose tensors do not count their changes
    with before_forward(linears, partial(_note, calls)), torch.inference_mode(False), torch.no_grad():
        net(*map(_cloned, args), **{name: _cloned(value) for name, value in inputs.items()})
    names = [call.name for call in calls]
    groups: dict[tuple[Any, ...], list[str]] = {}
    for call in calls:
        if names.count(call.name) == 1:
            weight = linears[call.name].weight
            groups.setdefault((id(call.x), call.version, weight.dtype, weight.device), []).append(call.name)
    return [group for group in groups.values() if len(group) > 1]


def copy_sharing_weights(net: nn.Module) -> nn.Module:
    """The network's modules copied, its parameters, buffers and compressed layers shared."""
    shared = chain(
        net.parameters(), net.buffers(), (module for module in net.modules() if isinstance(module, SparseLayer))
    )
    return copy.deepcopy(net, {id(part): part for part in shared})


def _cloned(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _is_plain(module: nn.Module) -> bool:
    """A Linear that does nothing but its product: no subclass, no parametrization, no hooks."""
    return type(module) is nn.Linear and not has_forward_hooks(module)


def _note(calls: list[_Call], name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    x = first_argument(arguments, keywords)
    calls.append(_Call(name, x, x._version))
