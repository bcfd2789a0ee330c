"""n:m storage: per group of m consecutive inputs, n values and their places in the group."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from sparsefront_kernels.format import SparseFormat, check_weight_and_mask, matrix_shape, zero_where_pruned
from sparsefront_kernels.indices import check_stored_order, columns_back, columns_in_order, places_of_kept, stored_order

LARGEST_M = 64


@dataclass(frozen=True, eq=False)
class NMFormat(SparseFormat):
    """n of every m consecutive inputs of each output.

        2:4             group 0     group 1          values          indices
        output 0      [ . a . b  |  c d . . ]        a b   c d       1 3   0 1
        output 1      [ e . . f  |  . . g . ]        e f   0 g       0 3   0 2

    A group that keeps fewer than n fills up with zeros at unused places, so indices within a group are distinct. Groups
    may also be formed from the inputs in another order (channel permutation): the product then reads X in that order.

    Args:
        n, m: n kept of m; 1 <= n <= m <= 64, m divides K and need not be a power of two.
        values: [N, K / m, n].
        indices: uint8 [N, K / m, n], place within the group, ascending.
        input_order: int32 [K], place i of the groups side by side is input input_order[i]; None: ascending.
    """

    family: ClassVar[str] = "n_m"
    n: int
    m: int
    values: Tensor
    indices: Tensor
    input_order: Tensor | None = None

    @classmethod
    def from_dense(cls, weight: Tensor, mask: Tensor, *, n: int, m: int, input_order: Tensor | None = None) -> Self:
        """Store a mask that keeps at most n of every m consecutive inputs.

        Args:
            weight: [N, K], any float dtype and device.
            mask: bool [N, K], True = keep.
            n, m: as in the class.
            input_order: int [K], a permutation in whose order inputs are consecutive; None: ascending.
        Raises:
            ValueError: m does not divide K, n or m out of range, an order that is no permutation, or a group that keeps
                more than n (names it).
        """
        check_weight_and_mask(weight, mask)
        _check_n_m(matrix_shape(weight), n, m)
        input_order = stored_order(cls.family, input_order, weight.shape[1], weight.device)
        groups = columns_in_order(mask, input_order).view(mask.shape[0], -1, m)
        indices = places_of_kept(groups, n, family=cls.family)
        arranged = columns_in_order(zero_where_pruned(weight, mask), input_order)
        values = arranged.view_as(groups).gather(2, indices)
        return cls(matrix_shape(weight), n, m, values, indices.to(torch.uint8), input_order)

    def to_dense(self) -> Tensor:
        dense = self.values.new_zeros(*self.values.shape[:2], self.m)
        arranged = dense.scatter_(2, self.indices.long(), self.values).view(self.shape)
        return columns_back(arranged, self.input_order)

    def check(self) -> None:
        _check_n_m(self.shape, self.n, self.m)
        expected = (self.shape[0], self.shape[1] // self.m, self.n)
        if self.values.shape != expected or self.indices.shape != expected or self.indices.dtype != torch.uint8:
            raise ValueError(
                f"n_m: values and uint8 indices must be {list(expected)}, not {list(self.values.shape)} "
                f"and {self.indices.dtype} {list(self.indices.shape)}"
            )
        if int(self.indices.max()) >= self.m:
            raise ValueError(f"n_m: indices must be below m = {self.m}, found {int(self.indices.max())}")
        if (self.indices[..., 1:] <= self.indices[..., :-1]).any():
            raise ValueError("n_m: indices do not rise within a group")
        check_stored_order(self.family, self.input_order, self.shape[1])


def _check_n_m(shape: tuple[int, int], n: int, m: int) -> None:
    if not 1 <= n <= m <= LARGEST_M:
        raise ValueError(f"n_m: needs 1 <= n <= m <= {LARGEST_M}, not {n}:{m}")
    if shape[1] % m:
        raise ValueError(f"n_m: groups of m = {m} do not divide K = {shape[1]}")
