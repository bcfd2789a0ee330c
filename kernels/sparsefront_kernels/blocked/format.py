"""Blocked storage (BSR): the kept blocks of each block row, with their block columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from sparsefront_kernels.format import SparseFormat, check_weight_and_mask, matrix_shape, zero_where_pruned


@dataclass(frozen=True, eq=False)
class BlockedFormat(SparseFormat):
    """Blocks of bn outputs × bk inputs, each kept or pruned as a whole.

        W in blocks of 2 × 2              stored
        [ a b | . . | c d ]               row_pointers  = 0 2 2 3
        [ e f | . . | g h ]               block_columns = 0 2 1
        [-----+-----+-----]
        [ . . | . . | . . ]               values = a b   c d   i j
        [ . . | . . | . . ]                        e f   g h   l m
        [-----+-----+-----]
        [ . . | i j | . . ]
        [ . . | l m | . . ]

    Args:
        block: (bn, bk) = outputs × inputs of a block; bn divides N and bk divides K.
        values: [blocks, bn, bk], block row after block row.
        row_pointers: int32 [N / bn + 1]; block row r owns blocks row_pointers[r] to row_pointers[r + 1].
        block_columns: int32 [blocks], ascending within a block row.
    """

    family: ClassVar[str] = "blocked"
    block: tuple[int, int]
    values: Tensor
    row_pointers: Tensor
    block_columns: Tensor

    @classmethod
    def from_dense(
        cls, weight: Tensor, mask: Tensor, *, block: tuple[int, int] | list[int], fill: bool = False
    ) -> Self:
        """Store a mask of whole blocks.

        Args:
            weight: [N, K], any float dtype and device.
            mask: bool [N, K], True = keep; constant within each block, unless `fill`.
            block: (bn, bk) = outputs × inputs.
            fill: True stores every block that keeps any weight, filled with zeros.
        Raises:
            ValueError: the block does not divide the weight, or blocks are kept partially (names one, and how many).
        """
        check_weight_and_mask(weight, mask)
        block = _divide(matrix_shape(weight), block)
        blocks = _in_blocks(mask, block)
        keeps = blocks.flatten(2).any(dim=2) if fill else _whole_blocks(blocks)  # bool [N / bn, K / bk]
        pointers = torch.zeros(keeps.shape[0] + 1, dtype=torch.int32, device=mask.device)
        pointers[1:] = keeps.sum(dim=1).cumsum(dim=0)
        return cls(
            shape=matrix_shape(weight),
            block=block,
            values=_in_blocks(zero_where_pruned(weight, mask), block)[keeps].contiguous(),
            row_pointers=pointers,
            block_columns=keeps.nonzero()[:, 1].to(torch.int32),
        )

    def block_rows(self) -> Tensor:
        """The block row of every stored block, int64 [blocks]."""
        rows = torch.arange(self.row_pointers.numel() - 1, device=self.values.device)
        return rows.repeat_interleave(self.row_pointers.diff())

    def to_dense(self) -> Tensor:
        dense = self.values.new_zeros(self.shape)
        # a view that shares memory with `dense`
        _in_blocks(dense, self.block)[self.block_rows(), self.block_columns.long()] = self.values
        return dense

    def check(self) -> None:
        block_height, block_width = _divide(self.shape, self.block)
        rows, columns, count = self.shape[0] // block_height, self.shape[1] // block_width, self.block_columns.numel()
        if self.values.shape != (count, block_height, block_width):
            raise ValueError(
                f"blocked: {count} block columns need values {[count, block_height, block_width]}, "
                f"not {list(self.values.shape)}"
            )
        if self.row_pointers.dtype != torch.int32 or self.block_columns.dtype != torch.int32:
            raise ValueError("blocked: row_pointers and block_columns must be int32")
        pointers = self.row_pointers
        if pointers.shape != (rows + 1,) or pointers[0] != 0 or pointers[-1] != count or (pointers.diff() < 0).any():
            raise ValueError(f"blocked: row_pointers must be {rows + 1} numbers that rise from 0 to {count} blocks")
        if count == 0:
            return
        low, high = int(self.block_columns.min()), int(self.block_columns.max())
        if low < 0 or high >= columns:
            raise ValueError(f"blocked: block columns must lie in [0, {columns}), found {low} to {high}")
        if not (self.block_columns.diff() > 0)[self.block_rows().diff() == 0].all():
            raise ValueError("blocked: block columns do not rise within a block row")


def _divide(shape: tuple[int, int], block: Sequence[int]) -> tuple[int, int]:
    """The block as two ints; ValueError unless it divides the shape."""
    if len(block) != 2 or min(block) < 1:
        raise ValueError(f"blocked: block must be [outputs, inputs], both at least 1, not {list(block)}")
    (n, k), (bn, bk) = shape, block
    if n % bn or k % bk:
        raise ValueError(f"blocked: blocks of {bn}x{bk} do not divide the weight [N, K] = {[n, k]}")
    return int(bn), int(bk)


def _in_blocks(matrix: Tensor, block: tuple[int, int]) -> Tensor:
    """View of [N, K] as [N / bn, K / bk, bn, bk]."""
    (n, k), (bn, bk) = matrix.shape, block
    return matrix.view(n // bn, bn, k // bk, bk).transpose(1, 2)


def _whole_blocks(mask: Tensor) -> Tensor:
    """Which blocks of [rows, columns, bn, bk] are kept; ValueError if one is kept partially."""
    keeps = mask.flatten(2).any(dim=2)
    partial = keeps & ~mask.flatten(2).all(dim=2)
    if partial.any():
        row, column = partial.nonzero()[0].tolist()
        raise ValueError(
            f"blocked: block ({row}, {column}) keeps {int(mask[row, column].sum())} of its {mask[row, column].numel()} "
            f"weights; {int(partial.sum())} blocks are kept in part"
        )
    return keeps
