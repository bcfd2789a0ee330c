"""Base class of the sparse layers: a stored weight and the kernel that multiplies by it."""

import copy
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from sparsefront_kernels.epilogue import with_epilogue
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.pointwise import contiguous_transpose
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Y_FEATURE_MAJOR
from sparsefront_kernels.quantized.quantize import Quantized, quantize
from sparsefront_kernels.tuning.launches import TunedLaunches


class SparseLayer(nn.Module):
    """Y[M, N] = X[M, K] · W[N, K]ᵀ + bias through one kernel.

    The compressed weight is not a parameter: sparse layers are built from exports, which are what gets saved. Moving, casting
    or copying the module moves, casts or copies the weight. A kernel may read a packed copy of the format; `release_format`
    then keeps only that copy on the device.

    Args:
        entry: the kernel.
        format: W in the format of this kernel's family.
        bias: [N] or None, as in the dense layer.
        layout: of X and Y, `kernel_layout` afterwards; default: the kernel's first.
        x_scale: static scale of X for a low-precision kernel; None: dynamic scales per row.
    Attributes:
        activation: a name of `epilogue.ACTIVATIONS`, for a kernel that fuses it.
        emulates: if True, a low-precision kernel is replaced by a float32 product of the quantized operands.
    """

    format: SparseFormat
    activation = "none"
    emulates = False

    def __init__(
        self,
        entry: KernelEntry,
        format: SparseFormat,
        bias: Tensor | None,
        layout: str | None = None,
        x_scale: float | None = None,
    ) -> None:
        super().__init__()
        self.x_scale = x_scale
        self.kernel_layout = layout or entry.layouts[0]
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self._entry, self._released = entry, False
        self._set_format(format)
        self.eval()

    @property
    def weight(self) -> Tensor:
        """Dense weight [N, K], rebuilt on every access: for code that inspects a layer's weight, not for computing."""
        return self.format.to_dense().to(self._device)

    @property
    def device(self) -> torch.device:
        """Device on which the kernel runs."""
        return self._device

    @property
    def kernel_name(self) -> str:
        """The kernel's label in this layout."""
        return self._entry.label(self.kernel_layout)

    @property
    def precision(self) -> str:
        """Precision of the product: "none" (the dtype of X and W), "fp8" or "int8"."""
        return self._entry.precision

    def entered(self, x: Tensor | Quantized) -> Tensor | Quantized:
        """X [M, K] as passed to the kernel: already quantized if its scale is static."""
        if self._static_scale is None or isinstance(x, Quantized):
            return x
        quantized = quantize(x, self.precision, scale=self._static_scale)
        return (
            quantized if "static" in self._entry.takes_scales else Quantized(quantized.values, quantized.row_scales())
        )

    def multiplied(self, x: Tensor | Quantized) -> tuple[Tensor, Tensor]:
        """X [M, K] and W [N, K] of a low-precision kernel after quantization, in float32."""
        assert self._entry.multiplied is not None  # set for every low-precision kernel
        return self._entry.multiplied(self.entered(x), self._operand)

    def emulated(self, x: Tensor | Quantized, activation: str = "none", residual: Tensor | None = None) -> Tensor:
        """activation(X · Wᵀ + bias) + residual of the quantized operands in float32: [M, K] -> [M, N] in the weight's dtype."""
        of_x, of_w = self.multiplied(x)
        return with_epilogue(of_x.float() @ of_w.float().t(), self.bias, activation, residual).to(self.format.dtype)

    @property
    def tunable(self) -> tuple[TunedLaunches | None, Any]:
        """The kernel's launch parameters, or None, and the packed weight for which they are chosen."""
        return self._entry.tunable_in(self.kernel_layout), self._operand

    def product(self, x: Tensor) -> Tensor:
        """[M, K] -> [M, N], in the weight's dtype regardless of autocast.

        The result is row-major and contiguous, so that the cost of a layout is paid, and timed, inside the layer.
        """
        if torch.is_autocast_enabled(x.device.type):
            with torch.autocast(x.device.type, enabled=False):
                return self.product(x.to(self.format.dtype))
        if self.emulates:
            return self.emulated(x, self.activation)
        layout = self.kernel_layout
        keywords = self._entry.layout_keyword(layout)
        keywords |= {} if self.activation == "none" else {"activation": self.activation}
        x = contiguous_transpose(x) if layout in X_FEATURE_MAJOR else x
        y = self._entry.product(self.entered(x), self._operand, self.bias, **keywords)
        return contiguous_transpose(y) if layout in Y_FEATURE_MAJOR else y.contiguous()

    def train(self, mode: bool = True) -> Self:
        """Raises RuntimeError for training mode: an optimizer would silently train the other layers alone."""
        if mode:
            raise RuntimeError(
                "sparse layers are for inference: train the masked network before its layers are replaced, as sf.recover does"
            )
        return super().train(mode)

    def release_format(self) -> None:
        """Move the format to the CPU if the kernel reads a packed copy, to keep the weight on the device only once.

        This persists when the module is moved, cast or copied.
        """
        self._released = True
        self.format = self._kept(self.format)

    def scaled(self, scale: Tensor, shift: Tensor) -> Self:
        """A copy of the layer that returns y * scale + shift.

        Args:
            scale, shift: [N], float.
        Raises:
            ValueError: the format cannot be scaled.
        """
        other = copy.deepcopy(self)
        other._set_format(self.format.scaled(scale).to(self._device))
        bias = shift if self.bias is None else self.bias.float() * scale + shift
        dtype = self.format.dtype if self.bias is None else self.bias.dtype
        other.bias = nn.Parameter(bias.to(dtype), requires_grad=False)
        return other

    def _set_format(self, format: SparseFormat) -> None:
        self._device, self._operand = format.device, self._entry.pack(format)
        scale = self.x_scale
        self._static_scale = None if scale is None else torch.full((1, 1), scale, device=format.device)
        self.format = self._kept(format)

    def _kept(self, format: SparseFormat) -> SparseFormat:
        return format.to("cpu") if self._released and self._operand is not format else format

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        # find out the target dtype and device of fn without converting the whole weight
        probe = fn(torch.empty(0, dtype=self.format.dtype, device=self._device))
        if (probe.dtype, probe.device) != (self.format.dtype, self._device):
            self._set_format(self.format.to(device=probe.device, dtype=probe.dtype))
        return self

    def __copy__(self) -> Self:
        """Share the weight but copy the dicts of hooks, buffers and modules, so that additions to the copy stay in the copy."""
        other = type(self).__new__(type(self))
        state = self.__dict__.items()
        other.__dict__.update({name: copy.copy(part) if isinstance(part, dict | set) else part for name, part in state})
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = copy.copy(self)
        other._parameters = copy.deepcopy(self._parameters, memo)
        tensors = {name: tensor.to(self._device, copy=True) for name, tensor in self.format.tensors().items()}
        # pack again: a library's packed weight cannot always be copied
        other._set_format(type(self.format).from_tensors(tensors, self.format.meta()))
        return other

    def extra_repr(self) -> str:
        n, k = self.format.shape
        return f"n={n}, k={k}, kernel={self.kernel_name}, bias={self.bias is not None}"
