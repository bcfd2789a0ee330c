"""Calling a kernel of which every lane owns rows of X."""

import ctypes

import torch
from torch import Tensor

from sparsefront_kernels.common.lane_product import TYPE_CODES
from sparsefront_kernels.common.launch import DEPENDENT_LAUNCH, library_function
from sparsefront_kernels.common.slab_launch import SlabLaunch, SlabProblem, shared_bytes

_POINTERS = ("x", "values", "places", "pointers", "order", "bias", "y")
_STRIDES = ("row_stride", "input_stride")
_NUMBERS = ("vectors", "type", "bias_type", "m", "k", "groups", "block", "quads", "slab_count")
_LAUNCH = ("sets", "warps", "splits", "slabs", "lane_units", "shared_bytes", "dependent_launch")


class Arguments(ctypes.Structure):
    """`slabs::Arguments` of cuda/slab_launch.cuh."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_longlong) for name in _STRIDES),
        *((name, ctypes.c_int) for name in (*_NUMBERS, *_LAUNCH)),
    ]


def launch_slab_product(
    kernel: str,
    x: Tensor,
    y: Tensor,
    *,
    values: Tensor,
    places: Tensor,
    pointers: Tensor,
    order: Tensor | None,
    bias: Tensor | None,
    problem: SlabProblem,
    launch: SlabLaunch,
) -> None:
    """Write Yᵀ = W · Xᵀ + bias on the current stream of x's device, which must be current.

    Args:
        kernel: named like its library.
        x: [K, M], any strides.
        y: [N, M] contiguous; every element is written.
        values, places, pointers, order: those of `SlabLists`.
        bias: [N] contiguous, float16, bfloat16 or float32, or None.
    Raises:
        RuntimeError: the launch failed.
    """
    tensors = dict(x=x, values=values, places=places, pointers=pointers, order=order, bias=bias, y=y)
    arguments = Arguments(
        **{name: None if tensor is None else tensor.data_ptr() for name, tensor in tensors.items()},
        row_stride=x.stride(1),
        input_stride=x.stride(0),
        vectors=vectors_of(x),
        type=TYPE_CODES[x.dtype],
        bias_type=0 if bias is None else TYPE_CODES[bias.dtype],
        m=problem.m,
        k=problem.k,
        groups=problem.groups,
        block=problem.block,
        quads=problem.quads,
        slab_count=pointers.shape[1] - 1,
        sets=launch.sets,
        warps=launch.warps,
        splits=launch.splits,
        slabs=launch.slabs,
        lane_units=launch.lane_units,
        shared_bytes=shared_bytes(problem, launch),
        dependent_launch=DEPENDENT_LAUNCH.index(launch.dependent_launch),
    )
    error = library_function(kernel, Arguments)(
        ctypes.byref(arguments), torch.cuda.current_stream(x.device).cuda_stream
    )
    if error:
        raise RuntimeError(f"{kernel}: CUDA error {error} at launch ({launch})")


def vectors_of(x: Tensor) -> int:
    """What of X [K, M] lies side by side in whole aligned vectors of 16 bytes: 1 an input's rows, 2 a row's inputs, 0 neither."""
    unit = 16 // x.element_size()
    for code, along, across in ((1, 1, 0), (2, 0, 1)):
        whole = x.shape[along] % unit == 0 and x.stride(across) % unit == 0
        if x.stride(along) == 1 and whole and x.data_ptr() % 16 == 0:
            return code
    return 0
