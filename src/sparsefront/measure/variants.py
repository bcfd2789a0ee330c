"""Variants: rewrites of a network with the same outputs, so that the fastest dense one is the baseline."""

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Protocol, Self, TypeGuard, runtime_checkable

import torch
import torch.nn.functional as F
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import Tensor, fx, nn
from torch.nn.functional import linear
from torch.nn.utils.fusion import fuse_conv_bn_eval

from sparsefront.errors import failure_reason
from sparsefront.measure.activated_linears import find_activated, fuse_faster
from sparsefront.measure.attention import BACKENDS, WithAttentionBackend, explain_refusal
from sparsefront.measure.settings import FUSED_GRAPH, PATCH_PRODUCT
from sparsefront.models.recurrent import SplitLSTM
from sparsefront.networks import before_forward, first_argument, has_forward_hooks


class DoesNotApply(Exception):
    """A variant has nothing to change in a network, or cannot run here; the message says why."""


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, SparseLayer | SplitLSTM) or super().is_leaf_module(m, module_qualified_name)


def trace(net: nn.Module) -> fx.Graph:
    """Trace a network with torch.fx; sparse layers and `SplitLSTM` are leaves.

    Raises:
        DoesNotApply: with the reason.
    """
    try:
        return _Tracer().trace(net)
    except Exception as error:  # a forward may do anything
        raise DoesNotApply(f"its forward cannot be traced: {failure_reason(error)}") from error


# The epilogue of a convolution that can be fused into it: ReLU, or a shortcut added and then ReLU.

_SUMS = (operator.add, operator.iadd, torch.add)
_RELUS = (torch.relu, torch.nn.functional.relu)


@dataclass(frozen=True)
class Epilogue:
    """max(0, y), or max(0, y + shortcut).

    Args:
        relu: the node that computes it.
        shortcut: the added node, if any.
    """

    relu: fx.Node
    shortcut: fx.Node | None = None


def find_epilogue(node: fx.Node, modules: dict[str, nn.Module]) -> Epilogue | None:
    """The epilogue, if it is the only user of a node."""
    if len(node.users) != 1:
        return None
    (after,) = node.users
    if _is_relu(after, modules):
        return Epilogue(after)
    if not _calls(after, _SUMS) or after.kwargs or len(after.args) != 2 or len(after.users) != 1:
        return None
    first, second = after.args
    shortcut = second if first is node else first
    (relu,) = after.users
    if not isinstance(shortcut, fx.Node) or shortcut is node or not _is_relu(relu, modules):
        return None
    return Epilogue(relu, shortcut)


def adds_shortcut(net: nn.Module) -> dict[str, bool]:
    """Convolutions followed by ReLU -> whether a shortcut is added before it; BatchNorms, which are folded, may be between.

    If ReLU follows a sum of two convolutions, the first one counts. Empty where the forward cannot be traced.
    """
    try:
        nodes = trace(net).nodes
    except DoesNotApply:
        return {}
    modules = dict(net.named_modules())
    shortcuts: dict[str, bool] = {}
    taken = set()
    for node in nodes:
        if node.op != "call_module" or not isinstance(modules[name_target(node)], nn.Conv2d):
            continue
        last = node
        while len(last.users) == 1 and _is_norm(after := next(iter(last.users)), modules):
            last = after
        epilogue = find_epilogue(last, modules)
        if epilogue is not None and epilogue.relu not in taken:
            taken.add(epilogue.relu)
            shortcuts[name_target(node)] = epilogue.shortcut is not None
    return shortcuts


