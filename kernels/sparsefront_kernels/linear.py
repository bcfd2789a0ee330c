"""Sparse linear layers: the module `SparseLinear` and the function `sparse_linear`."""

from dataclasses import replace
from typing import Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.packing import pack
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.registry import best_kernel, labeled
from sparsefront_kernels.sparse_layer import SparseLayer

ROWS = 2048  # default M for which a layer's kernel is chosen


class SparseLinear(SparseLayer):
    """Sparse nn.Linear for inference: [..., K] -> [..., N]. The weight is compressed and cannot be trained."""

    _rows: int | None = None  # M for which the kernel is chosen again on every device; None: keep the kernel

    def __init__(
        self,
        entry: KernelEntry,
        format: SparseFormat,
        bias: Tensor | None,
        layout: str | None = None,
        x_scale: float | None = None,
    ) -> None:
        super().__init__(entry, format, bias, layout, x_scale)
        self.out_features, self.in_features = format.shape

    @classmethod
    def from_masked(
        cls,
        linear: nn.Linear,
        mask: Tensor,
        tile: int = 128,
        *,
        family: str | None = None,
        kernel: str | None = None,
        rows: int = ROWS,
        **parameters: object,
    ) -> Self:
        """Compress a masked linear layer.

        Args:
            linear: its weight is [N, K], any float dtype and device; pruned weights are dropped.
            mask: bool [N, K], True = keep.
            tile, family, parameters: as in `pack`.
            kernel: name of the kernel, optionally followed by a layout (gathered_sm90_feature_major); None: `best_kernel` for
                `rows` rows of X, chosen again when the layer moves to another device or dtype.
            rows: M, rows of X: tokens of a batch.
        Raises:
            ValueError: the mask does not have the family's structure, or the kernel does not support the product; says why.
        """
        packed = pack(linear.weight, mask, tile, family=family, **parameters)
        problem = _problem(packed, rows)
        chosen, layout = (best_kernel(packed, problem), None) if kernel is None else labeled(kernel)
        chosen.require_supported(packed, replace(problem, layout=layout or chosen.layouts[0]))
        layer = cls(chosen, packed, linear.bias, layout)
        layer._rows = rows if kernel is None else None
        return layer

    @classmethod
    def replacing(
        cls,
        layer: nn.Linear,
        entry: KernelEntry,
        format: SparseFormat,
        layout: str | None = None,
        x_scale: float | None = None,
    ) -> Self:
        """A layer with the stored weight `format` and the bias of `layer`."""
        return cls(entry, format, layer.bias, layout, x_scale)

    def forward(self, input: Tensor) -> Tensor:
        """The parameter is named `input` as in nn.Linear."""
        rows = input.reshape(-1, self.in_features)
        return self.product(rows).reshape(*input.shape[:-1], self.out_features)

    def _set_format(self, format: SparseFormat) -> None:
        if self._rows is not None:
            self._entry = best_kernel(format, _problem(format, self._rows))
        super()._set_format(format)


def sparse_linear(x: Tensor, packed: SparseFormat, bias: Tensor | None = None) -> Tensor:
    """Compute Y = X · Wᵀ + bias with the best kernel for this product. The weight is packed once.

    Inside torch.compile or a CUDA graph use `SparseLinear`, which chooses its kernel beforehand.

    Args:
        x: [..., K], in the weight's dtype and on its device.
        packed: W, as returned by `pack` or a format's `from_dense`.
        bias: [N].
    Returns:
        [..., N], row-major and contiguous.
    Raises:
        ValueError: x's width, dtype or device differs from the weight's, or no kernel supports the product.
    """
    n, k = packed.shape
    if x.shape[-1] != k or x.dtype != packed.dtype or x.device != packed.device:
        actual = f"{x.dtype} [..., {x.shape[-1]}] on {x.device}"
        raise ValueError(f"x must be {packed.dtype} [..., {k}] on {packed.device}, as the weight, not {actual}")
    rows = x.reshape(-1, k)
    chosen = _chosen(packed, len(rows))
    return chosen.run(rows, _operand(packed, chosen), bias).contiguous().reshape(*x.shape[:-1], n)


MOST_ROWS = 64  # per weight: for how many numbers of rows the chosen kernel is cached
_OPERANDS: WeakKeyDictionary[SparseFormat, dict[str, object]] = WeakKeyDictionary()
_CHOICES: WeakKeyDictionary[SparseFormat, dict[int, KernelEntry]] = WeakKeyDictionary()


def _operand(packed: SparseFormat, chosen: KernelEntry) -> object:
    """The packed weight, cached as long as the weight lives, without a reference that would keep the weight alive."""
    operands = _OPERANDS.setdefault(packed, {})
    if chosen.name in operands:
        return operands[chosen.name]
    operand = chosen.pack(packed)
    if operand is not packed:
        operands[chosen.name] = operand
    return operand


def _chosen(packed: SparseFormat, rows: int) -> KernelEntry:
    choices = _CHOICES.setdefault(packed, {})
    if rows not in choices:
        if len(choices) == MOST_ROWS:
            choices.pop(next(iter(choices)))  # the oldest
        choices[rows] = best_kernel(packed, _problem(packed, rows))
    return choices[rows]


def _problem(packed: SparseFormat, rows: int) -> Problem:
    n, k = packed.shape
    device: torch.device = packed.device
    return Problem(m=rows, k=k, n=n, dtype=packed.dtype, device=device)
