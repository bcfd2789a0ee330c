"""The networks of a case: dense, as the thread ran it, and with the kernels of this project."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.sparse import SparseSemiStructuredTensor, to_sparse_semi_structured

import sparsefront as sf
from experiments.complaints.cases import Case
from sparsefront.measure.memory import resident_bytes


class Product(nn.Module):
    """y = x · weightᵀ + bias with a weight in one of PyTorch's sparse layouts."""

    def __init__(self, layer: nn.Linear, weight: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = weight, layer.bias

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.layout == torch.sparse_csr:
            return (self.weight @ x.t()).t() + self.bias
        return linear(x, self.weight, self.bias)


def dense_net(case: Case, device: torch.device) -> nn.Sequential:
    """Random weights, the same for a case at every call."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.device(device):
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(k, n) for k, n in case.layers)).to(case.dtype).eval().requires_grad_(False)


def masked_net(case: Case, net: nn.Sequential, inputs: tuple[Tensor]) -> tuple[nn.Sequential, sf.Masks]:
    """A copy, pruned, with its masks."""
    pruned = copy.deepcopy(net)
    masks = sf.prune(pruned, case.pattern, case.sparsity, layers=["*"], example_inputs=inputs, tell=lambda line: None)
    return pruned, masks


def as_in_the_thread(case: Case, masked: nn.Sequential) -> nn.Sequential:
    """The pruned network as PyTorch alone runs it, with the weights that it is given.

    Raises:
        RuntimeError, ValueError: PyTorch cannot, on this device or in this shape.
    """
    convert: dict[str, Callable[[Tensor], Tensor]] = {
        "semi_structured": to_sparse_semi_structured,
        "csr": Tensor.to_sparse_csr,
        "zeros": lambda weight: weight,
    }
    return nn.Sequential(*(Product(layer, convert[case.way](layer.weight)) for layer in masked)).eval()


def weight_bytes(net: nn.Module) -> int:
    """Of all that a network of a case holds on its device, each storage once; PyTorch's sparse layouts by their parts."""
    if not any(isinstance(module, Product) for module in net.modules()):
        return resident_bytes(net, next(net.parameters()).device)
    parts = [part for layer in net for part in (layer.bias, *_parts(layer.weight))]
    return sum({part.untyped_storage()._cdata: part.untyped_storage().nbytes() for part in parts}.values())


def _parts(weight: Tensor) -> list[Tensor]:
    if weight.layout == torch.sparse_csr:
        return [weight.values(), weight.col_indices(), weight.crow_indices()]
    if isinstance(weight, SparseSemiStructuredTensor):
        names, _ = weight.__tensor_flatten__()
        return [getattr(weight, name) for name in names]
    return [weight]
