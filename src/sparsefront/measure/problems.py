"""The product that each layer is really asked for: watched during one forward."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from sparsefront_kernels import Problem
from torch import Tensor, nn

from sparsefront.forward_calls import after_forward, first_argument
from sparsefront.measure.agreement import floating_tensors


@dataclass(frozen=True)
class LayerInput:
    """What reaches a layer in one forward.

    Args:
        problem: M, K, N, dtype and device; M = product of a Linear's leading dims, or output pixels of a convolution.
        input_shape: of the tensor that the module is called with.
    """

    problem: Problem
    input_shape: tuple[int, ...]


def observe_problems(net: nn.Module, inputs: dict[str, Tensor], layers: Iterable[str]) -> dict[str, LayerInput]:
    """Run the net once and note what its layers receive.

    Args:
        net: in eval mode, on the inputs' device and in the dtype that will be measured.
        inputs: keyword arguments of the net.
        layers: names of Linear and Conv2d modules.
    Returns:
        layer -> its largest call in this forward (a shared layer may be called more than once); a layer that is not
        called is absent.
    """
    seen: dict[str, LayerInput] = {}
    modules = {name: net.get_submodule(name) for name in layers}

    def note(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        received, weight = first_argument(args, kwargs), modules[name].weight
        n, k = weight.shape[0], weight[0].numel()
        m = floating_tensors(output)[0].numel() // n  # a subclass may give more beside its product
        if name not in seen or m > seen[name].problem.m:
            problem = Problem(m=m, k=k, n=n, dtype=received.dtype, device=received.device)
            seen[name] = LayerInput(problem, tuple(received.shape))

    with after_forward(modules, note), torch.inference_mode():
        net(**inputs)
    return seen


def theoretical_dense_flops(problem: Problem) -> int:
    """2 * M * K * N of Y[M, N] = X[M, K] W[N, K]^T; the bias is not counted. Computed, never measured."""
    return 2 * problem.m * problem.k * problem.n
