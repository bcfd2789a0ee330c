"""Apply masks to a network, also during training; layers that share a weight."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from sparsefront import distributed
from sparsefront.errors import InvalidSetting
from sparsefront.masks.weight_view import fits, like_weight
from sparsefront.networks import BUFFER, layer_weight
from sparsefront.patterns.ties import Tie
from sparsefront.pruning.unit_hooks import hook_units

# Layers that share a weight need one mask, because what one prunes is gone in all of them.


def sharing_layers(net: nn.Module, layers: Iterable[str]) -> dict[str, list[str]]:
    """Each layer -> all layers that have its weight, itself included; also on the meta device."""
    weights = {name: layer_weight(net.get_submodule(name)) for name in layers}
    names_of: dict[tuple, list[str]] = {}
    for name, weight in weights.items():
        names_of.setdefault(_place(weight), []).append(name)
    return {name: names_of[_place(weight)] for name, weight in weights.items()}


def require_none_dense(net: nn.Module, layers: Iterable[str], key: str, value: object) -> None:
    """Check that no pruned weight shares memory with a parameter or buffer that should stay dense.

    Args:
        net: may be on the meta device.
        layers: all pruned layers.
        key, value: the argument that keeps modules dense, for the message.
    Raises:
        InvalidSetting: another tensor, of this or of a module that is not pruned, shares the memory of a layer's weight; names
            both.
    """
    pruned = {name: layer_weight(net.get_submodule(name)) for name in layers}
    places = {_place(weight) for weight in pruned.values()}
    of_storage: dict[int, list[tuple[str, Tensor]]] = {}
    for name, weight in pruned.items():
        of_storage.setdefault(_storage(weight), []).append((name, weight))
    for owner, module in net.named_modules():
        for attribute, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None or (owner in pruned and attribute == "weight" and _place(tensor) in places):
                continue
            for name, weight in of_storage.get(_storage(tensor), []):
                if _overlap(weight, tensor):
                    other = f"the {attribute} of {owner or 'the network'} ({type(module).__name__}), which stays dense"
                    allowed = f"{name} is pruned, and its weight is also {other}: leave both dense"
                    raise InvalidSetting(key, value, allowed)


def _storage(tensor: Tensor) -> int:
    """A number that identifies a tensor's storage, also on the meta device, where it has no address."""
    return tensor.untyped_storage()._cdata


