"""Calling a kernel of which every lane owns an output."""

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from sparsefront_kernels.common.lane_launch import DEPENDENT_LAUNCH, LaneLaunch, LaneProblem, segments

ARGUMENTS = (
    [ctypes.c_void_p] * 6 + [ctypes.c_longlong] * 2 + [ctypes.c_int] * 18 + [ctypes.c_void_p]
)  # of the libraries' functions
TYPE_CODES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}


def launch_lane_product(
    function: Callable[..., int],
    x: Tensor,
    y: Tensor,
    *,
    values: Tensor,
    places: Tensor,
    order: Tensor | None,
    bias: Tensor | None,
    problem: LaneProblem,
    launch: LaneLaunch,
) -> None:
    """Write Y = X · Wᵀ + bias on the current stream of x's device, which must be current.

    Args:
        function: of the library, with `ARGUMENTS`.
        x: [M, K], 1 to 64 rows, any strides.
        y: [M, N] contiguous; every element is written.
        values, places: those of `LaneGranules`.
        order: int32 [K]; the kernel's input i is X's input order[i]; None: i.
        bias: [N] contiguous, float16, bfloat16 or float32, or None.
    Raises:
        RuntimeError: the launch failed.
    """
    fitting = segments(problem, launch)
    assert fitting is not None, "the op's entry has checked that some launch is possible"
    pointers = (x, order, values, places, bias, y)
    error = function(
        *(None if tensor is None else tensor.data_ptr() for tensor in pointers),
        x.stride(0),
        x.stride(1),
        int(order is None and _in_vectors(x)),
        TYPE_CODES[x.dtype],
        0 if bias is None else TYPE_CODES[bias.dtype],
        problem.m,
        problem.n,
        problem.k,
        problem.kept,
        problem.group_size,
        problem.bits,
        values.shape[0],
        values.shape[1],
        launch.strips,
        launch.shares,
        launch.splits,
        launch.rows,
        fitting.granules,
        fitting.shared_bytes,
        DEPENDENT_LAUNCH.index(launch.dependent_launch),
        torch.cuda.current_stream(x.device).cuda_stream,
    )
    if error:
        raise RuntimeError(f"CUDA error {error} at launch of {function.__name__} ({launch})")


def _in_vectors(x: Tensor) -> bool:
    """Whether rows lie along K in aligned vectors of 16 bytes."""
    whole = x.stride(0) * x.element_size() % 16 == 0 or x.shape[0] == 1
    return x.stride(1) == 1 and whole and x.data_ptr() % 16 == 0
