"""A product with its epilogue, in the layouts of its place in a block."""

import copy
from typing import Any, Self

import torch
from sparsefront_kernels import KernelEntry, SparseFormat
from sparsefront_kernels.common.epilogue import ACTIVATIONS
from sparsefront_kernels.pointwise import epilogue
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Y_FEATURE_MAJOR
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import Tensor
from torch.nn.functional import linear

from sparsefront.inference.fusion.layout import in_layout, layout_name

READS_ANY_STRIDES = (
    "dense",
    "gathered",
    "gathered_2_4",
    "blocked",
    "blocked_2_4",
)  # their row-major kernels lose nothing where X is feature-major


class FusedProduct(SparseLayer):
    """[..., K] -> [..., N]: act(x · Wᵀ + bias) + residual, through one kernel, whatever the strides of its operands.

    Args:
        entry: the kernel; of the family `dense` it is cuBLAS in any layout. What it does not fuse follows it.
        stored: W [N, K] in the kernel's format.
        bias: [N] of any float dtype, or None.
        kernel_layout: that the kernel runs in, as of `SparseLayer`.
        activation: a name of the kernels' `ACTIVATIONS`.
        x_feature_major, y_feature_major: where the elements of x are expected and those of the result are put.
    """

    def __init__(
        self,
        entry: KernelEntry,
        stored: SparseFormat,
        bias: Tensor | None,
        *,
        kernel_layout: str | None = None,
        activation: str = "none",
        x_feature_major: bool = False,
        y_feature_major: bool = False,
    ) -> None:
        super().__init__(entry, stored, bias, kernel_layout)
        self.out_features, self.in_features = stored.shape
        self.activation = activation
        self.x_feature_major, self.y_feature_major = x_feature_major, y_feature_major

    @property
    def layout(self) -> str:
        return layout_name(x_feature_major=self.x_feature_major, y_feature_major=self.y_feature_major)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """In the weight's dtype, whatever autocast says."""
        if torch.is_autocast_enabled(x.device.type):
            with torch.autocast(x.device.type, enabled=False):
                dtype = self.format.dtype
                return self._forward(x.to(dtype), None if residual is None else residual.to(dtype))
        return self._forward(x, residual)

    def _forward(self, x: Tensor, residual: Tensor | None) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        added = None if residual is None else residual.reshape(-1, self.out_features)
        if self._entry.fuses_epilogue:
            y = in_layout(self._fused(rows, added), feature_major=self.y_feature_major)
        elif self.y_feature_major:
            y = self._followed_by_columns(rows, added)
        else:
            y = self._followed_by_rows(rows, added)
        return y.view(*x.shape[:-1], self.out_features)

    def _fused(self, rows: Tensor, added: Tensor | None) -> Tensor:
        """[M, K] -> [M, N], all by the kernel."""
        y_feature_major = self.kernel_layout in Y_FEATURE_MAJOR
        y = self._entry.run(
            self._laid_out(rows),
            self._operand,
            self.bias,
            layout=self.kernel_layout,
            activation=self.activation,
            residual=added.t() if added is not None and y_feature_major else added,
        )
        return y.t() if y_feature_major else y

    def _followed_by_rows(self, rows: Tensor, added: Tensor | None) -> Tensor:
        """[M, K] -> [M, N], row-major: the kernel adds the bias, the rest of the epilogue follows."""
        if self.format.family == "dense":
            y = linear(rows, self.format.values, None if self.bias is None else self.bias.to(rows.dtype))
        else:
            y = in_layout(self._kernel(rows, self.bias), feature_major=False)
        if self.activation == "none" and added is None:
            return y
        if _in_one_pass(y):
            return epilogue(y, None, self.activation, added)
        y = ACTIVATIONS[self.activation](y)
        return y if added is None else y + added

    def _followed_by_columns(self, rows: Tensor, added: Tensor | None) -> Tensor:
        """[M, K] -> [M, N], feature-major: the bias follows the product too where that costs no pass of its own."""
        follows = self.activation != "none" or added is not None
        bias = self.bias if follows or self.format.family == "dense" else None
        if self.format.family == "dense":
            y = self.format.values @ rows.t()
        else:
            y = in_layout(self._kernel(rows, None if follows else self.bias), feature_major=True).t()
        if not follows and bias is None:
            return y.t()
        if _in_one_pass(y):
            return epilogue(y, bias, self.activation, None if added is None else added.t()).t()
        y = y if bias is None else y + bias.to(y.dtype)[:, None]
        y = ACTIVATIONS[self.activation](y).t()
        return y if added is None else y + added

    def _kernel(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        y = self._entry.run(self._laid_out(rows), self._operand, bias, layout=self.kernel_layout)
        return y.t() if self.kernel_layout in Y_FEATURE_MAJOR else y

    def _laid_out(self, rows: Tensor) -> Tensor:
        """X as the kernel's layout has it."""
        if self.kernel_layout in X_FEATURE_MAJOR:
            return in_layout(rows, feature_major=True).t()
        return rows if self.format.family in READS_ANY_STRIDES else in_layout(rows, feature_major=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = copy.copy(self)
        other._parameters = copy.deepcopy(self._parameters, memo)
        other.format = copy.deepcopy(self.format, memo)
        other._operand = copy.deepcopy(self._operand, memo)  # which may be the format itself
        return other

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation}, {self.layout}"


def _in_one_pass(y: Tensor) -> bool:
    """Whether our own kernel follows a product; a compiler does as well by itself, and may fuse what comes next too."""
    return y.is_cuda and y.dtype != torch.float64 and not torch.compiler.is_compiling()
