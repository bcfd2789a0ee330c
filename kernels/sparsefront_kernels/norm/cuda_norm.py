"""Launching the Hopper kernel, csrc/layer_norm_columns.cu: columns in 16 bits."""

import ctypes
import functools

import torch
from torch import Tensor

from sparsefront_kernels import cuda_library
from sparsefront_kernels.common.lane_product import TYPE_CODES
from sparsefront_kernels.common.library_function import library_function

LIBRARY = "layer_norm_columns"
MOST_FEATURES = 8192  # what the registers of a cluster hold of a column
_EIGHT = 8  # columns of a thread, which come in one copy

_POINTERS = ("x", "residual", "x_bias", "weight", "bias", "sums", "y")
_STRIDES = ("x_stride", "residual_stride")
_NUMBERS = ("x_bias_type", "weight_type", "bias_type", "is_bfloat16", "d", "m", "pdl")


class Arguments(ctypes.Structure):
    """`Arguments` of the CUDA source."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_longlong) for name in _STRIDES),
        *((name, ctypes.c_int) for name in _NUMBERS),
        ("eps", ctypes.c_float),
    ]


def is_supported(
    x: Tensor,
    *,
    weight: Tensor | None,
    bias: Tensor | None,
    x_bias: Tensor | None,
    residual: Tensor | None,
    sums: Tensor | None,
) -> bool:
    """Whether the kernel takes these operands of the ops, on their device; Triton's takes all."""
    d, m = x.shape
    if x.dtype not in (torch.float16, torch.bfloat16) or d > MOST_FEATURES or m % _EIGHT:
        return False
    if residual is None and (x_bias is not None or sums is not None):
        return False
    if any(vector is not None and vector.dtype not in TYPE_CODES for vector in (weight, bias, x_bias)):
        return False
    matrices = [x] if residual is None else [x, residual]
    return all(map(_comes_in_eights, matrices)) and _has_kernel(x.device)


def _comes_in_eights(matrix: Tensor) -> bool:
    return matrix.stride(1) == 1 and matrix.stride(0) % _EIGHT == 0 and matrix.data_ptr() % 16 == 0


@functools.cache
def _has_kernel(device: torch.device) -> bool:
    return (
        device.type == "cuda"
        and torch.cuda.get_device_capability(device) == (9, 0)
        and cuda_library.unavailable_reason(LIBRARY) is None
    )


def launch_cuda_norm(
    x: Tensor,
    y: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    x_bias: Tensor | None = None,
    residual: Tensor | None = None,
    sums: Tensor | None = None,
) -> None:
    """As `launch_layer_norm_columns`, for operands that `is_supported`.

    Raises:
        RuntimeError: the launch failed.
    """
    vectors = {
        name: None if vector is None else vector.contiguous()
        for name, vector in {"x_bias": x_bias, "weight": weight, "bias": bias}.items()
    }
    tensors = {"x": x, "residual": residual, "sums": sums, "y": y, **vectors}
    d, m = x.shape
    arguments = Arguments(
        **{name: None if tensor is None else tensor.data_ptr() for name, tensor in tensors.items()},
        **{f"{name}_type": 0 if vector is None else TYPE_CODES[vector.dtype] for name, vector in vectors.items()},
        x_stride=x.stride(0),
        residual_stride=0 if residual is None else residual.stride(0),
        is_bfloat16=int(x.dtype == torch.bfloat16),
        d=d,
        m=m,
        pdl=1,
        eps=eps,
    )
    error = library_function(LIBRARY, Arguments)(
        ctypes.byref(arguments), torch.cuda.current_stream(x.device).cuda_stream
    )
    if error:
        raise RuntimeError(f"{LIBRARY}: CUDA error {error} at launch")
