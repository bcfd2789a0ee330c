"""Calling a kernel of which every lane owns an output."""

import ctypes

import torch
from torch import Tensor

from sparsefront_kernels.common.lane_launch import LaneLaunch, LaneProblem, segments
from sparsefront_kernels.common.launch import DEPENDENT_LAUNCH, library_function

TYPE_CODES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}
_POINTERS = ("x", "order", "values", "places", "bias", "y")
_STRIDES = ("row_stride", "input_stride")
_NUMBERS = ("vectors", "type", "bias_type", "m", "n", "k", "kept", "group_size", "bits", "block", "strips", "chunks")
_LAUNCH = ("block_strips", "shares", "splits", "rows", "segment", "shared_bytes", "dependent_launch", "stages")


class Arguments(ctypes.Structure):
    """`lanes::Arguments` of cuda/lane_launch.cuh."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_longlong) for name in _STRIDES),
        *((name, ctypes.c_int) for name in (*_NUMBERS, *_LAUNCH)),
    ]


def launch_lane_product(
    kernel: str,
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
        kernel: named like its library.
        x: [M, K], 1 to 64 rows, any strides.
        y: [M, N] contiguous; every element is written.
        values, places: those of `LaneChunks`.
        order: int32 [K]; the kernel's input i is X's input order[i]; None: i.
        bias: [N] contiguous, float16, bfloat16 or float32, or None.
    Raises:
        RuntimeError: the launch failed.
    """
    fitting = segments(problem, launch)
    assert fitting is not None, "the op's entry has checked that some launch is possible"
    tensors = dict(x=x, order=order, values=values, places=places, bias=bias, y=y)
    arguments = Arguments(
        **{name: None if tensor is None else tensor.data_ptr() for name, tensor in tensors.items()},
        row_stride=x.stride(0),
        input_stride=x.stride(1),
        vectors=int(order is None and _in_vectors(x)),
        type=TYPE_CODES[x.dtype],
        bias_type=0 if bias is None else TYPE_CODES[bias.dtype],
        m=problem.m,
        n=problem.n,
        k=problem.k,
        kept=problem.kept,
        group_size=problem.group_size,
        bits=problem.bits,
        block=problem.block,
        strips=values.shape[0],
        chunks=values.shape[1],
        block_strips=launch.strips,
        shares=launch.shares,
        splits=launch.splits,
        rows=launch.rows,
        segment=fitting.chunks,
        shared_bytes=fitting.shared_bytes,
        dependent_launch=DEPENDENT_LAUNCH.index(launch.dependent_launch),
        stages=launch.stages,
    )
    error = library_function(kernel, Arguments)(
        ctypes.byref(arguments), torch.cuda.current_stream(x.device).cuda_stream
    )
    if error:
        raise RuntimeError(f"{kernel}: CUDA error {error} at launch ({launch})")


def _in_vectors(x: Tensor) -> bool:
    """Whether rows lie along K in aligned vectors of 16 bytes."""
    whole = x.stride(0) * x.element_size() % 16 == 0 or x.shape[0] == 1
    return x.stride(1) == 1 and whole and x.data_ptr() % 16 == 0
