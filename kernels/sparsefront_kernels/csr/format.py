"""CSR storage: per output, the kept inputs and their weights."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from sparsefront_kernels.format import SparseFormat, check_weight_and_mask, matrix_shape

_LARGEST_INT32 = 2**31 - 1


@dataclass(frozen=True, eq=False)
class CSRFormat(SparseFormat):
    """Compressed sparse rows; supports any mask.

        W                       row_pointers = 0 2 2 5
        [ . a . b ]             columns      = 1 3 0 2 3
        [ . . . . ]             values       = a b c d e
        [ c . d e ]

    Args:
        values: [kept weights], sorted by output. Kept weights that are 0 are stored.
        row_pointers: int32 [N + 1]; output i owns values[row_pointers[i] : row_pointers[i + 1]].
        columns: int32 [kept weights], ascending within an output.
    """

    family: ClassVar[str] = "csr"
    values: Tensor
    row_pointers: Tensor
    columns: Tensor

    @classmethod
    def from_dense(cls, weight: Tensor, mask: Tensor) -> Self:
        """Store any mask; see `SparseFormat.from_dense`.

        Raises:
            ValueError: more than 2^31 - 1 kept weights, the limit of int32 pointers.
        """
        check_weight_and_mask(weight, mask)
        counts = mask.sum(dim=1).cumsum(dim=0)
        if int(counts[-1]) > _LARGEST_INT32:
            raise ValueError(f"csr: {int(counts[-1])} kept weights are more than int32 pointers can count")
        pointers = torch.zeros(mask.shape[0] + 1, dtype=torch.int32, device=mask.device)
        pointers[1:] = counts
        columns = mask.nonzero()[:, 1].to(torch.int32)
        return cls(matrix_shape(weight), weight.detach()[mask], pointers, columns)

    def rows(self) -> Tensor:
        """The output of every stored weight, int64 [kept weights]."""
        return torch.arange(self.shape[0], device=self.values.device).repeat_interleave(self.row_pointers.diff())

    def to_dense(self) -> Tensor:
        dense = self.values.new_zeros(self.shape)
        dense[self.rows(), self.columns.long()] = self.values
        return dense

    def check(self) -> None:
        (n, k), count, pointers = self.shape, self.values.numel(), self.row_pointers
        if self.values.shape != (count,) or self.columns.shape != (count,):
            raise ValueError(f"csr: {count} values need as many columns, {list(self.columns.shape)} given")
        if pointers.dtype != torch.int32 or self.columns.dtype != torch.int32:
            raise ValueError("csr: row_pointers and columns must be int32")
        if pointers.shape != (n + 1,) or pointers[0] != 0 or pointers[-1] != count or (pointers.diff() < 0).any():
            raise ValueError(f"csr: row_pointers must be {n + 1} numbers that rise from 0 to {count} kept weights")
        if count == 0:
            return
        low, high = int(self.columns.min()), int(self.columns.max())
        if low < 0 or high >= k:
            raise ValueError(f"csr: columns must lie in [0, {k}), found {low} to {high}")
        if not (self.columns.diff() > 0)[self.rows().diff() == 0].all():
            raise ValueError("csr: columns do not rise within an output")
