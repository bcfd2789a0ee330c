"""Operands of a product: their checks, and rows along M that begin at 16 bytes, as feature-major CUDA kernels take them.

A kernel given a wrong shape reads outside its operands, so that every op checks what it is called with.
"""

import importlib.util

import torch
from torch import Tensor

from sparsefront_kernels.common.epilogue import check_activation

TRITON_IS_INSTALLED = importlib.util.find_spec("triton") is not None


def check_operands(
    x: Tensor, values: Tensor, bias: Tensor | None, *, k: int, n: int, feature_major: bool = False
) -> None:
    """Raise ValueError unless x, the stored values and the bias fit together.

    Args:
        x: [M, K], or [K, M] where feature_major.
        values: the format's values; x must share their dtype and device.
        bias: [N] of any float dtype on the same device, or None.
        k, n: inputs and outputs of the weight.
    """
    wanted = "[K, M]" if feature_major else "[M, K]"
    if x.ndim != 2 or x.shape[0 if feature_major else 1] != k:
        raise ValueError(f"x must be {wanted} with K = {k}, not {list(x.shape)}")
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
    """The tensor, copied where it is not contiguous or begins elsewhere than at a multiple of 16 bytes, as views may."""
    operand = operand.contiguous()
    return operand if operand.data_ptr() % 16 == 0 else operand.clone()


def check_epilogue(y: Tensor, activation: str, residual: Tensor | None) -> None:
    """Raise ValueError unless the activation exists and the residual fits Y.

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
    """Y, not yet written: [M, N], or [N, M] where y_feature_major, in x's dtype and on its device.

    Args:
        x: [M, K], or [K, M] where x_feature_major.
    """
    m = x.shape[1 if x_feature_major else 0]
    return x.new_empty((n, m) if y_feature_major else (m, n))


def bias_for_kernel(bias: Tensor | None) -> Tensor | None:
    """The bias as CUDA kernels read it: contiguous, in a type of at most 32 bits; None where there is none."""
    if bias is None:
        return None
    return (bias.float() if bias.dtype == torch.float64 else bias).contiguous()


RUN_BYTES = 16  # what a thread reads and writes at a time


def run_length(dtype: torch.dtype) -> int:
    """Elements of a run; M must be a multiple of it."""
    return RUN_BYTES // dtype.itemsize


def aligned_by_input(x: Tensor, *, feature_major: bool) -> Tensor:
    """X, [K, M] where feature_major and else [M, K], as [K, M rounded up to whole runs] with aligned rows.

    X itself where it is like that, else a copy, in which what lies past M is not set.
    """
    m, run = x.shape[1 if feature_major else 0], run_length(x.dtype)
    by_input = x if feature_major else x.t()
    if m % run == 0 and has_aligned_rows(by_input):
        return by_input
    copy = x.new_empty(by_input.shape[0], -(-m // run) * run)  # what lies past m reaches no element of Y
    if not feature_major and x.stride(1) == 1:
        transpose_into(x, copy[:, :m])
    else:
        copy[:, :m].copy_(by_input)
    return copy


def aligned_like(target: Tensor, residual: Tensor) -> Tensor:
    """The residual as a kernel reads it beside `target`, which has aligned rows and maybe more columns."""
    if residual.shape == target.shape and has_aligned_rows(residual):
        return residual
    copy = torch.empty_like(target)
    copy[:, : residual.shape[1]].copy_(residual)
    return copy


def deliver(target: Tensor, y: Tensor, *, feature_major: bool) -> None:
    """Copy what a kernel wrote, [N, M rounded up to whole runs], into y: [N, M] where feature_major and else [M, N]."""
    written = target[:, : y.shape[1 if feature_major else 0]]
    if feature_major:
        y.copy_(written)
    else:
        transpose_into(written, y)


def transpose_into(source: Tensor, target: Tensor) -> None:
    """Write source [R, C], with C contiguous, transposed into target [C, R], with R contiguous.

    Without Triton by PyTorch's copy, which takes several times as long.
    """
    if not TRITON_IS_INSTALLED:
        target.copy_(source.t())
        return
    from sparsefront_kernels.gathered import triton_spmm

    triton_spmm.transpose_into(source, target)


def has_aligned_rows(matrix: Tensor) -> bool:
    """Whether rows are contiguous and each begins at 16 bytes."""
    run = run_length(matrix.dtype)
    return matrix.stride(1) == 1 and matrix.stride(0) % run == 0 and matrix.data_ptr() % RUN_BYTES == 0
