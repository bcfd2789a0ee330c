"""A storage family: whole diagonals of W, which go around at its right side."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from sparsefront_kernels import KernelEntry, SparseFormat
from sparsefront_kernels.epilogue import rebuilt_product
from sparsefront_kernels.format import check_weight_and_mask, matrix_shape
from sparsefront_kernels.kernel_op import kernel_entry
from sparsefront_kernels.operands import check_operands
from torch import Tensor


@dataclass(frozen=True, eq=False)
class DiagonalFormat(SparseFormat):
    """`values` [D, N]: row d is the diagonal `diagonals[d]`, of every output n the weight at input (n + diagonal) mod K."""

    family: ClassVar[str] = "diagonal"
    values: Tensor
    diagonals: Tensor  # int32 [D], ascending

    @classmethod
    def from_dense(cls, weight: Tensor, mask: Tensor) -> Self:
        check_weight_and_mask(weight, mask)
        n, k = matrix_shape(weight)
        inputs = inputs_of(torch.arange(k, device=weight.device), n, k)
        kept = mask.t().gather(0, inputs)  # [K, N], a diagonal in each row
        if (torn := kept.any(dim=1) & ~kept.all(dim=1)).any():
            raise ValueError(f"diagonal: diagonal {int(torn.nonzero()[0])} is kept only in part")
        (diagonals,) = kept.all(dim=1).nonzero(as_tuple=True)
        return cls((n, k), weight.detach().t().gather(0, inputs[diagonals]), diagonals.int())

    def to_dense(self) -> Tensor:
        return dense_weight(pack_diagonals(self))

    def check(self) -> None:
        (n, k), found = self.shape, self.diagonals
        if found.dtype != torch.int32 or self.values.shape != (len(found), n):
            raise ValueError(f"diagonal: values {list(self.values.shape)} for {len(found)} diagonals, {found.dtype}")
        if len(found) and not (0 <= int(found[0]) and int(found[-1]) < k and bool((found.diff() > 0).all())):
            raise ValueError(f"diagonal: diagonals must ascend in [0, {k}), not {found.tolist()}")


def inputs_of(diagonals: Tensor, n: int, k: int) -> Tensor:
    """int64 [D, N]: the input of each weight."""
    return (diagonals[:, None] + torch.arange(n, device=diagonals.device)) % k


@dataclass(frozen=True, eq=False)
class DiagonalWeight:
    """What the kernel reads, of a weight [n, k]; its fields become arguments of the op."""

    n: int
    k: int
    values: Tensor  # [D, N]
    inputs: Tensor  # int64 [D, N]


def pack_diagonals(stored: DiagonalFormat) -> DiagonalWeight:
    return DiagonalWeight(*stored.shape, stored.values, inputs_of(stored.diagonals, *stored.shape))


def diagonal_torch(x: Tensor, packed: DiagonalWeight, bias: Tensor | None) -> Tensor:
    """Y [M, N] = X [M, K] · Wᵀ + bias; a kernel in Triton or CUDA would be launched here."""
    check_operands(x, packed.values, bias, k=packed.k, n=packed.n)
    y = (x[:, packed.inputs].float() * packed.values).sum(dim=1)
    return (y if bias is None else y + bias.float()).to(x.dtype)


def dense_weight(packed: DiagonalWeight) -> Tensor:
    """W [N, K], by which the backward pass multiplies."""
    return packed.values.new_zeros(packed.k, packed.n).scatter(0, packed.inputs, packed.values).t().contiguous()


KERNEL = {"weight": DiagonalWeight, "pack": pack_diagonals, "run": diagonal_torch, "dense": dense_weight}
REFERENCE = KernelEntry("diagonal_reference", "diagonal", rebuilt_product, is_reference=True)
FORMAT, ENTRIES = DiagonalFormat, (REFERENCE, kernel_entry("diagonal_torch", "diagonal", **KERNEL))
