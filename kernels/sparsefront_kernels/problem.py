"""The product that a kernel is asked for: Y[M, N] = X[M, K] · W[N, K]ᵀ (+ bias[N])."""

from dataclasses import dataclass

import torch

# of X and of Y: [M, K] and [M, N]; [K, M] and [N, M]; X row-major and Y feature-major; and the other way round
LAYOUTS = ("row_major", "feature_major", "row_to_feature", "feature_to_row")
X_FEATURE_MAJOR = ("feature_major", "feature_to_row")
Y_FEATURE_MAJOR = ("feature_major", "row_to_feature")


@dataclass(frozen=True)
class Problem:
    """Everything but the weight that decides which kernels can run.

    Args:
        m: rows of X (tokens or output pixels), 0 or more.
        k: inputs, columns of W.
        n: outputs, rows of W.
        dtype: of X, W and Y.
        device: where X, W and Y live; a string is turned into a torch.device.
        layout: "row_major" takes X as [M, K] and gives Y as [M, N]; "feature_major" takes [K, M] and gives [N, M];
            "row_to_feature" and "feature_to_row" take the one and give the other.
    Raises:
        ValueError: a negative m, k or n below 1, or a layout that is not listed above.
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
