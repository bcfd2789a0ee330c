"""The product that is predicted."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Product:
    """Y[M, N] = X[M, K] · W[N, K]ᵀ with a weight of tiles that keep inputs at random.

    Args:
        sparsity: fraction of zeros of W.
        granularity: outputs that share their inputs; 0 for a dense weight.
        distribution: "equal" or "uneven", as the benchmark draws weights; others count as equal.
        dtype: fp16, bf16, fp32 or tf32.
        layout: of X and Y, one of `problem.LAYOUTS`.
    """

    m: int
    k: int
    n: int
    sparsity: float
    granularity: int
    distribution: str
    dtype: str
    layout: str
