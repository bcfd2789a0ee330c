"""Calling a kernel of which every lane owns rows of X."""

import ctypes

import torch
from torch import Tensor

from sparsefront_kernels.common.dependent_launch import DEPENDENT_LAUNCH
from sparsefront_kernels.common.lane_product import TYPE_CODES
from sparsefront_kernels.common.library_function import library_function
from sparsefront_kernels.common.slab_launch import SlabLaunch, SlabProblem

_POINTERS = ("x", "values", "places", "pointers", "order", "bias", "y")
_STRIDES = ("row_stride", "input_stride")
_NUMBERS = ("vectors", "type", "bias_type", "m", "k", "groups", "block", "slab_count")
_LAUNCH = ("groups_of_warp", "warps", "stages", "dependent_launch")


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
        vectors=int(in_units(x)),
        type=TYPE_CODES[x.dtype],
        bias_type=0 if bias is None else TYPE_CODES[bias.dtype],
        m=problem.m,
        k=problem.k,
        groups=problem.groups,
        block=problem.block,
        slab_count=pointers.shape[0],
        groups_of_warp=launch.groups,
        warps=launch.warps,
        stages=launch.stages,
        dependent_launch=DEPENDENT_LAUNCH.index(launch.dependent_launch),
    )
    error = library_function(kernel, Arguments)(
        ctypes.byref(arguments), torch.cuda.current_stream(x.device).cuda_stream
    )
    if error:
        raise RuntimeError(f"{kernel}: CUDA error {error} at launch ({launch})")


def in_units(x: Tensor) -> bool:
    """Whether the rows [K, M] of each input lie side by side in aligned units of 16 bytes."""
    unit = 16 // x.element_size()
    return x.stride(1) == 1 and x.stride(0) % unit == 0 and x.shape[1] % unit == 0 and x.data_ptr() % 16 == 0
