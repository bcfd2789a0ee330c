"""Dense storage with zeros, and PyTorch's own linear, both as reference and as the fast path."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import linear

from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.format import SparseFormat, check_weight_and_mask, matrix_shape, zero_where_pruned


@dataclass(frozen=True, eq=False)
class DenseFormat(SparseFormat):
    """W[N, K] with exact zeros where pruned.

            K inputs
        a . b . . c     values = the same picture, zeros stored
        . d . . e .

    Args:
        values: [N, K].
    """

    family: ClassVar[str] = "dense"
    values: Tensor

    @classmethod
    def from_dense(cls, weight: Tensor, mask: Tensor) -> Self:
        """Supports any mask; see `SparseFormat.from_dense`."""
        check_weight_and_mask(weight, mask)
        return cls(matrix_shape(weight), zero_where_pruned(weight, mask).contiguous())

    def to_dense(self) -> Tensor:
        return self.values.clone()

    @property
    def block(self) -> tuple[int, int]:
        """Outputs × inputs of the largest blocks that divide the weight, at most 128 × 64: those of `filled`."""
        return math.gcd(self.shape[0], 128), math.gcd(self.shape[1], 64)

    def filled(self) -> BlockedFormat:
        """The same weight as blocks, all of which are kept."""
        every = torch.ones_like(self.values, dtype=torch.bool)
        return BlockedFormat.from_dense(self.values, every, block=self.block)

    def check(self) -> None:
        if tuple(self.values.shape) != self.shape:
            raise ValueError(f"dense: values are {list(self.values.shape)}, the weight is {list(self.shape)}")


def dense_linear(x: Tensor, stored: DenseFormat, bias: Tensor | None = None) -> Tensor:
    """Y[M, N] = X[M, K] · W[N, K]ᵀ + bias on any device, in x's dtype, with the library's own accumulation."""
    return linear(x, stored.values, bias if bias is None else bias.to(x.dtype))
