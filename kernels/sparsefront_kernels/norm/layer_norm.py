"""LayerNorm of columns as PyTorch ops, by the faster kernel as measured: Triton or CUDA (compute capability 9.0).

In this order: the ops; choosing and running a launch; the CUDA kernel (`csrc/layer_norm_columns.cu`); tuning. The Triton
device code is in `triton_norm.py`.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefront_kernels.cuda.launch import TYPE_CODES, address, argument_fields, launch_with
from sparsefront_kernels.custom_op import custom_op
from sparsefront_kernels.device_support import unloadable_reason
from sparsefront_kernels.norm.reference import add_layer_norm_columns_reference, layer_norm_columns_reference
from sparsefront_kernels.operands import has_aligned_rows
from sparsefront_kernels.tuning import TunedLaunches

KERNEL = LIBRARY = "layer_norm_columns"
VERSION = 1  # increment when a change of a kernel invalidates measurements


@custom_op("layer_norm_columns")
def layer_norm_columns(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Normalize each column of x to mean 0 and variance 1, times weight, plus bias; computed in float32.

    Args:
        x: [d, M], float16, bfloat16 or float32, any strides: may be a transposed view of row-major [M, d].
        weight, bias: [d] of any float dtype, or None.
    Returns:
        [d, M], contiguous, in x's dtype.
    Raises:
        ValueError: incompatible operands.
    """
    _check(x, weight=weight, bias=bias)
    y = _empty(x)
    if y.numel() == 0:
        return y
    _launch(x, y, eps, weight=weight, bias=bias)
    return y


@layer_norm_columns.register_fake
def _(x, weight, bias, eps):
    return _empty(x)


@custom_op("add_layer_norm_columns")
def add_layer_norm_columns(
    x: Tensor,
    x_bias: Tensor | None,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    keep_sums: bool,
) -> tuple[Tensor, Tensor]:
    """LayerNorm of the columns of x + x_bias + residual, with the sum fused into the same pass over memory.

    Args:
        x: as in `layer_norm_columns`.
        x_bias, weight, bias: [d] of any float dtype, or None.
        residual: [d, M] in x's dtype, any strides.
        keep_sums: whether to return the sum too.
    Returns:
        the norm and the sum, [d, M], contiguous, in x's dtype; without keep_sums the sum is empty, [0, M].
    Raises:
        ValueError: incompatible operands.
    """
    _check(x, x_bias=x_bias, weight=weight, bias=bias)
    if residual.shape != x.shape or residual.dtype != x.dtype or residual.device != x.device:
        raise ValueError(
            f"residual must be {x.dtype} {list(x.shape)} on {x.device}, "
            f"not {residual.dtype} {list(residual.shape)} on {residual.device}"
        )
    y, sums = _empty(x), _empty_sums(x, keep_sums)
    if y.numel() == 0:
        return y, sums
    added = {"x_bias": x_bias, "residual": residual, "sums": sums if keep_sums else None}
    _launch(x, y, eps, weight=weight, bias=bias, **added)
    return y, sums


@add_layer_norm_columns.register_fake
def _(x, x_bias, residual, weight, bias, eps, keep_sums):
    return _empty(x), _empty_sums(x, keep_sums)


def _launch(x: Tensor, y: Tensor, eps: float, **operands: Tensor | None) -> None:
    """Write y, and sums if given, with the launch in use for this norm."""
    run(launch_in_use(x, **operands), x, y, eps=eps, **operands)


def _keep(ctx, inputs: tuple, output: Tensor) -> None:
    x, weight, bias, ctx.eps = inputs
    ctx.save_for_backward(x, weight, bias)


def _gradients(ctx, dy: Tensor) -> tuple[Tensor | None, ...]:
    saved = _leaves(ctx)
    with torch.enable_grad():
        y = layer_norm_columns_reference(*saved, ctx.eps)
    return *_through_reference([y], saved, [dy]), None


