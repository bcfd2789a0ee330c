"""Attention for timing: drop masks of ones, force an SDPA backend, and report attention that no fused kernel runs."""

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

# Masks, dropped before a network is recorded or compiled.
#
# In eager mode networks of transformers inspect a mask: they drop one of ones, and attention runs on its fastest kernel. While
# recorded or compiled they cannot inspect values and build a mask of all pairs of tokens; releases before 5.20 do so even
# without an attention mask.


def without_full_masks(net: nn.Module, inputs: Mapping[str, Any], limit: float) -> dict[str, Any]:
    """The inputs without those masks of ones that do not change the network's outputs.

    Args:
        net: in eval mode on the inputs' device; its forward has to name the mask, with default None.
        limit: largest relative error of the outputs that counts as the same.
    """
    parameters = inspect.signature(net.forward).parameters
    left = dict(inputs)
    for name, value in inputs.items():
        optional = name in parameters and parameters[name].default is None
        if not (
            optional
            and name.endswith("mask")
            and isinstance(value, Tensor)
            and len(left) > 1
            and (value.numel() > 0 and (not value.is_complex()) and bool((value == 1).all()))
        ):
            continue
        without = {other: argument for other, argument in left.items() if other != name}
        with torch.inference_mode():
            try:
                same = output_error(net(**without), net(**left)) <= limit
            except Exception:  # a forward without its mask may fail in any way
                same = False
        left = without if same else left
    return left


@contextmanager
def skip_mask_creation(*, packed: bool = False) -> Iterator[None]:
    """Keep networks of transformers from building a mask where they have none, while calls are recorded or compiled.

    Args:
        packed: whether the network gets position ids, which may belong to packed sequences. If it does not, transformers' check
            for packed sequences, which reads the values of position ids, is skipped.
    """
    masking = sys.modules.get("transformers.masking_utils")
    known = getattr(masking, "is_tracing", None)
    if known is None:
        yield
        return
    others: dict[str, Any] = {"is_tracing": _is_tracing_tensors_only(known)}
    if not packed and hasattr(masking, FIND_PACKED):
        others[FIND_PACKED] = _no_packed_sequences
    before = {name: getattr(masking, name) for name in others}
    vars(masking).update(others)
    try:
        yield
    finally:
        vars(masking).update(before)


FIND_PACKED = "find_packed_sequence_indices"


def _no_packed_sequences(position_ids: Tensor) -> None:
    return None


@functools.cache
def _is_tracing_tensors_only(is_tracing: Callable[..., bool]) -> Callable[..., bool]:
    """`is_tracing` that is False without a tensor. Cached, since compiled code guards on the identity of the function."""

    def is_tracing_tensor(tensor: Tensor | None = None) -> bool:
        return tensor is not None and is_tracing(tensor)

    return is_tracing_tensor


BACKENDS = {
    "sdpa_flash": SDPBackend.FLASH_ATTENTION,
    "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
}
SUPPORT_CHECKS = {
    "sdpa_flash": can_use_flash_attention,
    "sdpa_cudnn": can_use_cudnn_attention,
    "sdpa_efficient": can_use_efficient_attention,
}


class WithAttentionBackend(nn.Module):
    """The same network with every attention on one backend.

    `forward` enters the context, so that compiled code is specific to the backend.
    """

    def __init__(self, net: nn.Module, backend: SDPBackend) -> None:
        super().__init__()
        self.net, self.backend = net, backend

    def forward(self, **inputs: Tensor) -> Any:
        with sdpa_kernel(self.backend):
            return self.net(**inputs)


def explain_refusal(net: nn.Module, inputs: dict[str, Tensor], name: str) -> str | None:
    """Why a backend cannot run all attentions of one forward pass; None where it can.

    Asks PyTorch beforehand: a forward pass on an unsupported backend raises, with a warning for each reason.

    Args:
        net: in eval mode, on a CUDA device.
        name: one of BACKENDS.
    """
    with _Watch() as watch, torch.inference_mode():
        net(**inputs)
    if not watch.calls:
        return "the network calls no scaled_dot_product_attention"
    with sdpa_kernel(BACKENDS[name]):  # as in the forward pass: a disabled backend supports nothing
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
    """Arguments of one call of scaled_dot_product_attention, in its order."""

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
        """Whether PyTorch's own dispatch chooses no fused kernel."""
        arguments = (self.query, self.key, self.value, self.attn_mask, self.dropout_p, self.is_causal)
        chosen = torch._fused_sdp_choice(*arguments, scale=self.scale, enable_gqa=self.enable_gqa)
        return SDPBackend(chosen) == SDPBackend.MATH

    def describe(self) -> str:
        words = f"{str(self.query.dtype).removeprefix('torch.')} {list(self.query.shape)}"
        mask = self.attn_mask
        if mask is None:
            return words
        return f"{words} with a {str(mask.dtype).removeprefix('torch.')} mask {list(mask.shape)} of strides {list(mask.stride())}"


def _takes(name: str, call: _Attention) -> bool:
    tensors = (call.query, call.key, call.value, call.attn_mask)
    return bool(SUPPORT_CHECKS[name](SDPAParams(*tensors, call.dropout_p, call.is_causal, call.enable_gqa)))


# as called by modules, and by the graphs of blocks
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


# Attention that no fused kernel supports runs in PyTorch's math path: products and a softmax that write all attention weights to
# memory, in fp32 for 16-bit inputs.


def math_path_report(net: nn.Module, inputs: Mapping[str, Any]) -> str | None:
    """Describe in one line the attentions of one forward that run in the math path; None where none does.

    Args:
        net: in eval mode, on the inputs' device.
    """
    with _Watch(lambda call: call.describe() if call.in_math_path else None) as watch, torch.inference_mode():
        net(**inputs)
    slow = Counter(words for words in watch.calls if words is not None)
    if not slow:
        return None
    what = "; ".join(f"{count} x {words}" for words, count in slow.items())
    return f"{slow.total()} of {len(watch.calls)} attentions run in PyTorch's math path, which is slow: {what}"
