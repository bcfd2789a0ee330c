"""Weights as the matrix [N, K] of the product Y[M, N] = X[M, K] W[N, K]^T, and permutations of its outputs and inputs.

The columns of a convolution lie tap by tap, the input channels of one tap next to each other: column
(i * kw + j) * C_in + c is input channel c at row i and column j of the filter. A block, a vector or an n:m window thus holds
neighboring channels of one pixel, which channels_last images have next to each other in memory. Only this file knows the order.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# Linear and convolution weights seen as the matrix [N, K] of the product Y[M, N] = X[M, K] W[N, K]^T.
#
# The columns of a convolution lie tap by tap, the input channels of one tap next to each other: column (i * kw + j) *
# C_in + c is input channel c at row i and column j of the filter. A block, a vector or an n:m window thus holds
# neighboring channels of one pixel, which channels_last images have next to each other in memory. Only this file
# knows the order.


def as_matrix(weight: Tensor) -> Tensor:
    """A weight, or a mask or scores shaped like one, as [N, K].

    Linear [N, K] and all that is a matrix already is itself; Conv2d [C_out, C_in, kh, kw] becomes [C_out, kh*kw*C_in].

    Only to be read: it shares memory with a weight that lies so (Linear, 1x1, channels_last), of others it is a copy.

    Raises:
        ValueError: a weight with fewer than two dimensions.
    """
    if weight.dim() < 2:
        raise ValueError(f"a weight of shape {list(weight.shape)} is no matrix: Linear and Conv2d weights have one")
    return weight.movedim(1, -1).flatten(start_dim=1)


def like_weight(matrix: Tensor, weight: Tensor) -> Tensor:
    """The way back: a matrix [N, K] (a mask, scores) in the shape of `weight`, contiguous where the weight is.

    What has that shape already is itself; of any other shape `fits` tells.
    """
    if matrix.shape == weight.shape:
        return matrix
    outputs, inputs, *kernel_size = weight.shape
    shaped = matrix.reshape(outputs, *kernel_size, inputs).movedim(-1, 1)
    return shaped.contiguous() if weight.is_contiguous() else shaped


def fits(matrix: Tensor, weight: Tensor) -> bool:
    """Whether `like_weight` takes it: shaped like the weight, or as its matrix [N, K]."""
    return matrix.shape in (weight.shape, (weight.shape[0], weight[0].numel()))


def pixel_rows(
    images: Tensor,
    kernel_size: tuple[int, ...],
    *,
    dilation: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0),
    stride: tuple[int, ...] = (1, 1),
) -> Tensor:
    """What each output pixel of a convolution sees (im2col), its columns in the order of the weight as a matrix.

    Args:
        images: [B, C_in, height, width]; channels_last ones are read in whole runs of channels, without another copy.
        padding: zeros above and below, left and right.
    Returns:
        [B * output pixels, kh * kw * C_in]; a copy, but of a 1x1 filter with stride 1 on channels_last images.
    """
    if any(padding):
        images = F.pad(images, (padding[1], padding[1], padding[0], padding[0]))
    pixels = images.permute(0, 2, 3, 1)  # [B, height, width, C_in]
    if max(kernel_size) > 1:  # taps share pixels: what is not channels_last is rearranged once, not once per tap
        pixels = pixels.contiguous()
    for side, (taps, apart, step) in enumerate(zip(kernel_size, dilation, stride, strict=True)):
        pixels = pixels.unfold(1 + side, apart * (taps - 1) + 1, step)[..., ::apart]
    # [B, H', W', C_in, kh, kw], still a view
    return pixels.permute(0, 1, 2, 4, 5, 3).reshape(-1, kernel_size[0] * kernel_size[1] * images.shape[1])


# A permutation of outputs and inputs in which a weight obeys its pattern, while the network keeps its own order.


@dataclass(frozen=True, eq=False)
class Permutation:
    """A permutation of the outputs, of the inputs, or of both, of a weight [N, K].

    Masks and weights stay in the network's order everywhere but in storage: a format keeps its rows or columns in this
    order beside the order itself, and its kernel reads or writes through it. So no other layer has to be permuted and the
    function of the network is unchanged.

    Args:
        outputs: int64 [N]; place i holds output outputs[i]. None = as they are.
        inputs: int64 [K], likewise.
    """

    outputs: Tensor | None = None
    inputs: Tensor | None = None

    def apply(self, matrix: Tensor) -> Tensor:
        """A matrix [N, K] (weight, scores or mask) in this order; a copy where there is one."""
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
        """`output_order` and `input_order`, those that there are: what a format's `from_dense` takes."""
        orders = {"output_order": self.outputs, "input_order": self.inputs}
        return {name: order for name, order in orders.items() if order is not None}
