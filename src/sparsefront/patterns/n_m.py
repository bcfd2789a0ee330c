"""n:m sparsity: exactly n weights kept of every m consecutive ones along K."""

from dataclasses import dataclass
from typing import ClassVar

from sparsefront.patterns.blocks import BlockPattern
from sparsefront.patterns.window import check_window_settings


@dataclass(frozen=True)
class NM(BlockPattern):
    """Keep the n most important of every m consecutive weights along K; 2:4 is n=2, m=4.

    n counts the kept weights (SparseGPT and Wanda count the removed ones). Convolutions are windowed along their
    flattened inputs C_in*kh*kw. "VW-16" of the Tile-Wise talk is this pattern with m=16.

    Args:
        n: kept per window; None derives it from the sparsity.
        m: window; None takes the smallest from 4 to 64 that divides K and brings n/m within 0.01 of the density.
    Source: Lin et al., "Efficient GPU Kernels for N:M-Sparse Weights in Deep Learning" (nmSPARSE), which extends
        NVIDIA's ASP from 2:4 to any n:m; each window is decided alone, so no allocation has a say.
    """

    n: int | None = None
    m: int | None = None
    name: ClassVar[str] = "n_m"

    def __post_init__(self) -> None:
        check_window_settings(self.n, self.m)

    @property
    def block(self) -> tuple[int, int]:
        return 1, 1

    @property
    def balanced(self) -> bool:
        return True

    @property
    def window_settings(self) -> dict[str, int | None]:
        return {"n": self.n, "m": self.m}

    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        return "n_m", self.window(shape, sparsity)._asdict()