def _keep_with_residual(ctx, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    x, x_bias, residual, weight, bias, ctx.eps, ctx.keep_sums = inputs
    ctx.save_for_backward(x, x_bias, residual, weight, bias)


def _gradients_with_residual(ctx, dy: Tensor, dsums: Tensor) -> tuple[Tensor | None, ...]:
    saved = _leaves(ctx)
    with torch.enable_grad():
        y, sums = add_layer_norm_columns_reference(*saved, ctx.eps)
    outputs_and_gradients = ([y, sums], [dy, dsums]) if ctx.keep_sums else ([y], [dy])
    return *_through_reference(outputs_and_gradients[0], saved, outputs_and_gradients[1]), None, None


def _leaves(ctx) -> list[Tensor | None]:
    return [part if part is None else part.detach().requires_grad_() for part in ctx.saved_tensors]


def _through_reference(
    outputs: list[Tensor], inputs: list[Tensor | None], gradients: list[Tensor]
) -> list[Tensor | None]:
    """Gradients by recomputing with the reference: correct, not fast."""
    present = [part for part in inputs if part is not None]
    input_gradients = iter(torch.autograd.grad(outputs, present, gradients))
    return [None if part is None else next(input_gradients) for part in inputs]


layer_norm_columns.register_autograd(_gradients, setup_context=_keep)
add_layer_norm_columns.register_autograd(_gradients_with_residual, setup_context=_keep_with_residual)


def _empty(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _empty_sums(x: Tensor, keep_sums: bool) -> Tensor:
    return x.new_empty(x.shape if keep_sums else (0, x.shape[1]))


def _check(x: Tensor, **parts: Tensor | None) -> None:
    if x.ndim != 2 or x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise ValueError(f"x must be float16, bfloat16 or float32 [d, M], not {x.dtype} {list(x.shape)}")
    for name, part in parts.items():
        if part is not None and (part.shape != x.shape[:1] or not part.is_floating_point()):
            raise ValueError(f"{name} must be a float [{x.shape[0]}], not {part.dtype} {list(part.shape)}")
        if part is not None and part.device != x.device:
            raise ValueError(f"{name} is on {part.device}, x on {x.device}")


@dataclass(frozen=True)
class NormLaunch:
    """A kernel, and the CUDA kernel's tiling.

    Args:
        kernel: "triton", which supports every norm, or "cuda".
        cluster: blocks that share the features of a tile.
        columns: per tile.
        threads: per block.
    """

    kernel: str = "triton"
    cluster: int = 0
    columns: int = 0
    threads: int = 0

    def __str__(self) -> str:
        if self.kernel == "triton":
            return self.kernel
        return f"{self.kernel}_cluster{self.cluster}_columns{self.columns}_threads{self.threads}"


TRITON = NormLaunch()
# Tiling -> the most features that its threads hold, eight rows each. Chosen by counting, not by timing. With many columns all
# SMs are busy with any tiling: one block per SM without an exchange between blocks, or two that read 128 bytes of a row at a
# time. With few columns (32 tiles at M = 1024) a cluster of four gives nearly every SM of an H200 a block.
CUDA_DIVISIONS = {
    NormLaunch("cuda", cluster=1, columns=32, threads=512): 1024,
    NormLaunch("cuda", cluster=2, columns=64, threads=512): 1024,
    NormLaunch("cuda", cluster=4, columns=32, threads=256): 2048,
}


_EIGHT = 8  # columns per thread, read in one copy


def unsupported_reason(launch: NormLaunch, x: Tensor, **operands: Tensor | None) -> str | None:
    """Why this launch does not support these operands of the ops on their device, or None; Triton supports all.

    Args:
        operands: weight, bias, x_bias, residual and sums; may be None or missing.
    """
    if launch.kernel == TRITON.kernel:
        return None
    (d, m), residual = x.shape, operands.get("residual")
    if x.dtype not in (torch.float16, torch.bfloat16):
        return f"takes float16 or bfloat16, not {x.dtype}"
    most_features = CUDA_DIVISIONS.get(launch)
    if most_features is None:
        return f"has no division {launch}"
    if d > most_features:
        return f"takes up to {most_features} features, not {d}"
    if m == 0 or m % _EIGHT:
        return f"takes columns in eights, not {m}"
    if residual is None and any(operands.get(name) is not None for name in ("x_bias", "sums")):
        return "adds x_bias and keeps sums only where there is a residual"
    for name in ("weight", "bias", "x_bias"):
        vector = operands.get(name)
        if vector is not None and vector.dtype not in TYPE_CODES:
            return f"takes no {name} of {vector.dtype}"
    for name, matrix in (("x", x), ("residual", residual)):
        if matrix is not None and not has_aligned_rows(matrix):
            return f"needs a feature-major {name} whose rows begin at multiples of 16 bytes"
    return unloadable_reason(x.device, LIBRARY)


def launch_in_use(x: Tensor, **operands: Tensor | None) -> NormLaunch:
    """The launch measured fastest for this norm if it supports these operands, else Triton's."""
    problem = NormProblem.of(x, operands.get("residual"), operands.get("sums") is not None)
    launch = LAUNCHES.launch_for(problem, x.device)
    return launch if unsupported_reason(launch, x, **operands) is None else TRITON


def run(
    launch: NormLaunch,
    x: Tensor,
    y: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    **added: Tensor | None,
) -> None:
    """Write y [d, M], and x + x_bias + residual to sums; operands as in the ops.

    Args:
        launch: must support the operands (`unsupported_reason`).
        added: x_bias, residual and sums; may be None or missing.
    Raises:
        RuntimeError: the launch failed.
    """
    with torch.cuda.device_of(x):
        if launch.kernel == TRITON.kernel:
            # imported late: Triton may be missing where only the reference runs
            from sparsefront_kernels.norm.triton_norm import launch_layer_norm_columns

            launch_layer_norm_columns(x, y, weight, bias, eps, **added)
        else:
            launch_cuda_norm(launch, x, y, weight, bias, eps, **added)


_POINTERS = ("x", "residual", "x_bias", "weight", "bias", "sums", "y")
_STRIDES = ("x_stride", "residual_stride")
_NUMBERS = ("x_bias_type", "weight_type", "bias_type", "is_bfloat16", "d", "m", "cluster", "columns", "threads", "pdl")


class Arguments(ctypes.Structure):
    """`Arguments` of the CUDA source."""

    _fields_ = [*argument_fields(_POINTERS, _STRIDES, _NUMBERS), ("eps", ctypes.c_float)]


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
    """Like `launch_layer_norm_columns`, for operands whose `unsupported_reason` is None.

    Raises:
        RuntimeError: the launch failed, or the library does not have this tiling.
    """
    vectors = {
        name: None if vector is None else vector.contiguous()
        for name, vector in {"x_bias": x_bias, "weight": weight, "bias": bias}.items()
    }
    tensors = {"x": x, "residual": residual, "sums": sums, "y": y, **vectors}
    arguments = Arguments(
        **{name: address(tensor) for name, tensor in tensors.items()},
        **{f"{name}_type": 0 if vector is None else TYPE_CODES[vector.dtype] for name, vector in vectors.items()},
        **{name: getattr(launch, name) for name in ("cluster", "columns", "threads")},
        x_stride=x.stride(0),
        residual_stride=0 if residual is None else residual.stride(0),
        is_bfloat16=int(x.dtype == torch.bfloat16),
        d=x.shape[0],
        m=x.shape[1],
        pdl=1,
        eps=eps,
    )
    launch_with(LIBRARY, arguments, x.device)


@dataclass(frozen=True)
class NormProblem:
    """The properties of a norm that determine the speed of its kernels.

    Args:
        d, m: features and columns.
        dtype: of the columns.
        residual: whether a residual is added first.
        keep_sums: whether the sum is written too.
        x_layout, residual_layout: "feature_major" if rows are contiguous, else "row_major"; "" without a residual.
    """

    d: int
    m: int
    dtype: torch.dtype
    residual: bool = False
    keep_sums: bool = False
    x_layout: str = "feature_major"
    residual_layout: str = ""

    @classmethod
    def of(cls, x: Tensor, residual: Tensor | None, keep_sums: bool) -> "NormProblem":
        """Describe the operands of `layer_norm_columns` or `add_layer_norm_columns`."""
        of_residual = "" if residual is None else _layout(residual)
        return cls(*x.shape, x.dtype, residual is not None, keep_sums, _layout(x), of_residual)

    @property
    def shape(self) -> str:
        added = f"+{self.residual_layout}" * self.residual + " sums" * self.keep_sums
        return f"{str(self.dtype).removeprefix('torch.')} {self.x_layout}{added} d={self.d} m="

    @property
    def amount(self) -> float:
        return self.m

    def __str__(self) -> str:
        """For example `float16 feature_major+feature_major sums d=1024 m=12288`."""
        return f"{self.shape}{self.m}"


def candidates(problem: NormProblem, num_sms: int) -> Sequence[NormLaunch]:
    """All launches that can hold a column, Triton's first."""
    return [TRITON, *(launch for launch, most_features in CUDA_DIVISIONS.items() if problem.d <= most_features)]


LAUNCHES = TunedLaunches(
    KERNEL,
    VERSION,
    NormLaunch,
    describe=lambda described, problem: described,  # a norm has no packed weight
    worth_timing=candidates,
)


def _layout(matrix: Tensor) -> str:
    return "feature_major" if matrix.stride(1) == 1 else "row_major"
