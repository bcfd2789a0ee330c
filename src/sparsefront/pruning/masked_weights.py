"""The one object that holds the masks of a network."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

BUFFER = "weight_mask"


class MaskedWeights:
    """Keeps pruned weights at exactly zero.

    A mask is a bool buffer `weight_mask` on its layer, shaped like the weight, True = keep. As a buffer it moves with the
    network to other devices and is copied with it; it is not part of the state dict, so checkpoints stay plain. Weights
    are zeroed in place after every optimizer step, so neither momentum nor weight decay nor an AMP scaler can revive them.

    Args:
        net: the network; masks already on it are taken over.
        layers: names of the modules with a `weight`.
    """

    def __init__(self, net: nn.Module, layers: Iterable[str]) -> None:
        self._modules = {name: net.get_submodule(name) for name in layers}

    def set(self, masks: dict[str, Tensor]) -> None:
        """Replace masks and zero what they prune.

        Args:
            masks: layer name -> bool [N, K], or shaped like the weight, on any device.
        Raises:
            ValueError: a mask that is not bool or does not match its weight; names the layer.
        """
        for name, mask in masks.items():
            module = self._modules[name]
            if mask.dtype != torch.bool or mask.numel() != module.weight.numel():
                raise ValueError(
                    f"mask of {name}: {mask.dtype} {tuple(mask.shape)} does not fit weight {tuple(module.weight.shape)}"
                )
            mask = mask.reshape(module.weight.shape).to(module.weight.device)
            module.register_buffer(BUFFER, mask, persistent=False)
        self.apply()

    @torch.no_grad()
    def apply(self) -> None:
        """Zero every pruned weight in place."""
        pairs = [(m.weight, m.weight_mask) for m in self._modules.values() if hasattr(m, BUFFER)]
        for weight, mask in pairs:
            weight.mul_(mask)

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

    def check(self) -> None:
        """Raises:
        ValueError: a pruned weight is not zero; names the layer and how many.
        """
        for name, mask in self.masks().items():
            revived = int((self._modules[name].weight[~mask] != 0).sum())
            if revived:
                raise ValueError(f"layer {name}: {revived} pruned weights are not zero")
