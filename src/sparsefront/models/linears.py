"""Rebuild layers with other weight storage as Linears, so that they can be pruned and swapped.

transformers' `Conv1D` (GPT-2) stores [K, N], its experts are 3-D, `nn.MultiheadAttention` packs three weights into one
parameter, `nn.LSTM` and `nn.GRU` have their own weights, transposed convolutions multiply pixels and add up patches, and
torchvision's Swin attention reads the weights of its Linears without calling them. Outputs are equal up to rounding.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvTransposeNd

from sparsefront.models.attention import PROJECTIONS, WindowAttention, replace_modules, split_multihead_attention
from sparsefront.models.experts import SplitExperts, are_experts
from sparsefront.models.recurrent import SplitGRU, SplitLSTM, is_plain_linear, unsplit_reason
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


class SplitConvTranspose(nn.Module):
    """A drop-in replacement for `nn.ConvTranspose1d` and `nn.ConvTranspose2d` without groups: the Linear `product`, whose outputs
    [C_out * kh * kw] are the patches of each pixel, and their sum. Also loads state dicts of those.

    Args:
        packed: source of parameters and settings.
        copies: give it its own weight, for a network that shares it with another.
    """

    def __init__(self, packed: _ConvTransposeNd, copies: bool) -> None:
        super().__init__()
        weight, self.dims = packed.weight, packed.weight.dim() - 2
        matrix = weight.detach().flatten(1).t().contiguous()
        self.product = nn.Linear(*reversed(matrix.shape), bias=False, device="meta")
        if copies:
            weight = nn.Parameter(matrix, requires_grad=weight.requires_grad)
        else:
            weight.grad, weight.data = None, matrix
        self.product.weight, self.bias = weight, packed.bias
        self.out_channels, self.kernel_size, self.dilation = packed.out_channels, packed.kernel_size, packed.dilation
        self.stride, self.padding, self.output_padding = packed.stride, packed.padding, packed.output_padding
        self.train(packed.training)

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """As nn.ConvTranspose2d: [B, C_in, H, W] or [C_in, H, W]."""
        settings = self.stride, self.padding, self.kernel_size
        more: Any = _ConvTransposeNd._output_padding(self, input, output_size, *settings, self.dims, self.dilation)  # type: ignore[arg-type]
        if is_plain_linear(self.product):
            weight = self.product.weight.t().unflatten(1, (self.out_channels, *self.kernel_size))
            run: Any = F.conv_transpose1d if self.dims == 1 else F.conv_transpose2d
            result: Tensor = run(input, weight, self.bias, self.stride, self.padding, more, 1, self.dilation)
            return result
        x = input if input.dim() == self.dims + 2 else input[None]
        sides = zip(x.shape[2:], *settings, self.dilation, more, strict=True)
        size = [
            (pixels - 1) * stride - 2 * padding + dilation * (taps - 1) + rest + 1
            for pixels, stride, padding, taps, dilation, rest in sides
        ]
        fill = [1] * (2 - self.dims)  # a sequence is an image of one row
        shape = {"kernel_size": (*fill, *self.kernel_size), "dilation": (*fill, *self.dilation)}
        shape |= {"padding": (*(0 for _ in fill), *self.padding), "stride": (*fill, *self.stride)}
        patches = self.product(x.flatten(2).transpose(1, 2)).transpose(1, 2)
        y = F.fold(patches, (*fill, *size), **shape).reshape(len(x), self.out_channels, *size)
        y = y if self.bias is None else y + self.bias.view(-1, *(1 for _ in size))
        return y if x is input else y[0]

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        weight = state_dict.pop(f"{prefix}weight", None)
        if weight is not None:
            state_dict[f"{prefix}product.weight"] = weight.flatten(1).t().contiguous()
        super()._load_from_state_dict(state_dict, prefix, *rest)


def as_linears(net: nn.Module, layers: Collection[str] | None = None, *, copies: bool = False) -> list[str]:
    """Rebuild such layers in place; parameters of a Conv1D, transposed convolution or LSTM stay the same objects.

    Layers with forward hooks, added keys or projections, or in an `nn.TransformerEncoder` that makes nested tensors, are not
    rebuilt.

    Args:
        layers: rebuild only what contains these Linears; None: all.
        copies: give a Conv1D or transposed convolution its own parameters, for a network that shares its weights with another.
    Returns:
        the names of the replaced modules.
    """
    packed = nn.MultiheadAttention | nn.LSTM | nn.GRU | nn.ConvTranspose1d | nn.ConvTranspose2d
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

    def convert(name: str, module: nn.Module) -> nn.Module | None:
        if _is_conv1d(module) and (layers is None or name in layers):
            return _linear_of(module, copies)
        if _is_window_attention(module):
            return WindowAttention(module)
        if are_experts(module):
            selected = layers is None or any(layer.startswith(f"{name}.0.") for layer in layers)
            return SplitExperts(module) if selected else None
        if isinstance(module, nn.LSTM | nn.GRU):
            selected = layers is None or any(layer.startswith((f"{name}.ih_l", f"{name}.hh_l")) for layer in layers)
            split = SplitLSTM if isinstance(module, nn.LSTM) else SplitGRU
            return split(module) if selected and unsplit_reason(module) is None else None
        if isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d):
            selected = layers is None or f"{name}.product" in layers
            return SplitConvTranspose(module, copies) if selected and _is_plain_transposed(module) else None
        if not isinstance(module, nn.MultiheadAttention) or module in nested or not _can_be_split(module):
            return None
        parts = [f"{name}.{part}" for part in (*PROJECTIONS, "out")]
        return split_multihead_attention(module) if layers is None or any(part in layers for part in parts) else None

    return replace_modules(net, convert)


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


def _is_plain_transposed(module: _ConvTransposeNd) -> bool:
    plain = type(module) in (nn.ConvTranspose1d, nn.ConvTranspose2d) and "weight" in module._parameters
    return plain and module.groups == 1 and not has_forward_hooks(module)


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
