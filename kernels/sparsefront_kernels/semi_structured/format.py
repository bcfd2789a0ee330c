"""2:4 storage: two values of every four inputs, and two bits for the index of each."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from sparsefront_kernels.format import SparseFormat, check_weight_and_mask, zero_where_pruned
from sparsefront_kernels.indices import (
    check_stored_order,
    columns_back,
    columns_in_order,
    packed_places,
    places_of_kept,
    stored_order,
    unpacked_places,
)


@dataclass(frozen=True, eq=False)
class SemiStructuredFormat(SparseFormat):
    """At most two of every four consecutive inputs, with the indices packed as tightly as the hardware does.

        output 0      [ . a . b  |  c d . . ]        values  a b c d
                                                     indices 1 3 0 1
        one byte = two groups:  bits 0-1 and 2-3 the indices of the first group, 4-5 and 6-7 those of the second
                                1 + 4 * 3 + 16 * 0 + 64 * 1 = 77

    This is a portable layout; cuSPARSELt's own is made from it on the GPU. A group that keeps fewer than two fills up
    with zeros at unused positions. Groups may also be formed from the inputs in another order (channel permutation).

    Args:
        values: [N, K / 2]; 4 divides K.
        metadata: uint8 [N, ceil(K / 8)].
        input_order: int32 [K], input i of the groups side by side is input input_order[i] of the weight; None: ascending.
    """

    family: ClassVar[str] = "semi_structured"
    values: Tensor
    metadata: Tensor
    input_order: Tensor | None = None

    @classmethod
    def from_dense(cls, weight: Tensor, mask: Tensor, *, input_order: Tensor | None = None) -> Self:
        """Store a mask that keeps at most two of every four consecutive inputs.

        Args:
            input_order: int [K], a permutation in whose order inputs are consecutive; None: ascending.
        Raises:
            ValueError: 4 does not divide K, an order that is no permutation, or a group keeps more than two (names it).
        """
        check_weight_and_mask(weight, mask)
        n, k = weight.shape
        _check_inputs(k)
        input_order = stored_order(cls.family, input_order, k, weight.device)
        groups = columns_in_order(mask, input_order).view(n, k // 4, 4)
        indices = places_of_kept(groups, 2, family=cls.family)
        arranged = columns_in_order(zero_where_pruned(weight, mask), input_order)
        values = arranged.view_as(groups).gather(2, indices)
        return cls((n, k), values.reshape(n, k // 2), packed_places(indices), input_order)

    def indices(self) -> Tensor:
        """Indices within the groups, int64 [N, K / 4, 2]."""
        return unpacked_places(self.metadata, self.shape[1] // 4)

    def arranged(self) -> Tensor:
        """The weight with its inputs in the order of storage, [N, K]: 2:4 of every four consecutive ones."""
        n, k = self.shape
        dense = self.values.new_zeros(n, k // 4, 4)
        return dense.scatter_(2, self.indices(), self.values.view(n, k // 4, 2)).view(n, k)

    def to_dense(self) -> Tensor:
        return columns_back(self.arranged(), self.input_order)

    def check(self) -> None:
        n, k = self.shape
        _check_inputs(k)
        if self.values.shape != (n, k // 2):
            raise ValueError(f"semi_structured: values must be {[n, k // 2]}, not {list(self.values.shape)}")
        if self.metadata.shape != (n, -(-k // 8)) or self.metadata.dtype != torch.uint8:
            raise ValueError(
                f"semi_structured: metadata must be uint8 {[n, -(-k // 8)]}, "
                f"not {self.metadata.dtype} {list(self.metadata.shape)}"
            )
        indices = self.indices()
        if (indices[..., 0] >= indices[..., 1]).any():
            raise ValueError("semi_structured: the two indices of a group must rise")
        check_stored_order(self.family, self.input_order, k)


def _check_inputs(k: int) -> None:
    if k % 4:
        raise ValueError(f"semi_structured: groups of 4 do not divide K = {k}")
