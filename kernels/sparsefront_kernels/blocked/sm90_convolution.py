"""Convolution with `blocked_sm90`: TMA reads images [B, H, W, C] as rows of X (im2col mode)."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from sparsefront_kernels.blocked.sm90 import LAUNCHES, BlockedProblem, launch_blocked_sm90, residual_operand
from sparsefront_kernels.blocked.sm90_packing import K_BLOCK, BlockedSm90Weight
from sparsefront_kernels.custom_op import custom_op
from sparsefront_kernels.operands import RUN_BYTES, Epilogue, bias_for_kernel, check_epilogue
from sparsefront_kernels.problem import Convolution, Convolving

# Limits of a TMA im2col descriptor: signed bytes for the filter's bounding box, unsigned ones for its offsets.
_FARTHEST, _LARGEST_STRIDE = 127, 8

_SIZES = ("n", "h", "w", "c")
_PAIRS = ("filter", "stride", "padding", "dilation", "out")  # vertical, then horizontal


class Images(ctypes.Structure):
    """`Images` of cuda/tensor_map.cuh: the input of a convolution."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in (*_SIZES, *(f"{pair}_{side}" for pair in _PAIRS for side in "hw"))),
    ]

    @classmethod
    def of(cls, x: Tensor, convolution: Convolution) -> "Images":
        """From images [B, H, W, C], which must stay alive until the kernel is launched."""
        pairs = (
            convolution.kernel_size,
            convolution.stride,
            convolution.padding,
            convolution.dilation,
            convolution.output_size(x.shape[1], x.shape[2]),
        )
        return cls(x.data_ptr(), *x.shape, *(number for pair in pairs for number in pair))


@custom_op("blocked_conv2d")
def blocked_conv2d(
    x: Tensor,
    panels: Tensor,
    k_blocks: Tensor,
    outputs: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    lengths: Sequence[int],
    n: int,
    k: int,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    activation: str,
    relu_last: bool,
) -> Tensor:
    """A convolution by a `BlockedSm90Weight` whose inputs are ordered (kh, kw, C).

    Args:
        x: [B, H, W, C] contiguous, float16 or bfloat16, 16-byte aligned; C a multiple of 64.
        residual: of the result's shape and dtype, contiguous, or None.
        activation: applied before adding the residual, a name of `epilogue.ACTIVATIONS`.
        relu_last: apply a ReLU after adding the residual, which is then required.
    Returns:
        [B, H', W', N], contiguous; accumulated in float32.
    Raises:
        ValueError: incompatible operands.
    """
    convolution = Convolution(*(tuple(part) for part in (kernel_size, stride, padding, dilation)))
    if x.ndim != 4 or x.dtype != panels.dtype or x.shape[3] * kernel_size[0] * kernel_size[1] != k:
        raise ValueError(
            f"images must be {panels.dtype} [B, H, W, {k // (kernel_size[0] * kernel_size[1])}], not {x.dtype} {list(x.shape)}"
        )
    y = _empty(x, n, convolution)
    check_epilogue(y, activation, residual)
    if relu_last and residual is None:
        raise ValueError("relu_last is for sums with a residual; without one there is activation='relu'")
    if y.numel() == 0:
        return y
    rows = y.view(-1, n)
    epilogue = Epilogue(bias_for_kernel(bias), activation, None if residual is None else residual.reshape(-1, n))
    packed = BlockedSm90Weight(n, k, K_BLOCK, panels, k_blocks, outputs, tuple(lengths))
    problem = BlockedProblem.of(packed, len(rows))
    with torch.cuda.device_of(x):
        launch_blocked_sm90(
            x.view(-1, x.shape[3]),
            rows,
            packed,
            epilogue.with_residual(residual_operand),
            m=len(rows),
            launch=LAUNCHES.launch_for(problem, x.device),
            quick_schedule=not LAUNCHES.timed_alike(problem, x.device),
            x_feature_major=False,
            y_feature_major=False,
            relu_last=relu_last,
            images=Images.of(x, convolution),
        )
    return y


@blocked_conv2d.register_fake
def _(
    x,
    panels,
    k_blocks,
    outputs,
    bias,
    residual,
    lengths,
    n,
    k,
    kernel_size,
    stride,
    padding,
    dilation,
    activation,
    relu_last,
):
    return _empty(x, n, Convolution(*(tuple(part) for part in (kernel_size, stride, padding, dilation))))


def _empty(x: Tensor, n: int, convolution: Convolution) -> Tensor:
    return x.new_empty(x.shape[0], *convolution.output_size(x.shape[1], x.shape[2]), n)


def _run(
    x: Tensor,
    packed: BlockedSm90Weight,
    bias: Tensor | None,
    convolution: Convolution,
    *,
    activation: str = "none",
    residual: Tensor | None = None,
    relu_last: bool = False,
) -> Tensor:
    return blocked_conv2d(
        x,
        packed.panels,
        packed.k_blocks,
        packed.outputs,
        bias,
        residual,
        packed.lengths,
        packed.n,
        packed.k,
        convolution.kernel_size,
        convolution.stride,
        convolution.padding,
        convolution.dilation,
        activation,
        relu_last,
    )


def _unsupported(packed: BlockedSm90Weight, x: Tensor, convolution: Convolution) -> str | None:
    if packed.box != K_BLOCK or x.shape[3] % K_BLOCK:
        return f"reads images in {K_BLOCK} neighboring channels of a tap, not boxes of {packed.box} of {x.shape[3]} channels"
    if not x.is_contiguous() or x.data_ptr() % RUN_BYTES:
        return "reads images that are channels_last in memory, from a multiple of 16 bytes on"
    last_taps = [
        dilation * (size - 1) for size, dilation in zip(convolution.kernel_size, convolution.dilation, strict=True)
    ]
    if max(*convolution.padding, *last_taps) > _FARTHEST or max(convolution.stride) > _LARGEST_STRIDE:
        return f"takes paddings and filters within {_FARTHEST} pixels and strides up to {_LARGEST_STRIDE}, not {convolution}"
    return None


CONVOLVING = Convolving(_run, _unsupported)
