"""Modules of a network as a swap finds them: exchanged, convolutions as products, encoders' fast path."""

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self

import torch
from sparsefront_kernels import FORMATS, KernelEntry, SparseFormat
from sparsefront_kernels.problem import Convolution, Convolving
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import Tensor, nn
from torch._inductor.exc import OperatorIssue

from sparsefront.masks.weight_view import like_weight, pixel_rows
from sparsefront.pruning.layers import conv_unsupported_reason

# What results call the kernels of layers that stayed dense.

DENSE_LINEAR, DENSE_CONV2D = DENSE_KERNELS = ("dense_linear", "dense_conv2d")


# Messages of torch.compile about operators, kept short.
#
# Inductor writes out the operands of an operator that it has no code for, as all of ours, when it meets the first of
# its kind; those of the operands too, and so on. In a chain of them with residual connections that text doubles with
# each block: a network of six blocks kept a processor busy for more than ten minutes, where others compile in
# seconds. torch 2.11 makes it for a log that is off, 2.15 for errors and for those who read the log.


def shorten_compiler_messages() -> None:
    """Have Inductor name the kinds of operands alone, from now on; for whoever gives a network operators of ours."""
    OperatorIssue.operator_str = staticmethod(_operator_text)  # type: ignore[method-assign]


def _operator_text(target: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    named = (f"{name}: {type(value).__name__}" for name, value in kwargs.items())
    return f"  {target}({', '.join([*(type(value).__name__ for value in args), *named])})"


def replace_module(net: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put `new` wherever `old` hangs: a layer shared by several parents stays one layer."""
    for parent in list(net.modules()):
        for attribute, child in list(parent._modules.items()):  # named_children would skip a second name
            if child is old:
                setattr(parent, attribute, new)


def release_formats(net: nn.Module) -> None:
    """Move every format to the CPU whose kernel reads a packed copy of it; layers still give, move and copy their weight."""
    for module in net.modules():
        if isinstance(module, SparseLayer):
            module.release_format()


# A convolution as the product that it is: what output pixels see by the weight viewed as [C_out, kh*kw*C_in].


class SparseConv2d(SparseLayer):
    """Takes [B, C_in, H, W] and gives [B, C_out, H', W'] (channels last in memory), as nn.Conv2d does.

    A convolution in groups is one product as well, with zeros where outputs do not read an input channel: see `join_groups`.
    A 1x1 filter with stride 1 reads channels_last pixels as they are. Others are left to a kernel that reads images itself,
    where it can; elsewhere they go through im2col, whose copy is part of the layer's time.
    """

    def __init__(self, entry: KernelEntry, format: SparseFormat, layer: nn.Conv2d, layout: str | None = None) -> None:
        if (reason := conv_unsupported_reason(layer)) is not None:
            raise ValueError(reason)
        super().__init__(entry, format, layer.bias, layout)
        self.in_channels, self.out_channels = layer.in_channels, layer.out_channels
        self.kernel_size, self.stride = layer.kernel_size, layer.stride
        self.padding, self.dilation = _pair(layer.padding), layer.dilation
        self.padding_mode, self.groups = layer.padding_mode, 1
        self.relu = False
        self.convolution = Convolution(*map(_pair, (layer.kernel_size, layer.stride, layer.padding, layer.dilation)))

    @classmethod
    def replacing(cls, layer: nn.Conv2d, entry: KernelEntry, format: SparseFormat, layout: str | None = None) -> Self:
        return cls(entry, format, layer, layout)

    @property
    def _convolving(self) -> Convolving | None:
        """How the kernel reads images, which are row-major."""
        return self._entry.convolving if self.kernel_layout == "row_major" else None

    @property
    def weight(self) -> Tensor:
        shape = (self.out_channels, self.in_channels, *self.kernel_size)
        return like_weight(super().weight, torch.empty(shape, device="meta"))

    def with_relu(self) -> Self | None:
        """A copy that gives max(0, y), or max(0, y + residual); None where the kernel would leave that to passes of their own."""
        if self._convolving is None:
            return None
        other = copy.deepcopy(self)
        other.relu = True
        return other

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """`input` is called as nn.Conv2d calls it."""
        y = self._convolved(input, residual)
        if y is not None:
            return y.permute(0, 3, 1, 2)
        rows = self.product(self._pixels(input))  # [B * H' * W', C_out]
        size = self.convolution.output_size(*input.shape[2:])
        y = rows.reshape(input.shape[0], *size, self.out_channels).permute(0, 3, 1, 2)
        y = y if residual is None else y + residual
        return y.relu() if self.relu else y

    def copies_because(self, x: Tensor) -> str | None:
        """Why what output pixels see is copied into rows first (im2col), or None where images are read as they are.

        Args:
            x: [B, C_in, H, W], channels last in memory.
        """
        if self.convolution.is_pointwise:
            return None
        if self._convolving is None:
            return f"{self.kernel_name} reads rows"
        return self._convolving.unsupported(self._operand, x.permute(0, 2, 3, 1), self.convolution)

    def _convolved(self, x: Tensor, residual: Tensor | None) -> Tensor | None:
        """[B, H', W', C_out] by a kernel that reads images; None where rows of pixels are as good, or it cannot."""
        reads, plain = self._convolving, residual is None and not self.relu
        if reads is None or (plain and self.convolution.is_pointwise) or (torch.is_grad_enabled() and x.requires_grad):
            return None  # such kernels have no gradient
        if torch.is_autocast_enabled(x.device.type):  # as `product`: in the weight's dtype whatever autocast says
            x = x.to(self.format.dtype)
            residual = None if residual is None else residual.to(self.format.dtype)
        images = x.permute(0, 2, 3, 1).contiguous()
        if reads.unsupported(self._operand, images, self.convolution) is not None:
            return None
        added = None if residual is None else residual.permute(0, 2, 3, 1).contiguous()
        ending = {"relu_last": self.relu} if added is not None else {"activation": "relu" if self.relu else "none"}
        return reads.run(images, self._operand, self.bias, self.convolution, residual=added, **ending)

    def _pixels(self, x: Tensor) -> Tensor:
        """[B * H' * W', kh * kw * C_in]: what each output pixel sees."""
        return pixel_rows(x, self.kernel_size, dilation=self.dilation, padding=self.padding, stride=self.stride)


def join_groups(stored: SparseFormat, mask: Tensor, groups: int, taps: int) -> tuple[SparseFormat, Tensor]:
    """The weight of a convolution in groups as that of one product: in the format of its pattern, or as single weights where
    that one cannot hold it.

    Args:
        stored: the weight [C_out, taps * C_in / groups].
        mask: bool, shaped so, True = keep.
        taps: of the filter.
    Returns:
        format and mask of [C_out, taps * C_in], in which outputs keep nothing of other groups' channels.
    """
    weight, mask = (_side_by_side(matrix, groups, taps) for matrix in (stored.to_dense(), mask.to(stored.device)))
    settings = {"blocked": ("block",), "ell": ("block",), "gathered": ("tile",)}.get(stored.family)
    if settings is not None:
        kept: dict[str, Any] = {name: getattr(stored, name) for name in settings}
        if stored.family == "gathered":
            kept["drop_empty_outputs"] = False
        with suppress(ValueError):  # how a format says that a mask does not have its structure
            return FORMATS[stored.family].from_dense(weight, mask, **kept), mask
    return FORMATS["csr"].from_dense(weight, mask), mask


def _side_by_side(matrix: Tensor, groups: int, taps: int) -> Tensor:
    outputs, channels = len(matrix) // groups, matrix.shape[1] // taps
    joined = matrix.new_zeros(groups, outputs, taps, groups, channels)
    each = torch.arange(groups, device=matrix.device)
    joined[each, :, :, each] = matrix.view(groups, outputs, taps, channels)
    return joined.view(len(matrix), -1)


def _pair(sides: str | tuple[int, ...]) -> tuple[int, int]:
    assert not isinstance(sides, str)  # padding in words is refused, see `conv_unsupported_reason`
    height, width = sides
    return height, width


# PyTorch's fast path of encoder layers, which reads the weights of Linears and calls none of them.


def leave_fast_path(net: nn.Module) -> None:
    """Make every encoder layer that holds a sparse layer call its parts in inference too, in place.

    The fast path is one operator on dense weights, for ReLU and GELU. It runs where the layer notes one of these in
    `activation_relu_or_gelu`, which nothing else reads.
    """
    for module in net.modules():
        if isinstance(module, nn.TransformerEncoderLayer) and _holds_sparse_layer(module):
            module.activation_relu_or_gelu = 0


def _holds_sparse_layer(module: nn.Module) -> bool:
    return any(isinstance(part, SparseLayer) for part in module.modules())


# Networks of transformers record hidden states and attentions of modules of some classes, when a call asks for them. Of blocks
# that were rewritten there are none left, and it would return an empty tuple.


def recorded_outputs(net: nn.Module) -> dict[tuple[str, str], int]:
    """(network in `net` that records, argument that asks for it) -> of how many modules it records."""
    found: dict[tuple[str, str], int] = {}
    for name, module in net.named_modules():
        for what, recorder in (getattr(module, "_can_record_outputs", None) or {}).items():
            classes = [
                getattr(one, "target_class", one) for one in (recorder if isinstance(recorder, list) else [recorder])
            ]
            kinds = tuple(one for one in classes if isinstance(one, type))
            asks = "output_attentions" if what.endswith("attentions") else f"output_{what}"
            count = sum(isinstance(part, kinds) for part in module.modules())
            found[name, asks] = found.get((name, asks), 0) + count
    return found


def refuse_lost_outputs(net: nn.Module, before: Mapping[tuple[str, str], int]) -> None:
    """Calls that ask for what is no longer recorded of every module end with an error."""
    after = recorded_outputs(net)
    for (name, asks), count in before.items():
        if name in dict(net.named_modules()) and after.get((name, asks), 0) < count:
            net.get_submodule(name).register_forward_pre_hook(partial(_require_not_asked, asks), with_kwargs=True)


def _require_not_asked(asks: str, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    asked = kwargs.get(asks)
    if asked or (asked is None and getattr(getattr(module, "config", None), asks, False)):
        raise RuntimeError(
            f"{asks}: sf.swap has rewritten blocks whose outputs this network would have returned; swap a copy with "
            f"config.{asks}=True, or with kernel=sf.KernelChoice(fuse=False)"
        )
