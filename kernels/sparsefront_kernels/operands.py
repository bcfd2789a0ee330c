"""Operand checks, and the aligned layout along M that feature-major CUDA kernels require.

A kernel with a wrong shape reads out of bounds, so every op checks its operands.
"""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from sparsefront_kernels.cuda.launch import TYPE_CODES
from sparsefront_kernels.epilogue import ACTIVATION_CODES, check_activation

TRITON_IS_INSTALLED = importlib.util.find_spec("triton") is not None


def check_operands(
    x: Tensor, values: Tensor, bias: Tensor | None, *, k: int, n: int, feature_major: bool = False
) -> None:
    """Raise ValueError unless x, the stored values and the bias are compatible.

    Args:
        x: [M, K], or [K, M] if feature_major.
        values: of the format; x must have their dtype and device.
        bias: [N] of any float dtype on the same device, or None.
        k, n: inputs and outputs of the weight.
    """
    layout = "[K, M]" if feature_major else "[M, K]"
    if x.ndim != 2 or x.shape[0 if feature_major else 1] != k:
        raise ValueError(f"x must be {layout} with K = {k}, not {list(x.shape)}")
    if x.dtype != values.dtype:
        raise ValueError(f"x is {x.dtype}, the weight {values.dtype}")
    if x.device != values.device:
        raise ValueError(f"x is on {x.device}, the weight on {values.device}")
    if bias is None:
        return
    if bias.shape != (n,) or not bias.is_floating_point():
        raise ValueError(f"bias must be a float [{n}], not {bias.dtype} {list(bias.shape)}")
    if bias.device != x.device:
        raise ValueError(f"bias is on {bias.device}, x on {x.device}")


def contiguous_at_16_bytes(operand: Tensor) -> Tensor:
    """Copy the tensor unless it is contiguous and 16-byte aligned."""
    operand = operand.contiguous()
    return operand if operand.data_ptr() % 16 == 0 else operand.clone()


def check_epilogue(y: Tensor, activation: str, residual: Tensor | None) -> None:
    """Raise ValueError unless the activation is known and the residual matches Y.

    Args:
        y: the output in its layout.
        residual: of y's shape, dtype and device, any strides, or None.
    """
    check_activation(activation)
    if residual is None:
        return
    if residual.shape != y.shape or residual.dtype != y.dtype:
        raise ValueError(
            f"the residual must be {y.dtype} {list(y.shape)} as the output, not {residual.dtype} {list(residual.shape)}"
        )
    if residual.device != y.device:
        raise ValueError(f"the residual is on {residual.device}, x on {y.device}")


def empty_output(x: Tensor, n: int, x_feature_major: bool, y_feature_major: bool) -> Tensor:
    """Allocate Y: [M, N], or [N, M] if y_feature_major, in x's dtype and on its device.

    Args:
        x: [M, K], or [K, M] if x_feature_major.
    """
    m = x.shape[1 if x_feature_major else 0]
    return x.new_empty((n, m) if y_feature_major else (m, n))


def bias_for_kernel(bias: Tensor | None) -> Tensor | None:
    """The bias for CUDA kernels: contiguous, in a type of at most 32 bits; None if there is none."""
    if bias is None:
        return None
    return (bias.float() if bias.dtype == torch.float64 else bias).contiguous()


RUN_BYTES = 16  # size of a vectorized access


def run_length(dtype: torch.dtype) -> int:
    """Elements per vectorized access; M must be a multiple of it."""
    return RUN_BYTES // dtype.itemsize


