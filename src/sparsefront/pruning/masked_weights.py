"""The one object that applies the masks of a network."""

from collections.abc import Iterable
from typing import Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from sparsefront import distributed
from sparsefront.masks.weight_view import fits, like_weight
from sparsefront.pruning.mask_buffers import BUFFER


class MaskedWeights:
    """Keeps pruned weights at exactly zero.

    A mask is a bool buffer `weight_mask` on its layer, shaped like the weight, True = keep. As a buffer it moves with the
    network to other devices and is copied with it; it is not part of the state dict, so checkpoints stay plain. Weights
    are zeroed in place after every optimizer step, so neither momentum nor weight decay nor an AMP scaler can revive them.
    As a context it takes the masks off the network at its end, also where something fails.

    Args:
        net: the network; masks already on it are taken over.
        layers: names of the modules with a `weight`.
    """

    def __init__(self, net: nn.Module, layers: Iterable[str]) -> None:
        self._modules = {name: net.get_submodule(name) for name in layers}
        self._inverses: dict[str, tuple[Tensor, int, Tensor]] = {}  # layer -> its mask, that one's version, the inverse

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def set(self, masks: dict[str, Tensor]) -> None:
        """Replace masks and zero what they prune. In a distributed training rank 0's masks count on every rank.

        Args:
            masks: layer name -> bool [N, K], or shaped like the weight, on any device.
        Raises:
            ValueError: a mask that is not bool or does not match its weight; names the layer.
        """
        for name, mask in masks.items():
            module = self._modules[name]
            if mask.dtype != torch.bool or not fits(mask, module.weight):
                raise ValueError(
                    f"mask of {name}: {mask.dtype} {tuple(mask.shape)} does not fit weight {tuple(module.weight.shape)}"
                )
            mask = distributed.broadcast(like_weight(mask, module.weight).to(module.weight.device))
            module.register_buffer(BUFFER, mask, persistent=False)
        self.apply()

    @torch.no_grad()
    def apply(self) -> None:
        """Zero every pruned weight in place, whatever it has become: NaN and infinity too.

        One kernel per layer. A product with the mask would leave NaN as it is, and converts the mask on the way.
        """
        for name, module in self._modules.items():
            # Looked up where they lie: a module's own lookup by attribute costs as much as the launch of a kernel.
            mask = module._buffers.get(BUFFER)
            if mask is not None:
                module._parameters["weight"].masked_fill_(self._pruned(name, mask), 0.0)

    def _pruned(self, name: str, mask: Tensor) -> Tensor:
        """The inverse of a layer's mask, made again where the buffer is another one or was written to."""
        held = self._inverses.get(name)
        if held is None or held[0] is not mask or held[1] != mask._version:
            held = self._inverses[name] = (mask, mask._version, ~mask)
        return held[2]

    def attach(self, optimizer: Optimizer) -> RemovableHandle:
        """Apply the masks after every step that this optimizer really takes; a step skipped by an AMP scaler changes nothing."""
        return optimizer.register_step_post_hook(lambda *_: self.apply())

    def masks(self) -> dict[str, Tensor]:
        """Layer name -> bool mask shaped like the weight."""
        return {name: getattr(m, BUFFER) for name, m in self._modules.items() if hasattr(m, BUFFER)}

    def remove(self) -> None:
        """Take the buffers off the network; the zeros stay."""
        for module in self._modules.values():
            if hasattr(module, BUFFER):
                delattr(module, BUFFER)
        self._inverses.clear()

    def check(self) -> None:
        """Raises:
        ValueError: a pruned weight is not zero; names the layer and how many.
        """
        for name, mask in self.masks().items():
            revived = int(self._modules[name].weight.detach().masked_fill(mask, 0.0).count_nonzero())  # NaN counts
            if revived:
                raise ValueError(f"layer {name}: {revived} pruned weights are not zero")
