"""Weights as the matrix [N, K] of the product Y[M, N] = X[M, K] W[N, K]^T, and permutations of its outputs and inputs.

The columns of a convolution are ordered by tap, then input channel: column (i * kw + j) * C_in + c is input channel c at row i
and column j of the filter. A block, a vector or an n:m window thus has neighboring channels of one pixel, which are contiguous in
channels-last images. Only this file depends on the order.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


def as_matrix(weight: Tensor) -> Tensor:
    """A weight, or a mask or scores of its shape, as [N, K].

    Matrices such as Linear [N, K] are unchanged; Conv2d [C_out, C_in, kh, kw] becomes [C_out, kh*kw*C_in]. Do not modify the
    result: it is a view if the memory layout allows it (Linear, 1x1, channels_last), else a copy.

    Raises:
        ValueError: a weight with fewer than two dimensions.
    """
    if weight.dim() < 2:
        raise ValueError(f"a weight of shape {list(weight.shape)} is no matrix: Linear and Conv2d weights have one")
    return weight.movedim(1, -1).flatten(start_dim=1)


def like_weight(matrix: Tensor, weight: Tensor) -> Tensor:
    """The inverse of `as_matrix`: a matrix [N, K] (a mask, scores) in the shape of `weight`, contiguous if the weight is.

    A tensor of that shape is unchanged; check other shapes with `fits`.
    """
    if matrix.shape == weight.shape:
        return matrix
    outputs, inputs, *kernel_size = weight.shape
    shaped = matrix.reshape(outputs, *kernel_size, inputs).movedim(-1, 1)
    return shaped.contiguous() if weight.is_contiguous() else shaped


def fits(matrix: Tensor, weight: Tensor) -> bool:
    """Whether `like_weight` accepts a tensor: shaped like the weight, or like its matrix [N, K]."""
    return matrix.shape in (weight.shape, (weight.shape[0], weight[0].numel()))


def pixel_rows(
    images: Tensor,
    kernel_size: tuple[int, ...],
    *,
    dilation: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0),
    stride: tuple[int, ...] = (1, 1),
) -> Tensor:
    """im2col: the patch of each output pixel of a convolution, with columns in the order of `as_matrix`.

    Args:
        images: [B, C_in, height, width]; channels_last ones save a copy.
        padding: rows of zeros above and below, columns left and right.
    Returns:
        [B * output pixels, kh * kw * C_in]; a copy, except for a 1x1 filter with stride 1 on channels_last images.
    """
    if any(padding):
        images = F.pad(images, (padding[1], padding[1], padding[0], padding[0]))
    pixels = images.permute(0, 2, 3, 1)  # [B, height, width, C_in]
    if max(kernel_size) > 1:  # taps share pixels: convert to channels_last once, not once per tap
        pixels = pixels.contiguous()
    for side, (taps, apart, step) in enumerate(zip(kernel_size, dilation, stride, strict=True)):
        pixels = pixels.unfold(1 + side, apart * (taps - 1) + 1, step)[..., ::apart]
    # [B, H', W', C_in, kh, kw], still a view
    return pixels.permute(0, 1, 2, 4, 5, 3).reshape(-1, kernel_size[0] * kernel_size[1] * images.shape[1])


# A permutation of outputs and inputs in which a weight obeys its pattern.


@dataclass(frozen=True, eq=False)
class Permutation:
    """A permutation of the outputs, of the inputs, or of both, of a weight [N, K].

    Masks and weights stay in the network's order except in storage: a format stores permuted rows or columns and the
    permutation, and its kernel reads or writes through it. No other layer has to be permuted, and the network's function is
    unchanged.

    Args:
        outputs: int64 [N]; position i has output outputs[i]. None = identity.
        inputs: int64 [K], likewise.
    """

    outputs: Tensor | None = None
    inputs: Tensor | None = None

    def apply(self, matrix: Tensor) -> Tensor:
        """Permute a matrix [N, K] (weight, scores or mask); a copy unless this is the identity."""
        if self.outputs is not None:
            matrix = matrix.index_select(0, self.outputs.to(matrix.device))
        if self.inputs is not None:
            matrix = matrix.index_select(1, self.inputs.to(matrix.device))
        return matrix

    def invert(self, matrix: Tensor) -> Tensor:
        """The inverse: a permuted [N, K] back in the network's order."""
        if self.outputs is not None:
            matrix = matrix.index_select(0, torch.argsort(self.outputs).to(matrix.device))
        if self.inputs is not None:
            matrix = matrix.index_select(1, torch.argsort(self.inputs).to(matrix.device))
        return matrix

    def orders(self) -> dict[str, Tensor]:
        """The keyword arguments `output_order` and `input_order` of a format's `from_dense`, without identities."""
        orders = {"output_order": self.outputs, "input_order": self.inputs}
        return {name: order for name, order in orders.items() if order is not None}
