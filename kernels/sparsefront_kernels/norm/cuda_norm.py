"""Launching the Hopper kernel, csrc/layer_norm_columns.cu: columns in 16 bits."""

import ctypes
import functools
import logging

import torch
from torch import Tensor

from sparsefront_kernels import cuda_library
from sparsefront_kernels.common.launch import TYPE_CODES, library_function
from sparsefront_kernels.norm.launch import CUDA_DIVISIONS, NormLaunch

log = logging.getLogger(__name__)
LIBRARY = "layer_norm_columns"
_EIGHT = 8  # columns of a thread, which come in one copy

_POINTERS = ("x", "residual", "x_bias", "weight", "bias", "sums", "y")
_STRIDES = ("x_stride", "residual_stride")
_NUMBERS = ("x_bias_type", "weight_type", "bias_type", "is_bfloat16", "d", "m", "cluster", "columns", "threads", "pdl")


class Arguments(ctypes.Structure):
    """`Arguments` of the CUDA source."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_longlong) for name in _STRIDES),
        *((name, ctypes.c_int) for name in _NUMBERS),
        ("eps", ctypes.c_float),
    ]


def unsupported_reason(
    launch: NormLaunch,
    x: Tensor,
    *,
    weight: Tensor | None,
    bias: Tensor | None,
    x_bias: Tensor | None,
    residual: Tensor | None,
    sums: Tensor | None,
) -> str | None:
    """Why the kernel cannot take these operands of the ops in this division, on their device, or None."""
    d, m = x.shape
    if x.dtype not in (torch.float16, torch.bfloat16):
        return f"takes float16 or bfloat16, not {x.dtype}"
    if (most_features := CUDA_DIVISIONS.get(launch)) is None:
        return f"has no division {launch}"
    if d > most_features:
        return f"takes up to {most_features} features, not {d}"
    if m == 0 or m % _EIGHT:
        return f"takes columns in eights, not {m}"
    if residual is None and (x_bias is not None or sums is not None):
        return "adds x_bias and keeps sums only where there is a residual"
    for name, vector in (("weight", weight), ("bias", bias), ("x_bias", x_bias)):
        if vector is not None and vector.dtype not in TYPE_CODES:
            return f"takes no {name} of {vector.dtype}"
    for name, matrix in (("x", x), ("residual", residual)):
        if matrix is not None and not _comes_in_eights(matrix):
            return f"needs a feature-major {name} whose rows begin at multiples of 16 bytes"
    return _device_reason(x.device)


def _comes_in_eights(matrix: Tensor) -> bool:
    return matrix.stride(1) == 1 and matrix.stride(0) % _EIGHT == 0 and matrix.data_ptr() % 16 == 0


@functools.cache
def _device_reason(device: torch.device) -> str | None:
    """Why the device or its compiler has no such kernel; built here where need be, so that no call fails for that. Said once."""
    if device.type != "cuda":
        return f"needs a CUDA device, not {device.type}"
    if (capability := torch.cuda.get_device_capability(device)) != (9, 0):
        return "is written for compute capability 9.0, this GPU has {}.{}".format(*capability)
    if (reason := cuda_library.unavailable_reason(LIBRARY)) is not None:
        return reason
    try:
        cuda_library.load(LIBRARY)
    except (cuda_library.BuildFailed, OSError) as error:
        reason = str(error).splitlines()[0]
        log.warning("the CUDA library %s is not used, Triton's kernel runs instead: %s", LIBRARY, reason)
        return reason
    return None


def launch_cuda_norm(
    launch: NormLaunch,
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
    """As `launch_layer_norm_columns`, for operands of which `unsupported_reason` is None.

    Raises:
        RuntimeError: the launch failed, or the library has no such division.
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
        cluster=launch.cluster,
        columns=launch.columns,
        threads=launch.threads,
        pdl=1,
        eps=eps,
    )
    error = library_function(LIBRARY, Arguments)(
        ctypes.byref(arguments), torch.cuda.current_stream(x.device).cuda_stream
    )
    if error:
        raise RuntimeError(f"{LIBRARY}: CUDA error {error} at launch")