def _is_norm(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    return node.op == "call_module" and isinstance(modules[name_target(node)], nn.BatchNorm2d | nn.Identity)


def _calls(node: fx.Node, functions: tuple[Any, ...]) -> bool:
    return node.op == "call_function" and node.target in functions


def _is_relu(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return isinstance(modules[name_target(node)], nn.ReLU)
    return _calls(node, _RELUS) or (node.op == "call_method" and node.target in ("relu", "relu_"))


# In eval mode BatchNorm is a scale and a shift per channel, which fold into the convolution before it.


def fold_batch_norm(net: nn.Module) -> nn.Module:
    """A copy whose BatchNorms are folded into convolutions, dense or sparse, that only they use; nn.Identity replaces them.

    Args:
        net: in eval mode; unchanged.
    Raises:
        DoesNotApply: with the reason.
    """
    if not any(isinstance(module, nn.BatchNorm2d) for module in net.modules()):
        raise DoesNotApply("the network has no BatchNorm2d")
    pairs = _pairs(trace(net), dict(net.named_modules()))
    if not pairs:
        raise DoesNotApply("no BatchNorm2d alone reads a convolution")
    folded = copy.deepcopy(net)
    for convolution, norm in pairs:
        before, after = folded.get_submodule(convolution), folded.get_submodule(norm)
        assert isinstance(before, nn.Conv2d | SparseLayer) and isinstance(after, nn.BatchNorm2d)  # see `_pairs`
        folded.set_submodule(convolution, _fold(before, after), strict=True)
        folded.set_submodule(norm, nn.Identity(), strict=True)
    return folded


def _pairs(graph: fx.Graph, modules: dict[str, nn.Module]) -> list[tuple[str, str]]:
    """Names of convolutions and of the BatchNorms that are their only users; each is called once."""
    calls = [node for node in graph.nodes if node.op == "call_module"]
    targets = [name_target(node) for node in calls]
    pairs = []
    for node in calls:
        norm, before = modules[name_target(node)], node.args[0] if node.args else None
        if not (isinstance(norm, nn.BatchNorm2d) and norm.track_running_stats):
            continue
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) != 1:
            continue
        if not isinstance(modules[name_target(before)], nn.Conv2d | SparseLayer):
            continue
        if targets.count(name_target(node)) == targets.count(name_target(before)) == 1:
            pairs.append((name_target(before), name_target(node)))
    return pairs


def name_target(node: fx.Node) -> str:
    """The qualified name of the module or tensor that is a node's target."""
    assert isinstance(node.target, str)
    return node.target


@torch.no_grad()
def _fold(convolution: nn.Conv2d | SparseLayer, norm: nn.BatchNorm2d) -> nn.Module:
    if isinstance(convolution, nn.Conv2d):
        return fuse_conv_bn_eval(convolution, norm)
    assert norm.running_mean is not None and norm.running_var is not None  # see `_pairs`
    scale = (norm.running_var.float() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.float()
    shift = -norm.running_mean.float() * scale
    if norm.bias is not None:
        shift = shift + norm.bias.float()
    return convolution.scaled(scale, shift)


# What follows a product fused into it: ReLU, and a shortcut added before it, into a sparse convolution; activations into Linears.


def fuse_epilogues(net: nn.Module, inputs: dict[str, Tensor]) -> nn.Module:
    """A copy in which `fuse_convolutions` and `fuse_activations`, or one of them, have fused what follows products.

    Raises:
        DoesNotApply: neither applies; with both reasons.
    """
    fused, reasons = net, []
    for fuse in (fuse_convolutions, partial(fuse_activations, inputs=inputs)):
        try:
            fused = fuse(fused)
        except DoesNotApply as reason:
            reasons.append(str(reason))
    if fused is net:
        raise DoesNotApply("; ".join(reasons))
    return fused


def fuse_activations(net: nn.Module, inputs: dict[str, Tensor]) -> nn.Module:
    """A copy, sharing its weights, in which Linears compute the activation module after them where that is faster.

    Raises:
        DoesNotApply: with the reason.
    """
    linears = {name: module for name, module in net.named_modules() if _is_plain(module)}
    activated = find_activated(net, linears, inputs)
    if not activated:
        raise DoesNotApply("no activation module alone reads what a Linear gives")
    replacements, reasons = fuse_faster(activated, linears)
    if not replacements:
        raise DoesNotApply("; ".join(f"{kernel}: {why}" for kernel, why in reasons.items()))
    changed = copy_sharing_weights(net)
    for name, module in replacements.items():
        changed.set_submodule(name, module, strict=True)
    return changed.eval()


@runtime_checkable
class TakesEpilogue(Protocol):
    """A convolution that can compute max(0, y + residual), or max(0, y)."""

    def with_relu(self) -> Self | None:
        """A copy with ReLU whose forward takes a residual as its second argument; None where that gains nothing."""

    def __call__(self, input: Tensor, residual: Tensor | None = None) -> Tensor: ...


def fuse_convolutions(net: nn.Module) -> nn.Module:
    """A copy, as an fx.GraphModule, in which the ReLU after a sparse convolution is fused into it.

    Args:
        net: in eval mode; unchanged.
    Raises:
        DoesNotApply: with the reason.
    """
    if not any(isinstance(module, TakesEpilogue) for module in net.modules()):
        raise DoesNotApply("the network has no sparse convolution that takes what follows it")
    net = copy.deepcopy(net)
    graph = trace(net)
    modules = dict(net.named_modules())
    _remove_identities(graph, modules)
    targets = [node.target for node in graph.nodes if node.op == "call_module"]
    fused = 0
    for node in list(graph.nodes):
        if node.op != "call_module" or targets.count(node.target) != 1 or len(node.users) != 1:
            continue
        module = modules[node.target]
        if isinstance(module, TakesEpilogue) and _fuse(graph, node, module, modules):
            fused += 1
    if not fused:
        raise DoesNotApply("no sparse convolution is followed by ReLU")
    graph.lint()
    return fx.GraphModule(modules[""], graph).eval()


def _fuse(graph: fx.Graph, node: fx.Node, convolution: TakesEpilogue, modules: dict[str, nn.Module]) -> bool:
    """Fuse the ReLU after a convolution, and the shortcut added before it, if any; returns whether it was fused."""
    (after,) = node.users
    epilogue = find_epilogue(node, modules)
    if epilogue is None or (with_relu := convolution.with_relu()) is None:
        return False
    assert isinstance(with_relu, nn.Module)
    modules[""].set_submodule(name_target(node), with_relu, strict=True)
    with graph.inserting_before(epilogue.relu):  # here the shortcut is computed, too
        x = first_argument(node.args, node.kwargs)
        arguments = (x,) if epilogue.shortcut is None else (x, epilogue.shortcut)
        made = graph.call_module(name_target(node), arguments)
    epilogue.relu.replace_all_uses_with(made)
    for replaced in (epilogue.relu, after, node):
        if not replaced.users and replaced in graph.nodes:
            graph.erase_node(replaced)
    return True


def _remove_identities(graph: fx.Graph, modules: dict[str, nn.Module]) -> None:
    for node in list(graph.nodes):
        if node.op == "call_module" and isinstance(modules[node.target], nn.Identity):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


# Linear layers that read the same tensor, computed as one product, such as Q, K and V of an attention.


class FusedLinears(nn.Module):
    """One weight [N1 + N2 + ..., K] for several Linear layers; the first call multiplies, the others take slices.

    Args:
        linears: layers of the same K, dtype and device, in call order.
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
        """Output [..., N] of layer `index` for x [..., K], a slice of the common product.

        Another tensor than the first layer's is multiplied separately, so the result never depends on the order of the calls.
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
    """Replaces one of the layers of a `FusedLinears` in the network."""

    def __init__(self, fused: FusedLinears, index: int) -> None:
        super().__init__()
        self.fused, self.index = fused, index

    def forward(self, input: Tensor) -> Tensor:
        """The argument is named as in nn.Linear."""
        return self.fused.part(input, self.index)


def fuse_linears(net: nn.Module, /, *args: Any, **inputs: Any) -> nn.Module | None:
    """A network with the same outputs in which Linear layers that read the same tensor are one product.

    Args:
        net: in eval mode; unchanged. The result shares all other parameters with it.
        args, inputs: arguments of the forward pass in which the layers' inputs are compared.
    Returns:
        None where no two layers read the same tensor.
    """
    groups = group_linears(net, *args, **inputs)
    if not groups:
        return None
    fused_net = copy_sharing_weights(net)
    for names in groups:
        linears = [module for module in map(net.get_submodule, names) if isinstance(module, nn.Linear)]
        fused = FusedLinears(linears)
        for index, name in enumerate(names):
            fused_net.set_submodule(name, FusedPart(fused, index))
    return fused_net.eval()


@dataclass(frozen=True)
class _Call:
    name: str
    x: Tensor  # kept alive, so that no later tensor gets its id
    version: int


def group_linears(net: nn.Module, /, *args: Any, **inputs: Any) -> list[list[str]]:
    """Groups of Linear layers that one forward pass calls once each with the same unmodified tensor, in call order."""
    calls: list[_Call] = []
    linears = {name: module for name, module in net.named_modules() if _is_plain(module)}
    # outside of inference mode, whose tensors have no version counter
    with before_forward(linears, partial(_note, calls)), torch.inference_mode(False), torch.no_grad():
        net(*map(_clone, args), **{name: _clone(value) for name, value in inputs.items()})
    names = [call.name for call in calls]
    groups: dict[tuple[Any, ...], list[str]] = {}
    for call in calls:
        if names.count(call.name) == 1:
            weight = linears[call.name].weight
            groups.setdefault((id(call.x), call.version, weight.dtype, weight.device), []).append(call.name)
    return [group for group in groups.values() if len(group) > 1]


def copy_sharing_weights(net: nn.Module) -> nn.Module:
    """Copy a network's modules; share its parameters, buffers and compressed layers."""
    shared = chain(
        net.parameters(), net.buffers(), (module for module in net.modules() if isinstance(module, SparseLayer))
    )
    return copy.deepcopy(net, {id(part): part for part in shared})


def _clone(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _is_plain(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether this is a plain nn.Linear: no subclass, no parametrization, no hooks."""
    return type(module) is nn.Linear and not has_forward_hooks(module)


def _note(calls: list[_Call], name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    x = first_argument(arguments, keywords)
    calls.append(_Call(name, x, x._version))


class PatchProduct(nn.Module):
    """Image [B, C, H, W] -> [B, D, H/p, W/q]: a convolution with p × q filters and a stride of (p, q), as one matrix product.

    Patches do not overlap, so that they are the rows of a matrix as large as the image. cuDNN takes 2.0 ms for those of
    ViT-L/16 (256 images, fp16, H200), a product of 79 GFLOP, and 0.7 ms to change layouts around it. The result is in
    channels-last memory, as tokens.
    """

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.kernel_size = convolution.kernel_size
        self.weight, self.bias = convolution.weight, convolution.bias

    def forward(self, input: Tensor) -> Tensor:
        """The argument is named as in nn.Conv2d."""
        (batch, channels), (height, width) = input.shape[:2], self.kernel_size
        down, right = input.shape[2] // height, input.shape[3] // width
        whole = input[:, :, : down * height, : right * width]  # a convolution ignores partial patches
        patches = whole.reshape(batch, channels, down, height, right, width).permute(0, 2, 4, 1, 3, 5)
        rows = patches.reshape(batch * down * right, channels * height * width)
        y = linear(rows, self.weight.flatten(1), self.bias)
        return y.view(batch, down, right, -1).permute(0, 3, 1, 2)


def patch_products(net: nn.Module) -> nn.Module:
    """A copy, sharing its weights, with each patch convolution as a `PatchProduct`.

    Raises:
        DoesNotApply: there is none.
    """
    names = [name for name, module in net.named_modules() if _cuts_patches(module)]
    if not names:
        raise DoesNotApply("no convolution of the network cuts its image into patches")
    changed = copy_sharing_weights(net)
    for name in names:
        convolution = changed.get_submodule(name)
        assert isinstance(convolution, nn.Conv2d)  # see `_cuts_patches`
        changed.set_submodule(name, PatchProduct(convolution).eval(), strict=True)
    return changed


def _cuts_patches(module: nn.Module) -> bool:
    return (
        type(module) is nn.Conv2d
        and module.stride == module.kernel_size
        and max(module.kernel_size) > 1
        and not any(_pads(module.padding))
        and module.groups == 1
        and set(module.dilation) == {1}
        and not has_forward_hooks(module)
    )


def _pads(padding: str | tuple[int, ...]) -> tuple[int, ...]:
    """Padding in pixels; "same" counts as 1, since it adds none only for filters of one pixel."""
    if isinstance(padding, str):
        return (int(padding != "valid"),)
    return tuple(padding)


def fuse_qkv(net: nn.Module, inputs: dict[str, Tensor]) -> nn.Module:
    fused = fuse_linears(net, **inputs)
    if fused is None:
        raise DoesNotApply("no two Linear layers read the same tensor")
    return fused


def channels_last(net: nn.Module) -> nn.Module:
    """Filters as [C_out, kh, kw, C_in] in memory; activations follow from the first convolution on."""
    if sum(isinstance(module, nn.Conv2d) for module in net.modules()) < 2:  # a single one only cuts patches
        raise DoesNotApply("the network has fewer than two convolutions")
    return copy.deepcopy(net).to(memory_format=torch.channels_last)


# The variants, as in `measure.settings`.

_REWRITTEN = {"folded_batch_norm": fold_batch_norm, PATCH_PRODUCT: patch_products, "channels_last": channels_last}
_REWRITTEN_FOR_INPUTS = {"fused_epilogue": fuse_epilogues, "fused_qkv": fuse_qkv}

# (network, inputs of one forward pass) -> its fused graph; leaves the network unchanged; may raise DoesNotApply
Fuse = Callable[[nn.Module, dict[str, Tensor]], nn.Module]


def make_variant(name: str, net: nn.Module, inputs: dict[str, Tensor], *, fuse: Fuse | None = None) -> nn.Module:
    """Apply a variant to a network, which stays unchanged.

    Args:
        name: one of VARIANTS.
        net: in eval mode, on the inputs' device.
        inputs: keyword arguments of one forward pass.
        fuse: makes the fused graph.
    Raises:
        DoesNotApply: with the reason.
    """
    if name == FUSED_GRAPH:
        if fuse is None and any(isinstance(module, SparseLayer) for module in net.modules()):
            raise DoesNotApply("with kernels, blocks are rewritten by the swap, or were faster as they are")
        if fuse is None:
            raise DoesNotApply("no fused graph of this network")
        return fuse(net, inputs)
    if name in BACKENDS:
        if next(iter(inputs.values())).device.type != "cuda":
            raise DoesNotApply("needs a CUDA device")
        reason = explain_refusal(net, inputs, name)
        if reason is not None:
            raise DoesNotApply(reason)
        return WithAttentionBackend(net, BACKENDS[name]).eval()
    if name in _REWRITTEN:
        return _REWRITTEN[name](net)
    return _REWRITTEN_FOR_INPUTS[name](net, inputs)
