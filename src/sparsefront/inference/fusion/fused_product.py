"""A product of a block with its epilogue, input and output layouts, and precision."""

import copy
from typing import Any, Self

import torch
from sparsefront_kernels import KernelEntry, SparseFormat
from sparsefront_kernels.custom_op import is_fused_later
from sparsefront_kernels.dense.format import DenseFormat
from sparsefront_kernels.epilogue import ACTIVATIONS
from sparsefront_kernels.pointwise import contiguous_transpose, epilogue
from sparsefront_kernels.problem import LAYOUTS, X_FEATURE_MAJOR, Y_FEATURE_MAJOR
from sparsefront_kernels.quantized.quantize import Quantized, quantize_activated
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import Tensor
from torch.nn.functional import linear

# Memory layout of an activation, whose shape is always [..., features].
#
# A feature-major activation is contiguous along tokens: [B, T, d] with strides (T, 1, B·T) is a view of [d, B·T]. Modules
# exchange such views, so that signatures do not change and every operator that respects strides stays correct.


def in_layout(matrix: Tensor, *, feature_major: bool) -> Tensor:
    """[M, d] in this memory layout: itself, or a copy."""
    if matrix.stride(0 if feature_major else 1) == 1 or matrix.shape[1 if feature_major else 0] == 1:
        return matrix
    if feature_major:
        return contiguous_transpose(matrix).t()
    return contiguous_transpose(matrix.t())


def activation_in_layout(x: Tensor, *, feature_major: bool) -> Tensor:
    """`in_layout` for [..., d]."""
    return in_layout(x.reshape(-1, x.shape[-1]), feature_major=feature_major).view(x.shape)


def layout_name(*, x_feature_major: bool, y_feature_major: bool) -> str:
    """The kernels' name for a pair of layouts."""
    return next(
        layout
        for layout in LAYOUTS
        if (layout in X_FEATURE_MAJOR, layout in Y_FEATURE_MAJOR) == (x_feature_major, y_feature_major)
    )


# A product with its epilogue.

SCALE_GROUP = 128  # outputs per scale where a product quantizes its output
# families whose row-major kernels are as fast with a feature-major X
READS_ANY_STRIDES = ("dense", "gathered", "gathered_2_4", "blocked", "blocked_2_4")