def aligned_by_input(x: Tensor, *, feature_major: bool) -> Tensor:
    """X, [K, M] if feature_major, else [M, K], as [K, M rounded up to whole runs] with aligned rows.

    Returns X itself if possible, else a copy whose padding past M is uninitialized.
    """
    m, run = x.shape[1 if feature_major else 0], run_length(x.dtype)
    by_input = x if feature_major else x.t()
    if m % run == 0 and has_aligned_rows(by_input):
        return by_input
    copy = x.new_empty(by_input.shape[0], -(-m // run) * run)  # padding past m affects no element of Y
    if not feature_major and x.stride(1) == 1:
        transpose_into(x, copy[:, :m])
    else:
        copy[:, :m].copy_(by_input)
    return copy


def aligned_like(target: Tensor, residual: Tensor) -> Tensor:
    """The residual in the layout of `target`, which has aligned rows and possibly more columns."""
    if residual.shape == target.shape and has_aligned_rows(residual):
        return residual
    copy = torch.empty_like(target)
    copy[:, : residual.shape[1]].copy_(residual)
    return copy


def deliver(target: Tensor, y: Tensor, *, feature_major: bool) -> None:
    """Copy a kernel's output, [N, M rounded up to whole runs], into y: [N, M] if feature_major, else [M, N]."""
    written = target[:, : y.shape[1 if feature_major else 0]]
    if feature_major:
        y.copy_(written)
    else:
        transpose_into(written, y)


def transpose_into(source: Tensor, target: Tensor) -> None:
    """Write source [R, C], with C contiguous, transposed into target [C, R], with R contiguous.

    Without Triton, PyTorch's copy is used, which takes several times as long.
    """
    if not TRITON_IS_INSTALLED:
        target.copy_(source.t())
        return
    from sparsefront_kernels import triton_device

    triton_device.transpose_into(source, target)


def has_aligned_rows(matrix: Tensor) -> bool:
    """Whether rows are contiguous and 16-byte aligned."""
    run = run_length(matrix.dtype)
    return matrix.stride(1) == 1 and matrix.stride(0) % run == 0 and matrix.data_ptr() % RUN_BYTES == 0


def is_loadable(matrix: Tensor) -> bool:
    """Whether TMA can read it: rows are contiguous, do not overlap and are 16-byte aligned."""
    return has_aligned_rows(matrix) and matrix.stride(0) >= matrix.shape[1]


def loadable(matrix: Tensor) -> Tensor:
    """Copy the matrix unless TMA can read it."""
    if is_loadable(matrix):
        return matrix
    return matrix.new_empty(matrix.shape).copy_(matrix)  # clone() may keep any stride for a single row


@dataclass(frozen=True)
class Epilogue:
    """What a CUDA kernel does to sums: Y = activation(sums + bias) + residual.

    Args:
        bias: [N] contiguous, float16, bfloat16 or float32, or None.
        activation: a name of `epilogue.ACTIVATIONS`.
        residual: of Y's shape and dtype, or None.
    """

    bias: Tensor | None = None
    activation: str = "none"
    residual: Tensor | None = None

    @property
    def codes(self) -> tuple[int, int]:
        """The bias's type and the activation, as CUDA sources number them."""
        return 0 if self.bias is None else TYPE_CODES[self.bias.dtype], ACTIVATION_CODES[self.activation]

    @property
    def residual_stride(self) -> int:
        """Elements between rows of the residual; 0 if there is none."""
        return 0 if self.residual is None else self.residual.stride(0)

    def with_residual(self, of: Callable[[Tensor], Tensor]) -> "Epilogue":
        """With another residual, a function of this one if there is one."""
        return self if self.residual is None else replace(self, residual=of(self.residual))


NO_EPILOGUE = Epilogue()


@contextmanager
def by_feature(
    x: Tensor, y: Tensor, epilogue: Epilogue, x_feature_major: bool, y_feature_major: bool
) -> Iterator[tuple[Tensor, Tensor, Epilogue]]:
    """X [K, M], Y [N, M] and the epilogue for a kernel that takes aligned rows of whole runs; what it writes is in y afterwards.

    Other layouts, an M that is no multiple of `run_length` and unaligned rows cost copies.
    """
    by_input = aligned_by_input(x, feature_major=x_feature_major)
    direct = y_feature_major and by_input.shape[1] == y.shape[1]
    target = y if direct else x.new_empty(y.shape[0 if y_feature_major else 1], by_input.shape[1])
    epilogue = epilogue if y_feature_major else epilogue.with_residual(Tensor.t)
    yield by_input, target, epilogue.with_residual(partial(aligned_like, target))
    if not direct:
        deliver(target, y, feature_major=y_feature_major)
