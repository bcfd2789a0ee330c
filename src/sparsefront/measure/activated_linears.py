"""Dense Linears with the activation after them in the product's epilogue: a part of variant `fused_epilogue`.

A compiler leaves an exact GELU as a pass of its own: of BERT-large in fp16 on an H200 it is an eighth of a layer's time.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from sparsefront_kernels import KernelEntry, Problem, entries
from sparsefront_kernels.dense.cublaslt import FUSED, KERNEL
from sparsefront_kernels.dense.format import DenseFormat
from sparsefront_kernels.epilogue import ACTIVATIONS
from sparsefront_kernels.linear import SparseLinear
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from sparsefront.errors import failure_reason
from sparsefront.measure.correctness import CorrectnessCheck
from sparsefront.measure.timers import time_layer
from sparsefront.networks import after_forward, before_forward, first_argument, has_forward_hooks


class ActivatedLinear(SparseLinear):
    """[..., K] -> [..., N]: activation(x · Wᵀ + bias) by a dense kernel that fuses the activation."""

    def __init__(self, entry: KernelEntry, linear: nn.Linear, activation: str) -> None:
        weight = linear.weight.detach()
        super().__init__(entry, DenseFormat((weight.shape[0], weight.shape[1]), weight), linear.bias)
        self.activation = activation

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation}"


def epilogue_kernels(activation: str, *, bias: bool) -> list[KernelEntry]:
    """Dense 16-bit kernels that compute this activation with the product, a library's first."""
    kernels = [kernel for kernel in entries() if kernel.family == "dense" and kernel.fuses_epilogue]
    return [kernel for kernel in kernels if kernel.name != KERNEL or (bias and activation in FUSED)]


@dataclass(frozen=True)
class Activated:
    """An activation module that reads nothing but outputs of Linears, which nothing else reads.

    Args:
        places: all names of the module in the network.
        module: the activation.
        activation: its name in the kernels' `ACTIVATIONS`.
        linears: names of the Linears -> shape of their input.
    """

    places: list[str]
    module: nn.Module
    activation: str
    linears: dict[str, torch.Size]


