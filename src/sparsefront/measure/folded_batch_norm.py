"""BatchNorm behind a convolution, in eval mode, is a factor and a shift of each channel: both go into the convolution."""

import copy

import torch
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from sparsefront.measure.tracing import traced


class CannotFold(Exception):
    """A network has nothing to fold; the message says why."""


def fold_batch_norm(net: nn.Module) -> nn.Module:
    """A copy without the BatchNorms that alone read a convolution, dense or sparse; nn.Identity stands in their places.

    Args:
        net: in eval mode; left as it is.
    Raises:
        CannotFold, CannotTrace: with the reason.
    """
    if not any(isinstance(module, nn.BatchNorm2d) for module in net.modules()):
        raise CannotFold("the network has no BatchNorm2d")
    pairs = _pairs(traced(net), dict(net.named_modules()))
    if not pairs:
        raise CannotFold("no BatchNorm2d alone reads a convolution")
    folded = copy.deepcopy(net)
    for convolution, norm in pairs:
        folded.set_submodule(
            convolution, _folded(folded.get_submodule(convolution), folded.get_submodule(norm)), strict=True
        )
        folded.set_submodule(norm, nn.Identity(), strict=True)
    return folded


def _pairs(graph: fx.Graph, modules: dict[str, nn.Module]) -> list[tuple[str, str]]:
    """Names of convolutions and of the BatchNorms that alone read them; each is called once."""
    calls = [node for node in graph.nodes if node.op == "call_module"]
    targets = [node.target for node in calls]
    pairs = []
    for node in calls:
        norm, before = modules[node.target], node.args[0] if node.args else None
        if not (isinstance(norm, nn.BatchNorm2d) and norm.track_running_stats):
            continue
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) != 1:
            continue
        if not isinstance(modules[before.target], nn.Conv2d | SparseLayer):
            continue
        if targets.count(node.target) == targets.count(before.target) == 1:
            pairs.append((before.target, node.target))
    return pairs


@torch.no_grad()
def _folded(convolution: nn.Conv2d | SparseLayer, norm: nn.BatchNorm2d) -> nn.Module:
    if isinstance(convolution, nn.Conv2d):
        return fuse_conv_bn_eval(convolution, norm)
    scale = (norm.running_var.float() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.float()
    shift = -norm.running_mean.float() * scale
    if norm.bias is not None:
        shift = shift + norm.bias.float()
    return convolution.scaled(scale, shift)
