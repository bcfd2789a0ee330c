"""The change of layout and the epilogue as PyTorch ops, each one pass over memory."""

import torch
from torch import Tensor

from sparsefront_kernels import operands
from sparsefront_kernels.custom_op import custom_op
from sparsefront_kernels.epilogue import accumulation_dtype, with_epilogue
from sparsefront_kernels.operands import check_epilogue


def contiguous_transpose(x: Tensor) -> Tensor:
    """[R, C] as contiguous [C, R]: a view if possible, else a copy, on a GPU at memory speed.

    PyTorch's own copy takes several times as long for row-major x.
    """
    if x.is_cuda and operands.TRITON_IS_INSTALLED and x.stride(1) == 1 and not x.t().is_contiguous():
        return transposed(x)
    return x.t().contiguous()


@custom_op("transposed")
def transposed(x: Tensor) -> Tensor:
    """[R, C] with contiguous rows as contiguous [C, R]."""
    if not x.is_cuda or x.numel() == 0 or not operands.TRITON_IS_INSTALLED:
        return x.t().clone(memory_format=torch.contiguous_format)
    from sparsefront_kernels.triton_device import transpose_into

    y = x.new_empty(x.shape[1], x.shape[0])
    with torch.cuda.device_of(x):
        transpose_into(x, y)
    return y


@transposed.register_fake
def _(x):
    return x.new_empty(x.shape[1], x.shape[0])


transposed.register_autograd(lambda ctx, dy: dy.t())


@custom_op("epilogue")
def epilogue(sums: Tensor, bias: Tensor | None, activation: str, residual: Tensor | None) -> Tensor:
    """activation(sums + bias) + residual, computed in float32.

    Args:
        sums: [R, C], float16, bfloat16 or float32, contiguous rows: outputs by rows of X if feature-major.
        bias: [R] of any float dtype, or None.
        activation: a name of `epilogue.ACTIVATIONS`.
        residual: [R, C] in the dtype of the sums, any strides, or None.
    Returns:
        [R, C], contiguous, in the dtype of the sums.
    Raises:
        ValueError: incompatible operands, or an unknown activation.
    """
    _check(sums, bias, activation, residual)
    y = sums.new_empty(sums.shape)
    if y.numel() == 0:
        return y
    if not operands.TRITON_IS_INSTALLED:  # more passes over memory
        return y.copy_(with_epilogue(sums.t().to(accumulation_dtype(y.dtype)), bias, activation, _rows(residual)).t())
    from sparsefront_kernels.pointwise.triton_epilogue import launch_epilogue

    with torch.cuda.device_of(sums):
        launch_epilogue(sums, y, bias, activation, residual)
    return y


def _rows(columns: Tensor | None) -> Tensor | None:
    return None if columns is None else columns.t()


@epilogue.register_fake
def _(sums, bias, activation, residual):
    return sums.new_empty(sums.shape)


def _keep(ctx, inputs: tuple, output: Tensor) -> None:
    sums, bias, ctx.activation, residual = inputs
    ctx.save_for_backward(sums, bias)
    ctx.has_residual = residual is not None


def _gradients(ctx, dy: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients by recomputing with the reference."""
    sums, bias = (part if part is None else part.detach().requires_grad_() for part in ctx.saved_tensors)
    with torch.enable_grad():
        y = with_epilogue(sums.t(), bias, ctx.activation, None).t()
    present = [part for part in (sums, bias) if part is not None]
    gradients = torch.autograd.grad(y, present, dy)
    return gradients[0], gradients[1] if bias is not None else None, None, dy if ctx.has_residual else None


epilogue.register_autograd(_gradients, setup_context=_keep)


def _check(sums: Tensor, bias: Tensor | None, activation: str, residual: Tensor | None) -> None:
    if sums.ndim != 2 or sums.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise ValueError(f"sums must be float16, bfloat16 or float32 [R, C], not {sums.dtype} {list(sums.shape)}")
    if bias is not None and (bias.shape != sums.shape[:1] or not bias.is_floating_point()):
        raise ValueError(f"bias must be a float [{sums.shape[0]}], not {bias.dtype} {list(bias.shape)}")
    if bias is not None and bias.device != sums.device:
        raise ValueError(f"bias is on {bias.device}, the sums on {sums.device}")
    check_epilogue(sums, activation, residual)
