"""Rebuild layers with other weight storage as Linears, so that they can be pruned and swapped.

transformers' `Conv1D` (GPT-2) stores [K, N], its experts are 3-D, `nn.MultiheadAttention` packs three weights into one
parameter, `nn.LSTM` has its own weights, and torchvision's Swin attention reads the weights of its Linears without calling
them. Outputs are equal up to rounding.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from sparsefront.models.attention import PROJECTIONS, WindowAttention, replace_modules, split_multihead_attention
from sparsefront.models.experts import SplitExperts, are_experts
from sparsefront.models.recurrent import SplitLSTM, unsplit_reason
from sparsefront.networks import has_forward_hooks


class Conv1DLinear(nn.Linear):
    """A `Conv1D` as a Linear with weight [N, K]. State dicts contain [K, N], for `from_pretrained`."""

    @property
    def nf(self) -> int:
        return self.out_features

    @property
    def nx(self) -> int:
        return self.in_features

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        name = f"{prefix}weight"
        if name in destination:  # absent if the weight is computed
            destination[name] = destination[name].t()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        name = f"{prefix}weight"
        weight = state_dict.get(name)
        if not isinstance(weight, Tensor) or weight.dim() != 2:
            super()._load_from_state_dict(state_dict, prefix, *rest)
            return
        state_dict[name] = weight.t().contiguous()
        try:
            super()._load_from_state_dict(state_dict, prefix, *rest)
        finally:
            state_dict[name] = weight


def as_linears(net: nn.Module, layers: Collection[str] | None = None, *, copies: bool = False) -> list[str]:
    """Rebuild such layers in place; parameters of a Conv1D or LSTM stay the same objects.

    Layers with forward hooks, added keys or projections, or in an `nn.TransformerEncoder` that makes nested tensors, are not
    rebuilt.

    Args:
        layers: rebuild only what contains these Linears; None: all.
        copies: give a Conv1D its own parameters, for a network that shares its weights with another.
    Returns:
        the names of the replaced modules.
    """
    packed = nn.MultiheadAttention | nn.LSTM
    if not any(
        _is_conv1d(module) or _is_window_attention(module) or are_experts(module) or isinstance(module, packed)
        for module in net.modules()
    ):
        return []
    nested = {
        attention
        for encoder in net.modules()
        if isinstance(encoder, nn.TransformerEncoder) and encoder.use_nested_tensor
        for attention in encoder.modules()
    }

    def made(name: str, module: nn.Module) -> nn.Module | None:
        if _is_conv1d(module) and (layers is None or name in layers):
            return _linear_of(module, copies)
        if _is_window_attention(module):
            return WindowAttention(module)
        if are_experts(module):
            selected = layers is None or any(layer.startswith(f"{name}.0.") for layer in layers)
            return SplitExperts(module) if selected else None
        if isinstance(module, nn.LSTM):
            selected = layers is None or any(layer.startswith((f"{name}.ih_l", f"{name}.hh_l")) for layer in layers)
            return SplitLSTM(module) if selected and unsplit_reason(module) is None else None
        if not isinstance(module, nn.MultiheadAttention) or module in nested or not _can_be_split(module):
            return None
        parts = [f"{name}.{part}" for part in (*PROJECTIONS, "out")]
        return split_multihead_attention(module) if layers is None or any(part in layers for part in parts) else None

    return replace_modules(net, made)


def conv1d_layers(net: nn.Module) -> list[str]:
    """Names of the layers that `as_linears` makes of a Conv1D."""
    return [name for name, module in net.named_modules() if _is_conv1d(module)]


def _is_conv1d(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.") and not has_forward_hooks(module)


def _is_window_attention(module: nn.Module) -> bool:
    kind = f"{type(module).__module__}.{type(module).__name__}"
    known = kind == "torchvision.models.swin_transformer.ShiftedWindowAttention"
    return known and not any(map(has_forward_hooks, module.modules()))


def _can_be_split(packed: nn.MultiheadAttention) -> bool:
    plain = type(packed) is nn.MultiheadAttention and packed.bias_k is None and not packed.add_zero_attn
    return plain and not has_forward_hooks(packed) and not has_forward_hooks(packed.out_proj)


@torch.no_grad()
def _linear_of(module: nn.Module, copies: bool) -> Conv1DLinear:
    weight, bias = module.weight, module.bias
    assert isinstance(weight, nn.Parameter) and isinstance(bias, nn.Parameter)
    inputs, outputs = weight.shape
    linear = Conv1DLinear(inputs, outputs, device="meta")
    if copies:
        weight = nn.Parameter(weight.t().contiguous(), requires_grad=weight.requires_grad)
    else:
        weight.grad = None
        weight.data = weight.data.t().contiguous()
    linear.weight, linear.bias = weight, bias
    return linear.train(module.training)
