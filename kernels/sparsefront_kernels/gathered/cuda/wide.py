"""Launching the kernel for many rows, ../csrc/gathered_sm90_persistent.cu."""

import ctypes
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from sparsefront_kernels import cuda_library
from sparsefront_kernels.common.epilogue import ACTIVATION_CODES
from sparsefront_kernels.common.launch import num_sms
from sparsefront_kernels.common.wgmma_layout import is_halved
from sparsefront_kernels.gathered.cuda.parameters import BIAS_TYPES, epilogue_arguments
from sparsefront_kernels.gathered.cuda.schedule import schedule_tensors

LIBRARY = "gathered_sm90_persistent"


def launch_wide(
    x: Tensor,
    y: Tensor,
    *,
    panels: Tensor,
    k_blocks: Tensor,
    outputs: Tensor,
    lengths: Sequence[int],
    raster_swizzle: int,
    pdl: bool,
    bias: Tensor | None,
    y_row_major: bool = False,
    activation: str = "none",
    residual: Tensor | None = None,
) -> None:
    """As `launch.launch_gathered_sm90` with a wide launch.

    The sums are rounded to Y's dtype before the activation, and again where a residual is added.
    """
    m = x.shape[1]
    work, begins = schedule_tensors(tuple(lengths), m, num_sms(x.device), raster_swizzle, x.device)
    error = _function()(
        *(tensor.data_ptr() for tensor in (x, panels, k_blocks, work, begins, outputs)),
        *epilogue_arguments(x, y, bias, residual),
        0 if bias is None else BIAS_TYPES[bias.dtype],
        ACTIVATION_CODES[activation],
        int(y_row_major),
        int(x.dtype == torch.bfloat16),
        int(is_halved(panels)),
        m,
        y.shape[0 if y_row_major else 1],
        len(begins) - 1,
        int(pdl),
        torch.cuda.current_stream(x.device).cuda_stream,
    )
    if error:
        raise RuntimeError(f"gathered_sm90_persistent: CUDA error {error} at launch")


@functools.cache
def _function() -> ctypes._CFuncPtr:
    function = cuda_library.load(LIBRARY).sparsefront_gathered_sm90_persistent
    function.argtypes = [ctypes.c_void_p] * 9 + [ctypes.c_longlong] * 3 + [ctypes.c_int] * 9 + [ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function
