"""PyTorch's attention kernels (scaled_dot_product_attention), one of them forced for a whole network."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.backends.cuda import (
    SDPAParams,
    can_use_cudnn_attention,
    can_use_efficient_attention,
    can_use_flash_attention,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

BACKENDS = {
    "sdpa_flash": SDPBackend.FLASH_ATTENTION,
    "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
}
ASKED = {
    "sdpa_flash": can_use_flash_attention,
    "sdpa_cudnn": can_use_cudnn_attention,
    "sdpa_efficient": can_use_efficient_attention,
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


def unsupported_reason(net: nn.Module, inputs: dict[str, Tensor], name: str) -> str | None:
    """Why a backend cannot run the attentions of one forward pass; None where it can run them all.

    PyTorch is asked beforehand: a forward pass on a backend that cannot run it ends in an error, and a warning for each reason.

    Args:
        net: in eval mode, on a CUDA device.
        name: one of BACKENDS.
    """
    with _Watch() as watch, torch.inference_mode():
        net(**inputs)
    if not watch.calls:
        return "the network calls no scaled_dot_product_attention"
    with sdpa_kernel(BACKENDS[name]):  # as in the forward pass: a backend that is switched off takes nothing
        left = [call for call in watch.calls if not _takes(name, call)]
        by_masks = all(call.attn_mask is not None and _takes(name, replace(call, attn_mask=None)) for call in left)
    if not left:
        return None
    if by_masks:
        return "takes no attention masks"
    query = left[0].query
    return f"takes no {str(query.dtype).removeprefix('torch.')} attention of {list(query.shape)} on this device"


@dataclass(frozen=True)
class _Attention:
    """What one call of scaled_dot_product_attention was given; its parameters."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False


def _takes(name: str, call: _Attention) -> bool:
    tensors = (call.query, call.key, call.value, call.attn_mask)
    return bool(ASKED[name](SDPAParams(*tensors, call.dropout_p, call.is_causal, call.enable_gqa)))


class _Watch(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Attention] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.scaled_dot_product_attention:
            self.calls.append(_Attention(*args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))