def _place(tensor: Tensor) -> tuple:
    """A key that is equal for a parameter with two names and for two parameters made of one tensor."""
    return _storage(tensor), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one storage have elements in common; parts of a flat buffer have none."""
    if one.dtype != other.dtype or _place(one) == _place(other):
        return True
    elements = torch.zeros(one.untyped_storage().nbytes() // one.element_size(), dtype=torch.bool)
    elements.as_strided(one.shape, one.stride(), one.storage_offset()).fill_(True)
    return bool(elements.as_strided(other.shape, other.stride(), other.storage_offset()).any())


def require_none_shared(net: nn.Module, layers: Iterable[str], allocation: str) -> None:
    """Raises:
    InvalidSetting: the allocation chooses per layer, but several layers share a weight.
    """
    for sharing in sharing_layers(net, layers).values():
        if len(sharing) > 1:
            allowed = f"chooses layer by layer, and {', '.join(sharing)} share one weight: leave them dense"
            raise InvalidSetting("allocation", allocation, allowed)


def require_one_sparsity(
    net: nn.Module, layers: Iterable[str], allocation: str, sparsities: Mapping[str, float] | None
) -> None:
    """Raises:
    InvalidSetting: layers that share a weight got different sparsities (None: all layers have the same).
    """
    for name, sharing in sharing_layers(net, layers).items():
        for other in sharing:
            if sparsities is not None and sparsities[other] != sparsities[name]:
                allowed = (
                    f"gives {name} a sparsity of {sparsities[name]:g} and {other}, which shares its weight, "
                    f"one of {sparsities[other]:g}: they need the same"
                )
                raise InvalidSetting("allocation", allocation, allowed)


class MaskedWeights:
    """Keeps pruned weights at exactly zero.

    A mask is a bool buffer `networks.BUFFER` on its layer, shaped like the weight, True = keep. It moves and is copied with
    the network, but is not in the state dict, so checkpoints stay plain. Weights are zeroed in place after every optimizer
    step, so momentum, weight decay and AMP scalers cannot revive them. As a context manager, removes the masks on exit.

    Args:
        net: the network; masks already on it are reused.
        layers: names of modules with a `weight`.
        ties: of these layers, whose norms are over what the masks leave (`pruning.unit_hooks`).
    Raises:
        InvalidSetting: a module has an attribute of the buffer's name that is not a mask.
    """

    def __init__(self, net: nn.Module, layers: Iterable[str], ties: Sequence[Tie] = ()) -> None:
        self._hook = partial(hook_units, net, ties)
        self._modules = {name: net.get_submodule(name) for name in layers}
        for name, module in self._modules.items():
            if hasattr(module, BUFFER) and not _holds_mask(module):
                allowed = f"has an attribute {BUFFER} in {name}, where its mask is kept: rename that attribute"
                raise InvalidSetting("net", type(net).__name__, allowed)
        # layer -> its mask, the mask's version, the weight's strides, and the inverted mask
        self._inverses: dict[str, tuple[Tensor, int, tuple[int, ...], Tensor]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def set(self, masks: dict[str, Tensor]) -> None:
        """Replace masks and zero what they prune. In distributed training, every rank uses rank 0's masks.

        Args:
            masks: layer name -> bool [N, K], or shaped like the weight, on any device.
        Raises:
            ValueError: a mask is not bool or does not match its weight; names the layer.
        """
        for name, mask in masks.items():
            module = self._modules[name]
            weight = layer_weight(module)
            if mask.dtype != torch.bool or not fits(mask, weight):
                raise ValueError(
                    f"mask of {name}: {mask.dtype} {tuple(mask.shape)} does not fit weight {tuple(weight.shape)}"
                )
            mask = distributed.broadcast(like_weight(mask, weight).to(weight.device))
            module.register_buffer(BUFFER, mask, persistent=False)
        self.apply()
        self._hook(self.masks())

    @torch.no_grad()
    def apply(self) -> None:
        """Zero every pruned weight in place, even if it is NaN or infinite.

        One kernel per layer. Multiplying by the mask would keep NaN, and convert the mask first.
        """
        for name, module in self._modules.items():
            # Read `_buffers` directly: nn.Module's attribute lookup costs as much as a kernel launch.
            mask = module._buffers.get(BUFFER)
            weight = module._parameters["weight"]
            if mask is not None and weight is not None:
                weight.masked_fill_(self._invert(name, mask, weight), 0.0)

    def _invert(self, name: str, mask: Tensor, weight: Tensor) -> Tensor:
        """The inverse of a layer's mask in the weight's memory layout, cached until one of them changes."""
        held = self._inverses.get(name)
        if held is None or held[0] is not mask or held[1:3] != (mask._version, weight.stride()):
            inverse = torch.empty_like(weight, dtype=torch.bool).copy_(~mask)
            held = self._inverses[name] = (mask, mask._version, weight.stride(), inverse)
        return held[3]

    def attach(self, optimizer: Optimizer) -> RemovableHandle:
        """Apply the masks after every step of this optimizer; steps skipped by an AMP scaler change nothing."""
        return optimizer.register_step_post_hook(lambda *_: self.apply())

    def masks(self) -> dict[str, Tensor]:
        """Layer name -> bool mask shaped like the weight."""
        return {name: getattr(m, BUFFER) for name, m in self._modules.items() if hasattr(m, BUFFER)}

    @property
    def sparsity(self) -> float:
        """Fraction of zeros in the masks."""
        masks = self.masks().values()
        return 1 - sum(int(mask.sum()) for mask in masks) / sum(mask.numel() for mask in masks)

    def remove(self) -> None:
        """Remove the buffers from the network; the zeros stay."""
        for module in self._modules.values():
            if hasattr(module, BUFFER):
                delattr(module, BUFFER)
        self._inverses.clear()

    def check(self) -> None:
        """Raises:
        ValueError: a pruned weight is not zero; names the layer and the number of such weights.
        """
        for name, mask in self.masks().items():
            weight = layer_weight(self._modules[name]).detach()
            revived = int(weight.masked_fill(mask, 0.0).count_nonzero())  # NaN counts
            if revived:
                raise ValueError(f"layer {name}: {revived} pruned weights are not zero")


def _holds_mask(module: nn.Module) -> bool:
    """Whether a module's buffer of this name is a mask set here: bool and not persistent."""
    mask = module._buffers.get(BUFFER)
    fitting = mask is not None and mask.dtype == torch.bool and mask.shape == layer_weight(module).shape
    return fitting and BUFFER in module._non_persistent_buffers_set


@contextmanager
def masked(net: nn.Module, masks: Mapping[str, Tensor]) -> Iterator[None]:
    """Context in which pruned weights are zero; the weights are restored on exit.

    Args:
        masks: layer -> bool [N, K], True = keep, on any device.
    """
    weights = {layer: layer_weight(net.get_submodule(layer)) for layer in masks}
    dense = {layer: weight.data for layer, weight in weights.items()}
    try:
        for layer, weight in weights.items():
            pruned = ~like_weight(masks[layer], weight).to(weight.device)
            weight.data = dense[layer].masked_fill(pruned, 0.0)
        yield
    finally:
        for layer, weight in weights.items():
            weight.data = dense[layer]
