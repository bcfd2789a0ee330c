"""ELL storage: every block row has the same number of blocks, so no row pointers are needed."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.format import SparseFormat, check_weight_and_mask, matrix_shape

BLOCK_SIDES = (1, 2, 4)


@dataclass(frozen=True, eq=False)
class ELLFormat(SparseFormat):
    """`count` kept blocks of b outputs × b inputs in each block row; b = 1 stores single weights.

        W, block = 1                      columns     values
        [ . a . b ]                       1 3         a b
        [ c d . . ]                       0 1         c d
        [ e . . f ]                       0 3         e f

    Args:
        block: b, the side of a block: 1, 2 or 4; it divides N and K.
        values: [N / b, count, b, b].
        columns: int32 [N / b, count], block columns, ascending within a block row.
    """

    family: ClassVar[str] = "ell"
    block: int
    values: Tensor
    columns: Tensor

    @classmethod
    def from_dense(cls, weight: Tensor, mask: Tensor, *, block: int = 1) -> Self:
        """Store a mask that keeps equally many blocks in every block row.

        Args:
            weight: [N, K], any float dtype and device.
            mask: bool [N, K], True = keep; constant within each block.
            block: as in the class.
        Raises:
            ValueError: a block size other than 1, 2 or 4 or that does not divide the weight, a block that is kept partially, or
                block rows with different counts (names one, its count and the first row's).
        """
        check_weight_and_mask(weight, mask)
        _check_block(matrix_shape(weight), block)
        # its blocks are sorted by row and column: equal counts make them rectangular
        blocks = BlockedFormat.from_dense(weight, mask, block=(block, block))
        counts = blocks.row_pointers.diff()
        if (uneven := counts != counts[0]).any():
            row = int(uneven.nonzero()[0])
            raise ValueError(
                f"ell: block row {row} keeps {int(counts[row])} blocks of {block}x{block}, block row 0 keeps "
                f"{int(counts[0])}; all must keep the same number"
            )
        rows, count = counts.numel(), int(counts[0])
        values = blocks.values.view(rows, count, block, block)
        return cls(matrix_shape(weight), block, values, blocks.block_columns.view(rows, count))

    @property
    def count(self) -> int:
        """Kept blocks per block row."""
        return self.columns.shape[1]

    def to_dense(self) -> Tensor:
        (n, k), b = self.shape, self.block
        dense = self.values.new_zeros(n // b, k // b, b, b)
        places = self.columns.long()[:, :, None, None].expand_as(self.values)
        return dense.scatter_(1, places, self.values).transpose(1, 2).reshape(n, k)

    def check(self) -> None:
        _check_block(self.shape, self.block)
        (n, k), b = self.shape, self.block
        if self.columns.dtype != torch.int32 or self.columns.ndim != 2 or self.columns.shape[0] != n // b:
            raise ValueError(
                f"ell: columns must be int32 [{n // b}, count], not {self.columns.dtype} {list(self.columns.shape)}"
            )
        expected = (n // b, self.count, b, b)
        if self.values.shape != expected:
            raise ValueError(f"ell: values must be {list(expected)}, not {list(self.values.shape)}")
        if self.count == 0:
            return
        low, high = int(self.columns.min()), int(self.columns.max())
        if low < 0 or high >= k // b:
            raise ValueError(f"ell: columns must lie in [0, {k // b}), found {low} to {high}")
        if (self.columns[:, 1:] <= self.columns[:, :-1]).any():
            raise ValueError("ell: columns do not rise within a block row")


def _check_block(shape: tuple[int, int], block: int) -> None:
    if block not in BLOCK_SIDES:
        raise ValueError(f"ell: block must be one of {', '.join(map(str, BLOCK_SIDES))}, not {block}")
    if shape[0] % block or shape[1] % block:
        raise ValueError(f"ell: blocks of {block}x{block} do not divide the weight [N, K] = {list(shape)}")
