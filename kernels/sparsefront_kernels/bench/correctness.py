"""What a right product is: number formats and their tolerances, the float64 reference, memory full of NaN."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

# tf32: float32 operands whose products are rounded to TF32
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "tf32": torch.float32}

# Relative Frobenius error against float64; NaN never passes.
TOLERANCE = {"fp16": 1e-3, "bf16": 5e-3, "fp32": 4e-6, "tf32": 1e-3}


@contextmanager
def products_in(dtype_name: str) -> Iterator[None]:
    """PyTorch's own float32 products are TF32 within for "tf32", and exact otherwise."""
    matmul = torch.backends.cuda.matmul
    name, allowed, exact = ("fp32_precision", "tf32", "ieee")
    if not hasattr(matmul, name):
        name, allowed, exact = ("allow_tf32", True, False)
    before = getattr(matmul, name)
    setattr(matmul, name, allowed if dtype_name == "tf32" else exact)
    try:
        yield
    finally:
        setattr(matmul, name, before)


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


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """`torch.empty` gives NaN within, so that an element which a kernel leaves out shows."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = fill
