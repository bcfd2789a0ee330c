"""What all contenders of one comparison share: shape, dtype, sparsity, and the X that they multiply."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparsefront_kernels.bench.shapes import Shape


@dataclass(frozen=True)
class Setting:
    """One shape at one dtype and sparsity on one device; X is drawn once."""

    shape: Shape
    dtype: torch.dtype
    sparsity: float
    device: torch.device
    x: Tensor = field(init=False)  # [M, K]

    def __post_init__(self) -> None:
        x = torch.randn(self.shape.m, self.shape.k, device=self.device, dtype=self.dtype)
        object.__setattr__(self, "x", x)

    def weight(self) -> Tensor:
        """A fresh dense [N, K]."""
        return torch.randn(self.shape.n, self.shape.k, device=self.device, dtype=self.dtype)

    def x_in(self, layout: str) -> Tensor:
        """A copy of X as the layout stores it."""
        return self.x.clone() if layout == "row_major" else self.x.t().contiguous()

    def expected(self, weight: Tensor) -> Tensor:
        """X · Wᵀ in float64."""
        return self.x.double() @ weight.double().t()

    @property
    def activation_bytes(self) -> int:
        """Of X and Y."""
        return self.shape.m * (self.shape.k + self.shape.n) * self.dtype.itemsize
