"""Which of cuSPARSELt's algorithms a product runs with: measured, or else its default one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from sparsefront_kernels.problem import X_FEATURE_MAJOR, Problem
from sparsefront_kernels.semi_structured.algorithm import DEFAULT, Algorithm, padded_rows, searched
from sparsefront_kernels.semi_structured.transposed_store import fast_with_transposed_store
from sparsefront_kernels.tuning import TunedLaunches

if TYPE_CHECKING:
    from sparsefront_kernels.semi_structured.torch_spmm import SemiStructuredPacked

KERNEL = "semi_structured_torch"
VERSION = 3


@dataclass(frozen=True)
class CusparseltProblem:
    """What decides which algorithm is the fastest.

    Args:
        m, k, n, dtype: of the product; the library numbers the algorithms of each type anew.
        x_feature_major: whether X is [K, M].
        y_row_major: whether Y is stored as [M, N] rather than [N, M].
    """

    m: int
    k: int
    n: int
    dtype: torch.dtype
    x_feature_major: bool
    y_row_major: bool

    @property
    def shape(self) -> str:
        layouts = f"x_feature_major={int(self.x_feature_major)} y_row_major={int(self.y_row_major)}"
        dtype = str(self.dtype).removeprefix("torch.")
        return f"m={padded_rows(self.m)} k={self.k} n={self.n} dtype={dtype} {layouts} kept="

    @property
    def amount(self) -> float:
        """Kept inputs of an output."""
        return self.k / 2


@dataclass(frozen=True, eq=False)
class CusparseltAlgorithms(TunedLaunches):
    """As the other kernels' launches, but that the library itself says what is worth timing."""

    def candidates(self, packed: "SemiStructuredPacked", problem: Problem) -> Sequence[Algorithm]:
        """What the library's search finds, and its default algorithm; with the transposed store the fastest of them all."""
        rows = padded_rows(problem.m)
        if rows == 0:
            return [DEFAULT]
        if _y_row_major(problem):
            return list(dict.fromkeys([*fast_with_transposed_store(problem), DEFAULT]))
        columns = torch.randn(problem.k, rows, dtype=problem.dtype, device=problem.device)
        x = columns if problem.layout in X_FEATURE_MAJOR else columns.t().contiguous().t()
        with torch.cuda.device_of(x):
            return list(dict.fromkeys([searched(packed.packed, x), DEFAULT]))


def _y_row_major(problem: Problem) -> bool:
    """Whether the transposed store is wanted: where X is row-major the entry gives a transposed view instead."""
    return problem.layout == "feature_to_row"


ALGORITHMS = CusparseltAlgorithms(
    KERNEL,
    VERSION,
    Algorithm,
    describe=lambda packed, problem: CusparseltProblem(
        problem.m,
        problem.k,
        problem.n,
        problem.dtype,
        x_feature_major=problem.layout in X_FEATURE_MAJOR,
        y_row_major=_y_row_major(problem),
    ),
    worth_timing=lambda problem, num_sms: [DEFAULT],
    untuned=lambda problem, num_sms: DEFAULT,
)
