"""Blocked storage with 2:4 sparse blocks: half of a block's values, and a two-bit index for each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.format import SparseFormat, check_weight_and_mask, matrix_shape, zero_where_pruned
from sparsefront_kernels.indices import GROUP, packed_places, places_of_kept, unpacked_places


@dataclass(frozen=True, eq=False)
class Blocked24Format(SparseFormat):
    """Blocks of bn outputs × bk inputs; a kept block keeps at most two of every four consecutive inputs of an output.

        a block of 1 × 8                    stored
        [ . a . b  c d . . ]                values a b c d     indices 1 3 0 1, in one byte

    A group that keeps fewer than two is padded with zeros at unused positions.

    Args:
        block: (bn, bk) = outputs × inputs of a block; bn divides N, bk divides K, and 4 divides bk.
        values: [blocks, bn, bk / 2], block row after block row.
        metadata: uint8 [blocks, bn, ceil(bk / 8)], as `indices.packed_places` has them.
        row_pointers, block_columns: as in `BlockedFormat`.
    """

    family: ClassVar[str] = "blocked_2_4"
    block: tuple[int, int]
    values: Tensor
    metadata: Tensor
    row_pointers: Tensor
    block_columns: Tensor

    @classmethod
    def from_dense(cls, weight: Tensor, mask: Tensor, *, block: tuple[int, int] | list[int]) -> Self:
        """Store a mask that keeps at most two of every four consecutive inputs; blocks that keep any weight are stored.

        Args:
            weight: [N, K], any float dtype and device.
            mask: bool [N, K], True = keep.
            block: (bn, bk) = outputs × inputs.
        Raises:
            ValueError: the block does not divide the weight, 4 does not divide bk, or a group keeps more than two (names it).
        """
        check_weight_and_mask(weight, mask)
        _check_block(block)
        # from the mask instead of the weight, so that a kept zero counts
        cover = BlockedFormat.from_dense(mask.to(weight.dtype), mask, block=block, fill=True)
        n, k = matrix_shape(weight)
        indices = places_of_kept(mask.view(n, -1, GROUP), 2, family=cls.family)
        values = zero_where_pruned(weight, mask).view(n, -1, GROUP).gather(2, indices)
        height, width = cover.block
        rows, columns = cover.block_rows(), cover.block_columns.long()

        def in_kept_blocks(of_groups: Tensor) -> Tensor:  # [N, K / 4, 2] -> [blocks, bn, bk / 4, 2]
            return of_groups.view(n // height, height, k // width, -1, 2).transpose(1, 2)[rows, columns]

        return cls(
            shape=(n, k),
            block=cover.block,
            values=in_kept_blocks(values).flatten(2),
            metadata=packed_places(in_kept_blocks(indices)),
            row_pointers=cover.row_pointers,
            block_columns=cover.block_columns,
        )

    def filled(self) -> BlockedFormat:
        """The same weight as whole blocks with zeros inside."""
        groups = self.block[1] // GROUP
        dense = self.values.new_zeros(*self.values.shape[:2], groups, GROUP)
        dense.scatter_(3, unpacked_places(self.metadata, groups), self.values.unflatten(2, (groups, 2)))
        return self._with_blocks(dense.flatten(2))

    def to_dense(self) -> Tensor:
        return self.filled().to_dense()

    def check(self) -> None:
        _check_block(self.block)
        height, width = self.block
        count, groups = self.block_columns.numel(), width // GROUP
        if self.values.shape != (count, height, width // 2):
            raise ValueError(
                f"blocked_2_4: {count} block columns need values {[count, height, width // 2]}, not {list(self.values.shape)}"
            )
        expected = (count, height, -(-groups // 2))
        if self.metadata.shape != expected or self.metadata.dtype != torch.uint8:
            raise ValueError(
                f"blocked_2_4: metadata must be uint8 {list(expected)}, "
                f"not {self.metadata.dtype} {list(self.metadata.shape)}"
            )
        indices = unpacked_places(self.metadata, groups)
        if (indices[..., 0] >= indices[..., 1]).any():
            raise ValueError("blocked_2_4: the two indices of a group must rise")
        self._with_blocks(self.values.new_zeros(1).expand(count, height, width))  # validates its invariants

    def _with_blocks(self, blocks: Tensor) -> BlockedFormat:
        return BlockedFormat(self.shape, self.block, blocks, self.row_pointers, self.block_columns)


def _check_block(block: Sequence[int]) -> None:
    if len(block) == 2 and block[1] % GROUP:
        raise ValueError(f"blocked_2_4: the {block[1]} inputs of a block must be a multiple of {GROUP}")
