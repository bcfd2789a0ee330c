"""LayerNorm of columns as a PyTorch op, so that it lives in compiled graphs and CUDA graphs."""

import torch
from torch import Tensor

from sparsefront_kernels.norm import kernels
from sparsefront_kernels.norm.reference import add_layer_norm_columns_reference, layer_norm_columns_reference


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
    _check(x, weight=weight, bias=bias)
    y = _empty(x)
    if y.numel() == 0:
        return y
    _launch(x, y, weight, bias, eps)
    return y


@layer_norm_columns.register_fake
def _(x, weight, bias, eps):
    return _empty(x)


@torch.library.custom_op("sparsefront::add_layer_norm_columns", mutates_args=())
def add_layer_norm_columns(
    x: Tensor,
    x_bias: Tensor | None,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    keep_sums: bool,
) -> tuple[Tensor, Tensor]:
    """LayerNorm of the columns of x + x_bias + residual: the sum costs no pass over memory of its own.

    Args:
        x: as that of `layer_norm_columns`.
        x_bias, weight, bias: [d] of any float dtype, or None.
        residual: [d, M] in x's dtype, any strides.
        keep_sums: whether the sum is given too, for who reads it beside the norm.
    Returns:
        the norm and the sum, [d, M], contiguous, in x's dtype; without keep_sums the sum is empty, [0, M].
    Raises:
        ValueError: operands that do not fit together.
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
    _launch(x, y, weight, bias, eps, x_bias=x_bias, residual=residual, sums=sums if keep_sums else None)
    return y, sums


@add_layer_norm_columns.register_fake
def _(x, x_bias, residual, weight, bias, eps, keep_sums):
    return _empty(x), _empty_sums(x, keep_sums)


def _launch(
    x: Tensor,
    y: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    x_bias: Tensor | None = None,
    residual: Tensor | None = None,
    sums: Tensor | None = None,
) -> None:
    """Write y, and sums where given, by the kernel in use for such a norm."""
    operands = {"weight": weight, "bias": bias, "x_bias": x_bias, "residual": residual, "sums": sums}
    kernels.run(kernels.launch_in_use(x, **operands), x, y, eps=eps, **operands)


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
    given = ([y, sums], [dy, dsums]) if ctx.keep_sums else ([y], [dy])
    return *_through_reference(given[0], saved, given[1]), None, None


def _leaves(ctx) -> list[Tensor | None]:
    return [part if part is None else part.detach().requires_grad_() for part in ctx.saved_tensors]


def _through_reference(
    outputs: list[Tensor], inputs: list[Tensor | None], gradients: list[Tensor]
) -> list[Tensor | None]:
    """Computed anew: right, and not fast."""
    present = [part for part in inputs if part is not None]
    found = iter(torch.autograd.grad(outputs, present, gradients))
    return [None if part is None else next(found) for part in inputs]


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
