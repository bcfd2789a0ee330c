"""The float64 reference of a product: all of it, or random rows of a large one."""

from dataclasses import dataclass

import torch
from torch import Tensor

# Multiply-adds of a reference. Up to 4096³ all of Y is checked. Beyond, as many random rows of X (with all their
# outputs) as this many multiply-adds allow; that nothing is NaN or left out is checked in all of Y at any size.
LARGEST_REFERENCE = 1 << 36


@dataclass(frozen=True)
class Reference:
    """The reference Y, or some rows of it.

    Args:
        y: float64 [rows, N].
        rows: which rows of Y these are, int64; None for all.
    """

    y: Tensor
    rows: Tensor | None

    def error(self, y: Tensor) -> float:
        """‖y − reference‖ / ‖reference‖ over the rows that are known; infinite where all of y [M, N] holds a NaN."""
        if self.rows is None:
            return relative_error(y, self.y)
        if bool(torch.isnan(y).any()):
            return torch.inf
        return relative_error(y[self.rows], self.y)


def reference_product(x: Tensor, weight: Tensor, *, largest: int = LARGEST_REFERENCE) -> Reference:
    """X [M, K] · weight [N, K]ᵀ in float64, or as many random rows of it as `largest` multiply-adds allow."""
    affordable = max(1, largest // weight.numel())
    rows = None
    if x.shape[0] > affordable:
        rows = torch.randperm(x.shape[0], device=x.device)[:affordable]
        x = x[rows]
    return Reference(x.double() @ weight.double().t(), rows)


def relative_error(y: Tensor, reference: Tensor) -> float:
    """‖y − reference‖ / ‖reference‖ in float64; infinite where y holds a NaN, so that no comparison lets it pass."""
    error = torch.linalg.norm(y.double() - reference) / torch.linalg.norm(reference).clamp(min=1e-300)
    return float(torch.nan_to_num(error, nan=torch.inf))
