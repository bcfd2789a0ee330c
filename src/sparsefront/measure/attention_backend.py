"""PyTorch's attention kernels (scaled_dot_product_attention), one of them forced for a whole network."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

BACKENDS = {
    "sdpa_flash": SDPBackend.FLASH_ATTENTION,
    "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
}


class WithAttentionBackend(nn.Module):
    """The same network with every attention on one backend.

    The context is inside `forward`, so that compiled code belongs to its backend.
    """

    def __init__(self, net: nn.Module, backend: SDPBackend) -> None:
        super().__init__()
        self.net, self.backend = net, backend

    def forward(self, **inputs: Tensor) -> Any:
        with sdpa_kernel(self.backend):
            return self.net(**inputs)


def calls_attention(net: nn.Module, inputs: dict[str, Tensor]) -> bool:
    """Whether one forward pass reaches scaled_dot_product_attention."""
    with _Watch() as watch, torch.inference_mode():
        net(**inputs)
    return watch.seen


class _Watch(TorchFunctionMode):
    seen = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen = self.seen or func is F.scaled_dot_product_attention
        return func(*args, **(kwargs or {}))
