"""A convolution over images as the product that it is: every output pixel is a row of X, tap by tap, each with all channels."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Convolution:
    """What of nn.Conv2d decides which pixels an output pixel sees; (vertical, horizontal) each.

    Args:
        kernel_size: of the filter.
        stride, padding, dilation: as in nn.Conv2d; padding is zeros.
    """

    kernel_size: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the result."""
        vertical, horizontal = (
            (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for size, padding, dilation, kernel, stride in zip(
                (height, width), self.padding, self.dilation, self.kernel_size, self.stride, strict=True
            )
        )
        return vertical, horizontal

    @property
    def is_pointwise(self) -> bool:
        """Whether rows of X are the pixels as they are."""
        return self == Convolution((1, 1))


@dataclass(frozen=True)
class Convolving:
    """How a kernel reads images itself, so that nothing is copied into rows of X first.

    Args:
        run: (images [B, H, W, C] contiguous, packed weight, bias or None, convolution) -> [B, H', W', N], contiguous, with the
            keywords `activation`, `residual` (as the result) and `relu_last` (max(0, ·) of what the residual was added to).
        unsupported: (packed weight, images, convolution) -> why it cannot, or None.
    """

    run: Callable[..., Tensor]
    unsupported: Callable[[Any, Tensor, Convolution], str | None]
