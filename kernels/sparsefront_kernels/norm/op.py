"""LayerNorm of columns as a PyTorch op, so that it lives in compiled graphs and CUDA graphs."""

import torch
from torch import Tensor

from sparsefront_kernels.norm.reference import layer_norm_columns_reference


@torch.library.custom_op("sparsefront::layer_norm_columns", mutates_args=())
def layer_norm_columns(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Each column of x to mean 0 and variance 1, times weight, plus bias; float32 inside.

    Args:
        x: [d, M], float16, bfloat16 or float32, any strides: a transposed view of row-major [M, d] is read as well.
        weight, bias: [d] of any float dtype, or None.
    Returns:
        [d, M], contiguous, in x's dtype.
    Raises:
        ValueError: operands that do not fit together.
    """
    _check(x, weight, bias)
    y = _empty(x)
    if y.numel() == 0:
        return y
    # Triton may be absent where only the reference is used, so it is imported by those who need it
    from sparsefront_kernels.norm.triton_norm import launch_layer_norm_columns

    with torch.cuda.device_of(x):
        launch_layer_norm_columns(x, y, weight, bias, eps)
    return y


@layer_norm_columns.register_fake
def _(x, weight, bias, eps):
    return _empty(x)


def _keep(ctx, inputs: tuple, output: Tensor) -> None:
    x, weight, bias, ctx.eps = inputs
    ctx.save_for_backward(x, weight, bias)


def _gradients(ctx, dy: Tensor) -> tuple[Tensor | None, ...]:
    """Through the reference, computed anew: right, and not fast."""
    saved = [part if part is None else part.detach().requires_grad_() for part in ctx.saved_tensors]
    with torch.enable_grad():
        y = layer_norm_columns_reference(*saved, ctx.eps)
    present = [part for part in saved if part is not None]
    found = iter(torch.autograd.grad(y, present, dy))
    return *(None if part is None else next(found) for part in saved), None


layer_norm_columns.register_autograd(_gradients, setup_context=_keep)


def _empty(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _check(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> None:
    if x.ndim != 2 or x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise ValueError(f"x must be float16, bfloat16 or float32 [d, M], not {x.dtype} {list(x.shape)}")
    for name, part in (("weight", weight), ("bias", bias)):
        if part is not None and (part.shape != x.shape[:1] or not part.is_floating_point()):
            raise ValueError(f"{name} must be a float [{x.shape[0]}], not {part.dtype} {list(part.shape)}")
        if part is not None and part.device != x.device:
            raise ValueError(f"{name} is on {part.device}, x on {x.device}")