class FusedProduct(SparseLayer):
    """[..., K] -> [..., N]: act(x · Wᵀ + bias) + residual, through one kernel, for operands with any strides.

    In low precision x may be quantized: values [..., K], with scales per row [M, 1] or per group of inputs. The layouts are
    row-major then.

    Args:
        entry: the kernel; the family `dense` is cuBLAS in any layout. Parts of the epilogue that it cannot fuse run after it.
        stored: W [N, K] in the kernel's format.
        bias: [N] of any float dtype, or None.
        kernel_layout: layout in which the kernel runs, as in `SparseLayer`.
        activation: a name of the kernels' `ACTIVATIONS`.
        x_feature_major, y_feature_major: memory layouts of x and of the result.
        x_scale: as in `SparseLayer`.
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
        x_scale: float | None = None,
    ) -> None:
        super().__init__(entry, stored, bias, kernel_layout, x_scale)
        self.out_features, self.in_features = stored.shape
        self.activation = activation
        self.x_feature_major, self.y_feature_major = x_feature_major, y_feature_major

    @property
    def layout(self) -> str:
        return layout_name(x_feature_major=self.x_feature_major, y_feature_major=self.y_feature_major)

    @property
    def output_scales(self) -> str | None:
        """Scales of its quantized output, as in `takes_scales`: "group128" (per row and 128 outputs) if the kernel can quantize;
        else "row", in one pass with the activation. None in 16 bits, or where that saves no pass.
        """
        if self._entry.quantized_run is not None and self.out_features % SCALE_GROUP == 0:
            return "group128"
        return "row" if self.precision == "fp8" and self.activation != "none" else None

    def takes(self, scales: str) -> bool:
        """Whether x may be in e4m3 with such scales; not if the product has a static scale."""
        return self.precision == "fp8" and scales in self._entry.takes_scales and self.x_scale is None

    def forward(self, x: Tensor | Quantized, residual: Tensor | None = None) -> Tensor:
        """Runs in the weight's dtype, under autocast too."""
        device = _values(x).device.type
        if torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                dtype = self.format.dtype
                return self._forward(self._cast(x), None if residual is None else residual.to(dtype), self.activation)
        return self._forward(x, residual, self.activation)

    def without_epilogue(self, x: Tensor) -> Tensor:
        """x · Wᵀ + bias, for callers that compute the epilogue themselves."""
        with torch.autocast(x.device.type, enabled=False):
            return self._forward(x.to(self.format.dtype), None, "none")

    def run_quantized(self, x: Tensor | Quantized) -> Quantized:
        """act(x · Wᵀ + bias) quantized for another product: values [..., N], and scales as in `output_scales`."""
        with torch.autocast(_values(x).device.type, enabled=False):
            rows = self.entered(self._rows(self._cast(x)))
            if self.output_scales == "group128":
                run = self._entry.quantized_run
                assert run is not None  # see `output_scales`
                y = run(rows, self._operand, self.bias, activation=self.activation)
            else:
                y = quantize_activated(self._entry.run(rows, self._operand, self.bias), self.activation)
        return Quantized(y.values.view(*_values(x).shape[:-1], self.out_features), y.scales)

    def _cast(self, x: Tensor | Quantized) -> Tensor | Quantized:
        return x.to(self.format.dtype) if isinstance(x, Tensor) else x

    def _rows(self, x: Tensor | Quantized) -> Any:
        """x as [M, K]."""
        rows = _values(x).reshape(-1, self.in_features)
        return rows if isinstance(x, Tensor) else Quantized(rows, x.scales)

    def _forward(self, x: Tensor | Quantized, residual: Tensor | None, activation: str) -> Tensor:
        rows = self._rows(x)
        added = None if residual is None else residual.reshape(-1, self.out_features)
        if self.emulates:
            y = self.emulated(rows, activation, added)
        elif self._entry.fuses_epilogue:
            y = in_layout(self._run_fused(rows, added, activation), feature_major=self.y_feature_major)
        elif self.y_feature_major:
            y = self._feature_major_then_epilogue(rows, added, activation)
        else:
            y = self._row_major_then_epilogue(rows, added, activation)
        return y.view(*_values(x).shape[:-1], self.out_features)

    def _run_fused(self, rows: Tensor, added: Tensor | None, activation: str) -> Tensor:
        """[M, K] -> [M, N], with the epilogue in the kernel."""
        y_feature_major = self.kernel_layout in Y_FEATURE_MAJOR
        y = self._entry.run(
            self._lay_out(rows),
            self._operand,
            self.bias,
            layout=self.kernel_layout,
            activation=activation,
            residual=added.t() if added is not None and y_feature_major else added,
        )
        return y.t() if y_feature_major else y

    def _row_major_then_epilogue(self, rows: Tensor, added: Tensor | None, activation: str) -> Tensor:
        """[M, K] -> [M, N], row-major: the kernel adds the bias, the rest of the epilogue runs after it."""
        weight = self._plain_weight
        if weight is not None:
            y = linear(rows, weight, None if self.bias is None else self.bias.to(rows.dtype))
        else:
            y = in_layout(self._kernel(rows, self.bias), feature_major=False)
        if activation == "none" and added is None:
            return y
        if _uses_epilogue_kernel(y):
            return epilogue(y, None, activation, added)
        y = ACTIVATIONS[activation](y)
        return y if added is None else y + added

    def _feature_major_then_epilogue(self, rows: Tensor, added: Tensor | None, activation: str) -> Tensor:
        """[M, K] -> [M, N], feature-major: the bias is added after the kernel if that needs no extra pass."""
        follows = activation != "none" or added is not None
        weight = self._plain_weight
        bias = self.bias if follows or weight is not None else None
        if weight is not None:
            y = weight @ rows.t()
        else:
            y = in_layout(self._kernel(rows, None if follows else self.bias), feature_major=True).t()
        if not follows and bias is None:
            return y.t()
        if _uses_epilogue_kernel(y):
            return epilogue(y, bias, activation, None if added is None else added.t()).t()
        y = y if bias is None else y + bias.to(y.dtype)[:, None]
        y = ACTIVATIONS[activation](y).t()
        return y if added is None else y + added

    def _kernel(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        y = self._entry.run(self._lay_out(rows), self._operand, bias, layout=self.kernel_layout)
        return y.t() if self.kernel_layout in Y_FEATURE_MAJOR else y

    @property
    def _plain_weight(self) -> Tensor | None:
        """[N, K] for a dense 16-bit product, which cuBLAS runs; else None."""
        return self.format.values if isinstance(self.format, DenseFormat) and self.precision == "none" else None

    def _lay_out(self, rows: Any) -> Any:
        """X in the kernel's layout."""
        if self.precision != "none":
            return self.entered(rows)
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


def _values(x: Tensor | Quantized) -> Tensor:
    return x if isinstance(x, Tensor) else x.values


def _uses_epilogue_kernel(y: Tensor) -> bool:
    """Whether to run the epilogue in our own kernel; a compiler fuses it as well, and may fuse later operators too."""
    return y.is_cuda and y.dtype != torch.float64 and not is_fused_later()