class _Watch(TorchFunctionMode):
    """Records in a forward pass who reads the outputs of Linears: modules without tensors, or functions outside of these."""

    def __init__(self) -> None:
        super().__init__()
        # Linear -> shape of its input, for each call; id of its output -> its name, the output, kept alive, and its version
        self.calls: dict[str, list[torch.Size]] = defaultdict(list)
        self.outputs: dict[int, tuple[str, Tensor, int]] = {}
        self.reads: dict[str, list[str | None]] = defaultdict(list)  # leaf -> the Linears whose outputs it reads
        self.read_elsewhere: set[str] = set()
        self._inside = False

    def after_linear(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        self.calls[name].append(first_argument(args, kwargs).shape)
        self.outputs[id(output)] = name, output, output._version

    def before_leaf(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.reads[name].append(next(iter(self._read((*args, *kwargs.values())[:1])), None))
        self._inside = True

    def after_leaf(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self._inside = False

    def __torch_function__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        read = [] if self._inside else self._read((args, kwargs))
        output = function(*args, **(kwargs or {}))
        if read and any(isinstance(one, Tensor) for one in pytree.tree_leaves(output)):  # else a size, or the like
            self.read_elsewhere.update(read)
        return output

    def _read(self, arguments: Any) -> list[str]:
        """The Linears whose outputs are among these arguments, as they gave them."""
        outputs = (self.outputs.get(id(one)) for one in pytree.tree_leaves(arguments))
        return [one[0] for one in outputs if one is not None and one[1]._version == one[2]]


def find_activated(net: nn.Module, linears: Mapping[str, nn.Module], inputs: dict[str, Tensor]) -> list[Activated]:
    """The activation modules that one forward pass calls on outputs of these Linears, each called once, and on nothing else."""
    places: dict[nn.Module, list[str]] = defaultdict(list)
    for name, module in net.named_modules(remove_duplicate=False):
        places[module].append(name)
    leaves = {names[0]: module for module, names in places.items() if _is_leaf(module)}
    watch = _Watch()
    hooks = after_forward(linears, watch.after_linear), before_forward(leaves, watch.before_leaf)
    # outside of inference mode, whose tensors have no version counter
    with hooks[0], hooks[1], after_forward(leaves, watch.after_leaf), torch.inference_mode(False), torch.no_grad():
        clones = {name: value.clone() if isinstance(value, Tensor) else value for name, value in inputs.items()}
        with watch:
            net(**clones)
    activated, reads_of = [], Counter(chain.from_iterable(watch.reads.values()))
    for name, reads in watch.reads.items():
        of_linears = {
            linear: watch.calls[linear][0]
            for linear in reads
            if linear is not None and len(watch.calls[linear]) == reads_of[linear] == 1
        }
        alone = len(of_linears) == len(reads) and not of_linears.keys() & watch.read_elsewhere
        activation = name_activation(leaves[name]) if alone else None
        if activation is not None:
            activated.append(Activated(places[leaves[name]], leaves[name], activation, of_linears))
    return activated


def _is_leaf(module: nn.Module) -> bool:
    parts = chain(module.children(), module.parameters(), module.buffers())
    return next(parts, None) is None and not has_forward_hooks(module)


@torch.no_grad()
def name_activation(module: nn.Module) -> str | None:
    """The name in `ACTIVATIONS` of the function that a module without tensors computes, found by its values; None: another."""
    large = torch.logspace(1, 4.8, 48, dtype=torch.float64)  # up to the range of float16: some clip what is large
    x = torch.cat([-large, torch.linspace(-10, 10, 4000, dtype=torch.float64), large]).view(8, -1)
    try:
        y = module(x.clone())
    except Exception:  # a module that is no function of one tensor
        return None
    if not isinstance(y, Tensor) or (y.shape, y.dtype) != (x.shape, x.dtype):
        return None
    # the two forms of GELU differ by up to 5e-4
    equal = (name for name, of in ACTIVATIONS.items() if name != "none" and torch.allclose(y, of(x), 1e-6, 1e-6))
    return next(equal, None)


def fuse_faster(
    activated: list[Activated], linears: Mapping[str, nn.Linear]
) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Replacements where a fused kernel is faster than cuBLAS and the activation after it, at the real shape.

    Returns:
        name in the network -> the fused layer, or nn.Identity for the activation; and kernel -> why it was not used.
    """
    replacements: dict[str, nn.Module] = {}
    reasons: dict[str, str] = {}
    fastest: dict[tuple[Any, ...], KernelEntry | None] = {}  # of Linears that are alike
    for one in activated:
        fused: dict[str, nn.Module] = {}
        for name, shape in one.linears.items():
            linear, rows = linears[name], math.prod(shape[:-1])
            key = (rows, linear.weight.shape, linear.weight.dtype, linear.bias is not None, one.activation)
            if key not in fastest:
                fastest[key] = _find_fastest(linear, rows, one, reasons)
            kernel = fastest[key]
            if kernel is not None:
                fused[name] = ActivatedLinear(kernel, linear, one.activation)
        if fused.keys() == one.linears.keys():
            replacements |= fused | {place: nn.Identity() for place in one.places}
    return replacements, reasons


def _find_fastest(linear: nn.Linear, rows: int, one: Activated, reasons: dict[str, str]) -> KernelEntry | None:
    """The fastest correct kernel; None where the two passes are faster. Adds why others are not used to `reasons`."""
    weight, best, best_us = linear.weight, None, math.inf
    (n, k), stored = weight.shape, DenseFormat((weight.shape[0], weight.shape[1]), weight.detach())
    check = CorrectnessCheck(linear, (rows, k), activation=one.activation)
    problem = Problem(rows, k, n, weight.dtype, weight.device)
    for kernel in epilogue_kernels(one.activation, bias=linear.bias is not None):
        reason = kernel.unsupported_reason(stored, problem)
        if reason is None:
            if math.isinf(best_us):
                best_us = time_layer(nn.Sequential(linear, one.module), check.x).latency_us
            try:
                layer = ActivatedLinear(kernel, linear, one.activation)
                _, reason = check.evaluate(layer)
                if reason is None:
                    time_us = time_layer(layer, check.x, check=check.evaluate).latency_us
                    reason = f"{time_us:.1f} us for [{rows}, {k}] x [{n}, {k}], another takes {best_us:.1f} us"
                    if time_us < best_us:
                        best, best_us, reason = kernel, time_us, None
            except Exception as error:  # a kernel may fail in any way; others remain
                reason = failure_reason(error)
        if reason is not None:
            reasons[kernel.name] = reason
    return best
