"""What is asked of any network: finite weights, the calls that it makes while it runs, and its train and eval modes."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle


def layer_weight(layer: nn.Module) -> Tensor:
    """The weight of a layer: Linear [N, K], Conv2d [C_out, C_in, kh, kw]."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight


def unwrapped(net: Any) -> Any:
    """The network in `torch.compile`, DataParallel and DistributedDataParallel, in any nesting, so that its layers have the names
    of its own; anything else as it is.
    """
    while isinstance(net, nn.Module):
        if isinstance(net, nn.DataParallel | nn.parallel.DistributedDataParallel):
            net = net.module
        elif "_orig_mod" in net._modules:
            net = net._modules["_orig_mod"]
        else:
            break
    return net


def load_state(net: nn.Module, weights: Mapping[str, Tensor], *, strict: bool = True) -> tuple[list[str], list[str]]:
    """`load_state_dict` of weights from a file, which keeps no versions of modules: they are taken to be of the network's own.

    Without a version some modules, such as torchvision's MNASNet, refuse theirs.

    Args:
        strict: all keys must be there, and no others.
    Returns:
        keys that are missing, and keys that the network does not have.
    Raises:
        RuntimeError: the weights do not fit.
    """
    content = OrderedDict(weights)
    content._metadata = net.state_dict()._metadata  # type: ignore[attr-defined]
    missing, unexpected = net.load_state_dict(content, strict=strict)
    return missing, unexpected


# Tensors that must be finite, scores among them, and the first that is not.


class NonFinite(NamedTuple):
    """A tensor with NaN or infinity: its name, and in words how many of each it holds."""

    name: str
    counts: str


def first_non_finite(tensors: Mapping[str, Tensor]) -> NonFinite | None:
    """The first tensor that holds NaN or infinity, in the order of the mapping; None where all are finite.

    Args:
        tensors: any shape and device; those of integers and bools are always finite.
    """
    for name, values in tensors.items():
        if values.numel() == 0 or not values.is_floating_point():
            continue
        if values.element_size() == 1:  # torch orders no 8-bit floats
            values = values.float()
        # The extremes carry NaN and infinity along: no temporary in the size of the tensor.
        if not torch.isfinite(torch.stack(torch.aminmax(values.detach()))).all():
            nans, infinities = int(values.isnan().sum()), int(values.isinf().sum())
            return NonFinite(name, f"{nans} NaN and {infinities} infinite of {values.numel()}")
    return None


def require_finite(scores: Mapping[str, Tensor]) -> None:
    """Raise ValueError naming the first layer whose scores hold NaN or infinity.

    A NaN compares false with every threshold, so it would be pruned or kept at random places without a sound.
    """
    if (found := first_non_finite(scores)) is not None:
        raise ValueError(f"the importance of {found.name} is not finite: {found.counts} scores")


# sha256 of named tensors: weights or masks.


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """sha256 in hexadecimal over name, dtype, shape and bytes of every tensor, by name."""
    hashed = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        hashed.update(f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        hashed.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return hashed.hexdigest()


# Hooks on modules, which are called with a module's own forward alone: what stands in for it would drop them.


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether something sees or changes what this module is given or gives, its parts aside."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


# Seeing how modules are called, and what they return, while a network runs.


@contextmanager
def before_forward(
    modules: Mapping[str, nn.Module], see: Callable[[str, tuple[Any, ...], dict[str, Any]], None]
) -> Iterator[None]:
    """While open, `see(name, args, kwargs)` is called before every forward of these modules, with what they are given."""

    def hook(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        see(name, args, kwargs)

    with _removed(
        module.register_forward_pre_hook(partial(hook, name), with_kwargs=True) for name, module in modules.items()
    ):
        yield


@contextmanager
def after_forward(
    modules: Mapping[str, nn.Module], see: Callable[[str, tuple[Any, ...], dict[str, Any], Any], None]
) -> Iterator[None]:
    """While open, `see(name, args, kwargs, output)` is called after every forward of these modules."""

    def hook(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        see(name, args, kwargs, output)

    with _removed(
        module.register_forward_hook(partial(hook, name), with_kwargs=True) for name, module in modules.items()
    ):
        yield


def first_argument(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The tensor that a layer with one input is called with, by position or by name."""
    return args[0] if args else next(iter(kwargs.values()))


@contextmanager
def _removed(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    held = list(handles)
    try:
        yield
    finally:
        for handle in held:
            handle.remove()


def storage_of(tensor: Tensor) -> int | None:
    """What identifies the memory of a strided tensor and its views; None of a sparse or nested one, which has several."""
    if tensor.layout != torch.strided or tensor.is_nested:
        return None
    return tensor.untyped_storage()._cdata


class ReadTensors(TorchDispatchMode):
    """While entered, notes which tensors, or views of them, any operation is given: also those that no module is called for.

    Args:
        tensors: name -> tensor, on any device.
    Attributes:
        names: of those that were read.
    """

    supports_higher_order_operators = True

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names: set[str] = set()
        self._of_storage: dict[int | None, list[str]] = {}
        for name, tensor in tensors.items():
            self._of_storage.setdefault(storage_of(tensor), []).append(name)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for leaf in tree_leaves((args, kwargs or {})):
            if isinstance(leaf, Tensor) and (storage := storage_of(leaf)) is not None:
                self.names.update(self._of_storage.get(storage, ()))
        return function(*args, **(kwargs or {}))


@contextmanager
def keep_modes(net: nn.Module) -> Iterator[None]:
    """Every module is then in the mode in which it was."""
    modes = [(module, module.training) for module in net.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training  # `train` would set those below it too


@contextmanager
def in_eval_mode(net: nn.Module) -> Iterator[None]:
    """The whole network is in eval mode until then."""
    with keep_modes(net):
        net.eval()
        yield


# Where a network keeps its masks. All that a training needs to know of them: it does not depend on how they are made.

BUFFER = "_sparsefront_mask"


@torch.no_grad()
def zero_pruned(module: nn.Module) -> None:
    """Zero in place every weight below a module that its mask prunes."""
    for layer in module.modules():
        if hasattr(layer, BUFFER):
            layer.weight.masked_fill_(~getattr(layer, BUFFER), 0.0)
