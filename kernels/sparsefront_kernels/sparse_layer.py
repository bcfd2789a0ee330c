"""The part that all sparse layers share: a stored weight and the kernel that multiplies by it."""

import copy
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from sparsefront_kernels.common.epilogue import with_epilogue
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.pointwise import contiguous_transpose
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Y_FEATURE_MAJOR
from sparsefront_kernels.quantized.quantize import Quantized, quantize
from sparsefront_kernels.tuning.launches import Tunable


class SparseLayer(nn.Module):
    """Y[M, N] = X[M, K] · W[N, K]ᵀ + bias through one kernel.

    The compressed weight is no parameter: exports are what gets saved, and sparse networks are made from them. Moving,
    casting or copying the module moves, casts or copies the weight. What the kernel reads may be a packed copy of the
    format; `release_format` then leaves that copy alone on the device.

    Args:
        entry: the kernel.
        format: W as this kernel's family stores it.
        bias: [N] or None, as the dense layer had it.
        layout: of X and Y as the kernel takes and gives them, `kernel_layout` afterwards; by default its first one.
        x_scale: of a kernel in low precision, the one scale of all X; None: each row has its own, found at run time.
    Attributes:
        emulates: while True, a kernel in low precision is replaced by its quantised operands multiplied in float32.
    """

    format: SparseFormat
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

    @property
    def weight(self) -> Tensor:
        """[N, K], rebuilt dense at every access: for code that looks at a layer's weight, not for computing."""
        return self.format.to_dense().to(self._device)

    @property
    def device(self) -> torch.device:
        """That the kernel runs on."""
        return self._device

    @property
    def kernel_name(self) -> str:
        """The kernel's label in this layout."""
        return self._entry.label(self.kernel_layout)

    @property
    def precision(self) -> str:
        """What the kernel multiplies in: "none" (as X and W come), "fp8" or "int8"."""
        return self._entry.precision

    def entered(self, x: Tensor | Quantized) -> Tensor | Quantized:
        """X [M, K] as the kernel is given it: quantised already where its scale is static."""
        if self._static_scale is None or isinstance(x, Quantized):
            return x
        found = quantize(x, self.precision, scale=self._static_scale)
        return found if "static" in self._entry.takes_scales else Quantized(found.values, found.row_scales())

    def multiplied(self, x: Tensor | Quantized) -> tuple[Tensor, Tensor]:
        """Of a kernel in low precision: X [M, K] and W [N, K] in float32, as they are after quantisation."""
        assert self._entry.multiplied is not None  # as every kernel in low precision has it
        return self._entry.multiplied(self.entered(x), self._operand)

    def emulated(self, x: Tensor | Quantized, activation: str = "none", residual: Tensor | None = None) -> Tensor:
        """[M, K] -> [M, N] in the weight's dtype: activation(X · Wᵀ + bias) + residual of the quantised operands."""
        of_x, of_w = self.multiplied(x)
        return with_epilogue(of_x.float() @ of_w.float().t(), self.bias, activation, residual).to(self.format.dtype)

    @property
    def tunable(self) -> tuple[Tunable | None, Any]:
        """The kernel's launch parameters, or None where it has none, and the packed weight that they are chosen for."""
        return self._entry.tunable_in(self.kernel_layout), self._operand

    def product(self, x: Tensor) -> Tensor:
        """[M, K] -> [M, N], in the weight's dtype whatever autocast says."""
        if torch.is_autocast_enabled(x.device.type):
            with torch.autocast(x.device.type, enabled=False):
                return self._run(x.to(self.format.dtype))
        return self._run(x)

    def _run(self, x: Tensor) -> Tensor:
        """Row-major and contiguous in the end, so that whatever a layout costs is paid, and timed, inside the layer."""
        layout = self.kernel_layout
        if self.emulates:
            return self.emulated(x)
        x = contiguous_transpose(x) if layout in X_FEATURE_MAJOR else x
        y = self._entry.run(self.entered(x), self._operand, self.bias, layout=layout)
        return contiguous_transpose(y) if layout in Y_FEATURE_MAJOR else y.contiguous()

    def release_format(self) -> None:
        """Keep the weight once on the device: where the kernel reads a packed copy, the format moves to the CPU.

        It stays so when the module is moved, cast or copied.
        """
        self._released = True
        self.format = self._kept(self.format)

    def scaled(self, scale: Tensor, shift: Tensor) -> Self:
        """A copy that gives y * scale + shift.

        Args:
            scale, shift: [N], float.
        Raises:
            ValueError: a format that cannot be scaled.
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
        # fn is asked what it would make of the weight, without touching all of it
        probe = fn(torch.empty(0, dtype=self.format.dtype, device=self._device))
        if (probe.dtype, probe.device) != (self.format.dtype, self._device):
            self._set_format(self.format.to(device=probe.device, dtype=probe.dtype))
        return self

    def __copy__(self) -> Self:
        """With the same weight, but hooks, buffers and modules of its own: what is added to it is not added here."""
        other = type(self).__new__(type(self))
        state = self.__dict__.items()
        other.__dict__.update({name: copy.copy(part) if isinstance(part, dict | set) else part for name, part in state})
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = copy.copy(self)
        other._parameters = copy.deepcopy(self._parameters, memo)
        tensors = {name: tensor.to(self._device, copy=True) for name, tensor in self.format.tensors().items()}
        # packed again: what a library packed cannot always be copied
        other._set_format(type(self.format).from_tensors(tensors, self.format.meta()))
        return other

    def extra_repr(self) -> str:
        n, k = self.format.shape
        return f"n={n}, k={k}, kernel={self.kernel_name}, bias={self.bias is not None}"
