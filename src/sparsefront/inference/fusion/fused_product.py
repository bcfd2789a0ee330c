"""A product with its epilogue, in the layouts of its place in a block."""

import copy
from collections.abc import Callable
from typing import Any, Self

import torch
from sparsefront_kernels import KernelEntry, SparseFormat
from sparsefront_kernels.common.epilogue import ACTIVATIONS
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Y_FEATURE_MAJOR
from torch import Tensor, nn
from torch.nn.functional import linear

from sparsefront.inference.fusion.layout import in_layout, layout_name


class FusedProduct(nn.Module):
    """[..., K] -> [..., N]: act(x · Wᵀ + bias) + residual, through one kernel, whatever the strides of its operands.

    Args:
        entry: the kernel; of the family `dense` it is cuBLAS in any layout. What it does not fuse follows it.
        stored: W [N, K] in the kernel's format.
        bias: [N] of any float dtype, or None.
        activation: a name of the kernels' `ACTIVATIONS`.
        x_feature_major, y_feature_major: where the elements of x are expected and those of the result are put.
        operand: what `entry.prepare(stored)` gave, where that is known.
    """

    def __init__(
        self,
        entry: KernelEntry,
        stored: SparseFormat,
        bias: Tensor | None,
        *,
        activation: str = "none",
        x_feature_major: bool = False,
        y_feature_major: bool = False,
        operand: Any = None,
    ) -> None:
        super().__init__()
        self.kernel_name = entry.name
        self.activation = activation
        self.x_feature_major, self.y_feature_major = x_feature_major, y_feature_major
        self.out_features, self.in_features = stored.shape
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self._entry = entry
        self.format, self._operand = stored, entry.prepare(stored) if operand is None else operand

    @property
    def weight(self) -> Tensor:
        """[N, K], rebuilt dense at every access."""
        return self.format.to_dense()

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
        run = self._fused if self._entry.fuses_epilogue else self._followed
        y = in_layout(run(rows, added), feature_major=self.y_feature_major)
        return y.view(*x.shape[:-1], self.out_features)

    def _fused(self, rows: Tensor, added: Tensor | None) -> Tensor:
        """[M, K] -> [M, N], all by the kernel."""
        if self._entry.layout in Y_FEATURE_MAJOR and added is not None:
            added = added.t()
        y = self._entry.run(self._laid_out(rows), self._operand, self.bias, activation=self.activation, residual=added)
        return y.t() if self._entry.layout in Y_FEATURE_MAJOR else y

    def _followed(self, rows: Tensor, added: Tensor | None) -> Tensor:
        """[M, K] -> [M, N], the epilogue by PyTorch, in the layout that is asked for."""
        y = self._dense(rows) if self.format.family == "dense" else self._plain(rows)
        y = ACTIVATIONS[self.activation](in_layout(y, feature_major=self.y_feature_major))
        return y if added is None else y + added

    def _plain(self, rows: Tensor) -> Tensor:
        y = self._entry.run(self._laid_out(rows), self._operand, self.bias)
        return y.t() if self._entry.layout in Y_FEATURE_MAJOR else y

    def _dense(self, rows: Tensor) -> Tensor:
        """Through cuBLAS, which reads either layout and writes the one that is asked for."""
        weight = self.format.values
        bias = None if self.bias is None else self.bias.to(weight.dtype)
        if not self.y_feature_major:
            return linear(rows, weight, bias)
        y = weight @ rows.t()
        return (y if bias is None else y + bias[:, None]).t()

    def _laid_out(self, rows: Tensor) -> Tensor:
        """X as the kernel's layout has it; row-major kernels take any strides."""
        if self._entry.layout not in X_FEATURE_MAJOR:
            return rows
        return in_layout(rows, feature_major=True).t()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        # fn is asked what it would make of the weight, without touching all of it
        probe = fn(torch.empty(0, dtype=self.format.dtype, device=self.format.device))
        if (probe.dtype, probe.device) != (self.format.dtype, self.format.device):
            self.format = self.format.to(device=probe.device, dtype=probe.dtype)
            self._operand = self._entry.prepare(self.format)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        if id(self) in memo:
            return memo[id(self)]
        other = copy.copy(self)
        memo[id(self)] = other  # graphs of several calls share their products
        other._parameters = copy.deepcopy(self._parameters, memo)
        other.format = copy.deepcopy(self.format, memo)
        other._operand = copy.deepcopy(self._operand, memo)  # which may be the format itself
        return other

    def extra_repr(self) -> str:
        bias = self.bias is not None
        return (
            f"n={self.out_features}, k={self.in_features}, kernel={self.kernel_name}, {self.layout}, bias={bias}, "
            f"activation={self.activation}"
        )
