"""What all providers of one comparison share: shape, dtype, sparsity, and the X that they multiply."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.bench.precision import DTYPES
from sparsefront_kernels.bench.reference import Reference, reference_product
from sparsefront_kernels.bench.shapes import Shape
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Problem


@dataclass(frozen=True)
class Setting:
    """One shape at one dtype and sparsity on one device; X is drawn once."""

    shape: Shape
    dtype_name: str
    sparsity: float
    device: torch.device
    x: Tensor = field(init=False)  # [M, K]
    _copies: dict[tuple[bool, int, int], Tensor] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        x = torch.randn(self.shape.m, self.shape.k, device=self.device, dtype=self.dtype)
        object.__setattr__(self, "x", x)

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.dtype_name]

    def problem(self, layout: str) -> Problem:
        """The product as kernels are asked for it."""
        return Problem(self.shape.m, self.shape.k, self.shape.n, self.dtype, self.device, layout)

    def weight(self) -> Tensor:
        """A fresh dense [N, K]."""
        return torch.randn(self.shape.n, self.shape.k, device=self.device, dtype=self.dtype)

    def x_in(self, layout: str, copy: int, *, rows: int | None = None) -> Tensor:
        """X as the layout stores it, in memory of its own for each number of a copy; providers share them.

        Args:
            rows: M padded with zeros, for a kernel that takes no other; by default M.
        """
        by_feature, rows = layout in X_FEATURE_MAJOR, rows or self.shape.m
        key = (by_feature, rows, copy)
        if key not in self._copies:
            x = pad(self.x, (0, 0, 0, rows - self.shape.m))
            self._copies[key] = x.t().contiguous() if by_feature else x.clone()
        return self._copies[key]

    def reference(self, weight: Tensor) -> Reference:
        """X · Wᵀ in float64, of a large product some rows."""
        return reference_product(self.x, weight)

    @property
    def activation_bytes(self) -> int:
        """Of X and Y."""
        return self.shape.m * (self.shape.k + self.shape.n) * self.dtype.itemsize
