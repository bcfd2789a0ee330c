"""Multiply-adds that a shape asks for: computed, never measured, hence `theoretical` in every name."""

from collections.abc import Mapping
from dataclasses import dataclass

from sparsefront_kernels import Problem

from sparsefront.measure.problems import LayerInput


@dataclass(frozen=True)
class TheoreticalFlops:
    """Flops of one forward through the prunable layers.

    Args:
        theoretical_dense_flops: all weights.
        theoretical_sparse_flops: the kept weights only; a layer without a density counts in full.
        layers: layer -> dense flops.
    """

    theoretical_dense_flops: int
    theoretical_sparse_flops: float
    layers: dict[str, int]

    @property
    def theoretical_reduction(self) -> float:
        """Dense / sparse flops: what a kernel at the dense rate would gain on these layers."""
        return (
            self.theoretical_dense_flops / self.theoretical_sparse_flops
            if self.theoretical_sparse_flops
            else float("inf")
        )


def theoretical_dense_flops(problem: Problem) -> int:
    """2 * M * K * N of Y[M, N] = X[M, K] W[N, K]^T; the bias is not counted."""
    return 2 * problem.m * problem.k * problem.n


def theoretical_flops(problems: Mapping[str, LayerInput], densities: Mapping[str, float]) -> TheoreticalFlops:
    """Totals over layers.

    Args:
        problems: what each prunable layer receives, from `observe_problems`.
        densities: layer -> fraction of weights kept; layers that are missing are dense.
    """
    layers = {name: theoretical_dense_flops(seen.problem) for name, seen in problems.items()}
    sparse = sum(flops * densities.get(name, 1.0) for name, flops in layers.items())
    return TheoreticalFlops(sum(layers.values()), sparse, layers)
