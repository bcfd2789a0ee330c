"""Attention of a network as it is timed: without masks that mask nothing, on a fused kernel, and a word where it is on none."""

import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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

from sparsefront.measure.correctness import output_error

# Masks, decided before a network is recorded or compiled.
#
# In eager mode networks of transformers look at a mask: one that masks nothing is left out, and attention runs on its fastest
# kernel. While they are recorded or compiled they cannot look at values, and build a mask of all pairs of tokens; releases
# before 5.20 even where they are given none.


def without_full_masks(net: nn.Module, inputs: Mapping[str, Any], limit: float) -> dict[str, Any]:
    """The inputs without masks of ones, where the network gives the same outputs without them.

    Args:
        net: in eval mode on the inputs' device; its forward has to name the mask, with a default.
        limit: relative error of its outputs that is rounding.
    """
    parameters = inspect.signature(net.forward).parameters
    left = dict(inputs)
    for name, value in inputs.items():
        optional = name in parameters and parameters[name].default is None
        if not (optional and name.endswith("mask") and isinstance(value, Tensor) and len(left) > 1 and _is_full(value)):
            continue
        without = {other: given for other, given in left.items() if other != name}
        with torch.inference_mode():
            try:
                same = output_error(net(**without), net(**left)) <= limit
            except Exception:  # a forward may need its mask in any way
                same = False
        left = without if same else left
    return left


def _is_full(mask: Tensor) -> bool:
    return mask.numel() > 0 and not mask.is_complex() and bool((mask == 1).all())


@contextmanager
def no_mask_stays_none(*, packed: bool = False) -> Iterator[None]:
    """Around calls that are recorded or compiled: where a network of transformers has no mask, it builds none.

    Args:
        packed: whether it is given the positions of its tokens, which may be those of several texts in a row. Of positions that
            it counts itself it would find out by their values that they are not.
    """
    masking = sys.modules.get("transformers.masking_utils")
    known = getattr(masking, "is_tracing", None)
    if known is None:
        yield
        return
    others: dict[str, Any] = {"is_tracing": _asked_of_masks_alone(known)}
    if not packed and hasattr(masking, PACKED):
        others[PACKED] = _one_text_in_a_row
    before = {name: getattr(masking, name) for name in others}
    vars(masking).update(others)
    try:
        yield
    finally:
        vars(masking).update(before)


PACKED = "find_packed_sequence_indices"


def _one_text_in_a_row(position_ids: Tensor) -> None:
    return None


@functools.cache
def _asked_of_masks_alone(is_tracing: Callable[..., bool]) -> Callable[..., bool]:
    """One function for each: compiled code is of the one that it was made with."""

    def asked(tensor: Tensor | None = None) -> bool:
        return tensor is not None and is_tracing(tensor)

    return asked


# PyTorch's attention kernels (scaled_dot_product_attention), one of them forced for a whole network.

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


@dataclass(frozen=True, eq=False)
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

    @property
    def in_math_path(self) -> bool:
        """Whether PyTorch, asked as it asks itself, takes no fused kernel."""
        given = (self.query, self.key, self.value, self.attn_mask, self.dropout_p, self.is_causal)
        chosen = torch._fused_sdp_choice(*given, scale=self.scale, enable_gqa=self.enable_gqa)
        return SDPBackend(chosen) == SDPBackend.MATH

    def in_words(self) -> str:
        words = f"{str(self.query.dtype).removeprefix('torch.')} {list(self.query.shape)}"
        if (mask := self.attn_mask) is None:
            return words
        return f"{words} with a {str(mask.dtype).removeprefix('torch.')} mask {list(mask.shape)} of strides {list(mask.stride())}"


def _takes(name: str, call: _Attention) -> bool:
    tensors = (call.query, call.key, call.value, call.attn_mask)
    return bool(ASKED[name](SDPAParams(*tensors, call.dropout_p, call.is_causal, call.enable_gqa)))


# as modules call it, and the graphs of blocks
_ATTENTIONS = (F.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default)


class _Watch(TorchFunctionMode):
    def __init__(self, note: Callable[[_Attention], Any] = lambda call: call) -> None:
        super().__init__()
        self.note = note
        self.calls: list[Any] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _ATTENTIONS:
            self.calls.append(self.note(_Attention(*args, **(kwargs or {}))))
        return func(*args, **(kwargs or {}))


# Attention that no fused kernel takes: PyTorch then computes it by products and a softmax of its own, its math path, which writes
# all weights of attention to memory, in fp32 for inputs of 16 bits.


def in_math_path(net: nn.Module, inputs: Mapping[str, Any]) -> str | None:
    """Which attentions of one forward run there, in one line; None where none does.

    Args:
        net: in eval mode, on the inputs' device.
    """
    with _Watch(lambda call: call.in_words() if call.in_math_path else None) as watch, torch.inference_mode():
        net(**inputs)
    slow = Counter(words for words in watch.calls if words is not None)
    if not slow:
        return None
    what = "; ".join(f"{count} x {words}" for words, count in slow.items())
    return f"{slow.total()} of {len(watch.calls)} attentions run in PyTorch's math path, which is slow: {what}"
