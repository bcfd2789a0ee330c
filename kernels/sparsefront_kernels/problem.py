"""Description of a product Y[M, N] = X[M, K] · W[N, K]ᵀ (+ bias[N]), its layouts, and convolutions as products."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# shapes of X and Y: [M, K], [M, N]; [K, M], [N, M]; [M, K], [N, M]; [K, M], [M, N]
LAYOUTS = ("row_major", "feature_major", "row_to_feature", "feature_to_row")
X_FEATURE_MAJOR = ("feature_major", "feature_to_row")
Y_FEATURE_MAJOR = ("feature_major", "row_to_feature")


@dataclass(frozen=True)
class Problem:
    """A product without its weight: what determines which kernels can run.

    Args:
        m: rows of X (tokens or output pixels), 0 or more.
        k: inputs, columns of W.
        n: outputs, rows of W.
        dtype: of X, W and Y.
        device: of X, W and Y; a string is converted to a torch.device.
        layout: "row_major" is X [M, K] and Y [M, N]; "feature_major" is X [K, M] and Y [N, M]; "row_to_feature" and
            "feature_to_row" mix the two.
    Raises:
        ValueError: a negative m, k or n below 1, or an unknown layout.
    """

    m: int
    k: int
    n: int
    dtype: torch.dtype
    device: torch.device
    layout: str = "row_major"

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", torch.device(self.device))
        if self.m < 0 or self.k < 1 or self.n < 1:
            raise ValueError(f"a problem needs m >= 0, k >= 1 and n >= 1, not m={self.m}, k={self.k}, n={self.n}")
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout {self.layout!r} is not one of {', '.join(LAYOUTS)}")

    @property
    def x_shape(self) -> tuple[int, int]:
        """Shape of X as the layout stores it."""
        return (self.k, self.m) if self.layout in X_FEATURE_MAJOR else (self.m, self.k)

    @property
    def y_shape(self) -> tuple[int, int]:
        """Shape of Y as the layout stores it."""
        return (self.n, self.m) if self.layout in Y_FEATURE_MAJOR else (self.m, self.n)


def label(kernel: str, layout: str) -> str:
    """Name of a kernel in a layout in results."""
    return kernel if layout == "row_major" else f"{kernel}_{layout}"


def kernel_and_layout(label: str) -> tuple[str, str | None]:
    """Split a label into the kernel's name and the layout, which is None if missing."""
    layout = next((layout for layout in LAYOUTS if label.endswith(f"_{layout}")), None)
    return label.removesuffix(f"_{layout}"), layout


@dataclass(frozen=True)
class Convolution:
    """Geometry of an nn.Conv2d; each value is (vertical, horizontal).

    Args:
        kernel_size: of the filter.
        stride, padding, dilation: as in nn.Conv2d; padding is with zeros.
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
        """Whether the rows of X are the pixels themselves (1x1 convolution)."""
        return self == Convolution((1, 1))


@dataclass(frozen=True)
class Convolving:
    """How a kernel reads images directly (implicit GEMM), without im2col.

    Args:
        run: (images [B, H, W, C] contiguous, packed weight, bias or None, convolution) -> [B, H', W', N], contiguous. Keywords:
            `activation`, `residual` (in the result's shape) and `relu_last` (ReLU after adding the residual).
        unsupported: (packed weight, images, convolution) -> why it cannot, or None.
    """

    run: Callable[..., Tensor]
    unsupported: Callable[[Any, Tensor, Convolution], str | None]
