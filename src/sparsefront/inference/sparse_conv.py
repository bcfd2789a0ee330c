"""A convolution as the product that it is: pixels by the weight viewed as [C_out, kh*kw*C_in]."""

import torch
from sparsefront_kernels import KernelEntry, SparseFormat
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import Tensor, nn

from sparsefront.masks.weight_view import like_weight, pixel_rows


class SparseConv2d(SparseLayer):
    """Takes [B, C_in, H, W] and gives [B, C_out, H', W'] (channels last in memory), as nn.Conv2d does.

    A 1x1 filter with stride 1 reads channels_last pixels as they are; the others go through im2col, whose copy is part of
    the layer's time.
    """

    def __init__(self, entry: KernelEntry, format: SparseFormat, layer: nn.Conv2d) -> None:
        if (reason := conv_unsupported_reason(layer)) is not None:
            raise ValueError(reason)
        super().__init__(entry, format, layer.bias)
        self.in_channels, self.out_channels = layer.in_channels, layer.out_channels
        self.kernel_size, self.stride = layer.kernel_size, layer.stride
        self.padding, self.dilation = layer.padding, layer.dilation

    @classmethod
    def replacing(cls, layer: nn.Conv2d, entry: KernelEntry, format: SparseFormat) -> "SparseConv2d":
        return cls(entry, format, layer)

    @property
    def weight(self) -> Tensor:
        shape = (self.out_channels, self.in_channels, *self.kernel_size)
        return like_weight(super().weight, torch.empty(shape, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        height, width = (
            (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for size, padding, dilation, kernel, stride in zip(
                x.shape[2:], self.padding, self.dilation, self.kernel_size, self.stride, strict=True
            )
        )
        y = self.product(self._pixels(x))  # [B * H' * W', C_out]
        return y.reshape(x.shape[0], height, width, self.out_channels).permute(0, 3, 1, 2)

    def _pixels(self, x: Tensor) -> Tensor:
        """[B * H' * W', kh * kw * C_in]: what each output pixel sees."""
        return pixel_rows(x, self.kernel_size, dilation=self.dilation, padding=self.padding, stride=self.stride)


def conv_unsupported_reason(layer: nn.Conv2d) -> str | None:
    """Why this convolution cannot be one product, or None."""
    if layer.groups != 1:
        return f"convolution in {layer.groups} groups"
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return (
            f"convolution with padding {layer.padding} of mode {layer.padding_mode}: only zeros, given as numbers, work"
        )
    return None
