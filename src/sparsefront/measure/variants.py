"""Other forms of a network that give the same outputs, so that the fastest dense one is the baseline.

    folded_batch_norm    BatchNorm behind a convolution goes into its weights
    fused_epilogue       ReLU and the sum with a shortcut go into the sparse convolution before them
    patch_product        convolutions that cut an image into patches as one product
    fused_qkv            Linear layers that read the same tensor as one product
    channels_last        activations and filters of convolutions with the channels last in memory
    fused_graph          our own fused graph with every layer dense, where the caller has one
    sdpa_flash, sdpa_cudnn, sdpa_efficient  PyTorch's attention on that backend only

Dense and sparse networks are given the same ones, where they apply.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sparsefront.measure.attention_backend import BACKENDS, WithAttentionBackend, unsupported_reason
from sparsefront.measure.folded_batch_norm import CannotFold, fold_batch_norm
from sparsefront.measure.fused_epilogue import NothingToFuse, fuse_epilogues
from sparsefront.measure.fused_linears import fuse_linears
from sparsefront.measure.patch_product import CutsNoPatches, patch_products
from sparsefront.measure.tracing import CannotTrace

FUSED_GRAPH, PATCH_PRODUCT = "fused_graph", "patch_product"
VARIANTS = ("folded_batch_norm", "fused_epilogue", PATCH_PRODUCT, "fused_qkv", "channels_last", FUSED_GRAPH, *BACKENDS)

_REWRITTEN = {"folded_batch_norm": fold_batch_norm, "fused_epilogue": fuse_epilogues, PATCH_PRODUCT: patch_products}

# (network, inputs of one forward pass) -> its fused graph; the network stays as it is; may raise DoesNotApply
Fuse = Callable[[nn.Module, dict[str, Tensor]], nn.Module]


class DoesNotApply(Exception):
    """A variant has nothing to change in a network, or cannot run here; the message says why."""


def make_variant(name: str, net: nn.Module, inputs: dict[str, Tensor], *, fuse: Fuse | None = None) -> nn.Module:
    """The variant of a network, which is left as it is.

    Args:
        name: one of VARIANTS.
        net: in eval mode, on the inputs' device.
        inputs: keyword arguments of one forward pass.
        fuse: makes the fused graph.
    Raises:
        DoesNotApply: with the reason.
    """
    if name == FUSED_GRAPH:
        if fuse is None:
            raise DoesNotApply("no fused graph of this network")
        return fuse(net, inputs)
    if name in BACKENDS:
        if next(iter(inputs.values())).device.type != "cuda":
            raise DoesNotApply("needs a CUDA device")
        if (reason := unsupported_reason(net, inputs, name)) is not None:
            raise DoesNotApply(reason)
        return WithAttentionBackend(net, BACKENDS[name]).eval()
    if name in _REWRITTEN:
        return _rewritten(name, net)
    return _fused_qkv(net, inputs) if name == "fused_qkv" else _channels_last(net)


def _rewritten(name: str, net: nn.Module) -> nn.Module:
    try:
        return _REWRITTEN[name](net)
    except (CannotFold, CannotTrace, CutsNoPatches, NothingToFuse) as reason:
        raise DoesNotApply(str(reason)) from reason


def _fused_qkv(net: nn.Module, inputs: dict[str, Tensor]) -> nn.Module:
    fused = fuse_linears(net, **inputs)
    if fused is None:
        raise DoesNotApply("no two Linear layers read the same tensor")
    return fused


def _channels_last(net: nn.Module) -> nn.Module:
    """Filters [C_out, kh, kw, C_in] in memory; the activations follow from the first convolution on."""
    if sum(isinstance(module, nn.Conv2d) for module in net.modules()) < 2:  # a lone one only cuts patches
        raise DoesNotApply("the network has fewer than two convolutions")
    return copy.deepcopy(net).to(memory_format=torch.channels_last)
