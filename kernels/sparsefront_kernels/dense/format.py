"""Dense storage: all weights, zeros included."""

from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor

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
        """Any mask fits; see `SparseFormat.from_dense`."""
        check_weight_and_mask(weight, mask)
        return cls(matrix_shape(weight), zero_where_pruned(weight, mask).contiguous())

    def to_dense(self) -> Tensor:
        return self.values.clone()

    def check(self) -> None:
        if tuple(self.values.shape) != self.shape:
            raise ValueError(f"dense: values are {list(self.values.shape)}, the weight is {list(self.shape)}")
