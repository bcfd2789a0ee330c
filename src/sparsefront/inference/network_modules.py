"""Changes to a network's modules in a swap: replacement, sparse convolutions, and workarounds for PyTorch and transformers."""

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

from sparsefront.masks.weight_view import like_weight, pixel_rows
from sparsefront.pruning.layers import conv_unsupported_reason

# Short messages of torch.compile about custom operators.
#
# When Inductor meets a custom operator, as all of ours are, it formats the operator's operands, recursively. In a chain of
# them with residual connections that text doubles with each block: a network of six blocks took more than ten minutes of CPU
# time, where others compile in seconds. torch 2.11 formats it for a disabled log, 2.15 for errors and an enabled log.


def shorten_compiler_messages() -> None:
    """Make Inductor print only the types of operands, from now on; call it before compiling our operators."""
    from torch._inductor.exc import OperatorIssue  # late: it brings the whole compiler

    OperatorIssue.operator_str = staticmethod(_operator_text)  # type: ignore[method-assign]


def _operator_text(target: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    keyword_types = (f"{name}: {type(value).__name__}" for name, value in kwargs.items())
    return f"  {target}({', '.join([*(type(value).__name__ for value in args), *keyword_types])})"


def replace_module(net: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Replace `old` by `new` in every parent, so that a shared layer stays shared."""
    for parent in list(net.modules()):
        for attribute, child in list(parent._modules.items()):  # named_children skips duplicates
            if child is old:
                setattr(parent, attribute, new)


def release_formats(net: nn.Module) -> None:
    """Move formats to the CPU whose kernels read packed weights; layers can still return, move and copy their weight."""
    for module in net.modules():
        if isinstance(module, SparseLayer):
            module.release_format()


# A convolution as a product: patches of pixels times the weight viewed as [C_out, kh*kw*C_in].


class SparseConv2d(SparseLayer):
    """[B, C_in, H, W] -> [B, C_out, H', W'] (channels-last memory), as nn.Conv2d.

    A grouped convolution is one product as well, with zeros for channels of other groups: see `join_groups`. A 1x1 filter
    with stride 1 reads channels-last pixels directly. Others run in a kernel for implicit convolution if it supports them,
    else through im2col, whose copy counts in the layer's time.
    """

    def __init__(self, entry: KernelEntry, format: SparseFormat, layer: nn.Conv2d, layout: str | None = None) -> None:
        reason = conv_unsupported_reason(layer)
        if reason is not None:
            raise ValueError(reason)
        super().__init__(entry, format, layer.bias, layout)
        self.in_channels, self.out_channels = layer.in_channels, layer.out_channels
        self.kernel_size, self.stride = layer.kernel_size, layer.stride
        self.padding, self.dilation = _pair(layer.padding), layer.dilation
        self.padding_mode, self.groups = layer.padding_mode, 1
        self.relu = False
        self.convolution = Convolution(*map(_pair, (layer.kernel_size, layer.stride, layer.padding, layer.dilation)))

    @property
    def _convolving(self) -> Convolving | None:
        """The kernel's implicit convolution; only for row-major kernels."""
        return self._entry.convolving if self.kernel_layout == "row_major" else None

    @property
    def weight(self) -> Tensor:
        shape = (self.out_channels, self.in_channels, *self.kernel_size)
        return like_weight(super().weight, torch.empty(shape, device="meta"))

    def with_relu(self) -> Self | None:
        """A copy that computes max(0, y), or max(0, y + residual); None where the kernel cannot fuse that."""
        if self._convolving is None:
            return None
        other = copy.deepcopy(self)
        other.relu = True
        return other

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """The argument is named as in nn.Conv2d."""
        y = self._convolve(input, residual)
        if y is not None:
            return y.permute(0, 3, 1, 2)
        rows = self.product(self._pixels(input))  # [B * H' * W', C_out]
        size = self.convolution.output_size(*input.shape[2:])
        y = rows.reshape(input.shape[0], *size, self.out_channels).permute(0, 3, 1, 2)
        y = y if residual is None else y + residual
        return y.relu() if self.relu else y

    def copies_because(self, x: Tensor) -> str | None:
        """Why the layer needs im2col, or None where its kernel reads images directly.

        Args:
            x: [B, C_in, H, W], in channels-last memory.
        """
        if self.convolution.is_pointwise:
            return None
        if self._convolving is None:
            return f"{self.kernel_name} reads rows"
        return self._convolving.unsupported(self._operand, x.permute(0, 2, 3, 1), self.convolution)

    def _convolve(self, x: Tensor, residual: Tensor | None) -> Tensor | None:
        """[B, H', W', C_out] by implicit convolution; None where the kernel does not support it or rows are as fast."""
        reads, plain = self._convolving, residual is None and not self.relu
        if reads is None or (plain and self.convolution.is_pointwise) or (torch.is_grad_enabled() and x.requires_grad):
            return None  # such kernels have no gradient
        if torch.is_autocast_enabled(x.device.type):  # as in `product`: use the weight's dtype under autocast
            x = x.to(self.format.dtype)
            residual = None if residual is None else residual.to(self.format.dtype)
        images = x.permute(0, 2, 3, 1).contiguous()
        if reads.unsupported(self._operand, images, self.convolution) is not None:
            return None
        added = None if residual is None else residual.permute(0, 2, 3, 1).contiguous()
        epilogue = {"relu_last": self.relu} if added is not None else {"activation": "relu" if self.relu else "none"}
        return reads.run(images, self._operand, self.bias, self.convolution, residual=added, **epilogue)

    def _pixels(self, x: Tensor) -> Tensor:
        """[B * H' * W', kh * kw * C_in]: the patch of each output pixel."""
        return pixel_rows(x, self.kernel_size, dilation=self.dilation, padding=self.padding, stride=self.stride)


def join_groups(stored: SparseFormat, mask: Tensor, groups: int, taps: int) -> tuple[SparseFormat, Tensor]:
    """The weight of a grouped convolution as one product: in the format of its pattern, or as CSR if that cannot store it.

    Args:
        stored: the weight [C_out, taps * C_in / groups].
        mask: bool, same shape, True = keep.
        taps: kh * kw.
    Returns:
        format and mask of [C_out, taps * C_in], zero for channels of other groups.
    """
    weight, mask = (_block_diagonal(matrix, groups, taps) for matrix in (stored.to_dense(), mask.to(stored.device)))
    settings = {"blocked": ("block",), "ell": ("block",), "gathered": ("tile",)}.get(stored.family)
    if settings is not None:
        options: dict[str, Any] = {name: getattr(stored, name) for name in settings}
        if stored.family == "gathered":
            options["drop_empty_outputs"] = False
        with suppress(ValueError):  # the format does not support the mask's structure
            return FORMATS[stored.family].from_dense(weight, mask, **options), mask
    return FORMATS["csr"].from_dense(weight, mask), mask


def _block_diagonal(matrix: Tensor, groups: int, taps: int) -> Tensor:
    outputs, channels = len(matrix) // groups, matrix.shape[1] // taps
    joined = matrix.new_zeros(groups, outputs, taps, groups, channels)
    each = torch.arange(groups, device=matrix.device)
    joined[each, :, :, each] = matrix.view(groups, outputs, taps, channels)
    return joined.view(len(matrix), -1)


def _pair(sides: str | tuple[int, ...]) -> tuple[int, int]:
    assert not isinstance(sides, str)  # string padding is unsupported, see `conv_unsupported_reason`
    height, width = sides
    return height, width


# PyTorch's fast path of encoder layers, which reads the weights of Linears without calling them.


def disable_fast_path(net: nn.Module) -> None:
    """Disable the fast path of every encoder layer that contains a sparse layer, in place.

    The fast path is one operator on dense weights, taken if `activation_relu_or_gelu` is set, which nothing else reads.
    """
    for module in net.modules():
        if isinstance(module, nn.TransformerEncoderLayer) and any(
            isinstance(part, SparseLayer) for part in module.modules()
        ):
            module.activation_relu_or_gelu = 0


# On request, networks of transformers record hidden states and attentions of modules of some classes. Rewritten blocks have no
# such modules, and the network would return an empty tuple.


def count_recorded_outputs(net: nn.Module) -> dict[tuple[str, str], int]:
    """(name of the recording network in `net`, argument that requests it) -> number of recorded modules."""
    counts: dict[tuple[str, str], int] = {}
    for name, module in net.named_modules():
        for what, recorder in (getattr(module, "_can_record_outputs", None) or {}).items():
            classes = [
                getattr(one, "target_class", one) for one in (recorder if isinstance(recorder, list) else [recorder])
            ]
            kinds = tuple(one for one in classes if isinstance(one, type))
            asks = "output_attentions" if what.endswith("attentions") else f"output_{what}"
            count = sum(isinstance(part, kinds) for part in module.modules())
            counts[name, asks] = counts.get((name, asks), 0) + count
    return counts


def reject_lost_outputs(net: nn.Module, before: Mapping[tuple[str, str], int]) -> None:
    """Make calls raise that request outputs which are no longer recorded for every module."""
    after = count_recorded_outputs(net)
    for (name, asks), count in before.items():
        if name in dict(net.named_modules()) and after.get((name, asks), 0) < count:
            net.get_submodule(name).register_forward_pre_hook(partial(_reject_request, asks), with_kwargs=True)


def _reject_request(asks: str, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    asked = kwargs.get(asks)
    if asked or (asked is None and getattr(getattr(module, "config", None), asks, False)):
        raise RuntimeError(
            f"{asks}: sf.swap has rewritten blocks whose outputs this network would have returned; swap a copy with "
            f"config.{asks}=True, or with kernel=sf.KernelChoice(fuse=False)"
        )
