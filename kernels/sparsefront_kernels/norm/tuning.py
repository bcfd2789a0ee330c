"""Which kernel normalises columns: the fastest of those that were measured for the problem, else Triton's."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefront_kernels.norm.launch import CUDA_DIVISIONS, TRITON, NormLaunch
from sparsefront_kernels.tuning import TunedLaunches

KERNEL = "layer_norm_columns"
VERSION = 1  # raised when a change of a kernel makes old measurements useless


@dataclass(frozen=True)
class NormProblem:
    """What decides how fast the kernels of a norm are.

    Args:
        d, m: features and columns.
        dtype: of the columns.
        residual: whether one is added first.
        keep_sums: whether the sum is written too.
        x_layout, residual_layout: "feature_major" where neighbors in a row lie side by side, else "row_major"; "" where there
            is none.
    """

    d: int
    m: int
    dtype: torch.dtype
    residual: bool = False
    keep_sums: bool = False
    x_layout: str = "feature_major"
    residual_layout: str = ""

    @classmethod
    def of(cls, x: Tensor, residual: Tensor | None, keep_sums: bool) -> "NormProblem":
        """Of the operands of `layer_norm_columns` or `add_layer_norm_columns`."""
        of_residual = "" if residual is None else _layout(residual)
        return cls(*x.shape, x.dtype, residual is not None, keep_sums, _layout(x), of_residual)

    @property
    def shape(self) -> str:
        added = f"+{self.residual_layout}" * self.residual + " sums" * self.keep_sums
        return f"{str(self.dtype).removeprefix('torch.')} {self.x_layout}{added} d={self.d} m="

    @property
    def amount(self) -> float:
        return self.m

    def __str__(self) -> str:
        """As in `float16 feature_major+feature_major sums d=1024 m=12288`."""
        return f"{self.shape}{self.m}"


def candidates(problem: NormProblem, num_sms: int) -> Sequence[NormLaunch]:
    """All launches that hold a column, Triton's first."""
    return [TRITON, *(launch for launch, most_features in CUDA_DIVISIONS.items() if problem.d <= most_features)]


LAUNCHES = TunedLaunches(
    KERNEL,
    VERSION,
    NormLaunch,
    describe=lambda described, problem: described,  # a norm has no packed weight
    worth_timing=candidates,
    untuned=lambda problem, num_sms: TRITON,
)


def _layout(matrix: Tensor) -> str:
    return "feature_major" if matrix.stride(1) == 1 else "row_major"
