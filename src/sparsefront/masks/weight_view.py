"""Linear and convolution weights seen as the matrix [N, K] of the product Y[M, N] = X[M, K] W[N, K]^T."""

import torch.nn.functional as F
from torch import Tensor


def as_matrix(weight: Tensor) -> Tensor:
    """A weight as [N, K]: Linear [N, K] is itself, Conv2d [C_out, C_in, kh, kw] becomes [C_out, C_in*kh*kw].

    Shares memory with a contiguous weight; of any other layout (channels_last) it is a copy in the same order.

    Raises:
        ValueError: a weight with fewer than two dimensions.
    """
    if weight.dim() < 2:
        raise ValueError(f"a weight of shape {list(weight.shape)} is no matrix: Linear and Conv2d weights have one")
    return weight.flatten(start_dim=1)


def like_weight(matrix: Tensor, weight: Tensor) -> Tensor:
    """The way back: a matrix [N, K] (a mask, scores) in the shape of `weight`."""
    return matrix.reshape(weight.shape)


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
        images: [B, C_in, height, width].
    Returns:
        [B * output pixels, C_in * kh * kw]; a copy.
    """
    return F.unfold(images, kernel_size, dilation, padding, stride).transpose(1, 2).flatten(0, 1)
