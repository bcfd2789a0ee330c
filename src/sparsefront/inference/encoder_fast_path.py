"""PyTorch's fast path of encoder layers, which reads the weights of Linears and calls none of them."""

from itertools import accumulate

from sparsefront_kernels.sparse_layer import SparseLayer
from torch import nn


def leave_fast_path(net: nn.Module) -> None:
    """Make every encoder layer that holds a sparse layer call its parts in inference too, in place.

    The fast path is one operator on dense weights, for ReLU and GELU. It runs where the layer notes one of these in
    `activation_relu_or_gelu`, which nothing else reads.
    """
    for module in net.modules():
        if isinstance(module, nn.TransformerEncoderLayer) and _holds_sparse_layer(module):
            module.activation_relu_or_gelu = 0


def nested_tensor_reason(net: nn.Module, layer: str) -> str | None:
    """Why a layer needs the fast path, which alone reads the nested tensors that an encoder makes of padded inputs; or None."""
    for name in accumulate(layer.split(".")[:-1], "{}.{}".format, initial=""):
        encoder = net.get_submodule(name.removeprefix("."))
        if isinstance(encoder, nn.TransformerEncoder) and encoder.use_nested_tensor:
            return "its nn.TransformerEncoder makes nested tensors of padded inputs: build it with enable_nested_tensor=False"
    return None


def _holds_sparse_layer(module: nn.Module) -> bool:
    return any(isinstance(part, SparseLayer) for part in module.modules())
