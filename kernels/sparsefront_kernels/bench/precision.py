"""The number formats that are measured, by the names that results give them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

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
