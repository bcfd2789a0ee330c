"""The kernels of a norm behind one call: which of them takes the operands, and which is in use."""

import torch
from torch import Tensor

from sparsefront_kernels.norm import cuda_norm
from sparsefront_kernels.norm.launch import TRITON, NormLaunch
from sparsefront_kernels.norm.tuning import LAUNCHES, NormProblem


def unsupported_reason(
    launch: NormLaunch,
    x: Tensor,
    *,
    weight: Tensor | None,
    bias: Tensor | None,
    x_bias: Tensor | None = None,
    residual: Tensor | None = None,
    sums: Tensor | None = None,
) -> str | None:
    """Why this launch cannot take these operands of the ops, or None; Triton's takes all."""
    if launch.kernel == TRITON.kernel:
        return None
    return cuda_norm.unsupported_reason(
        launch, x, weight=weight, bias=bias, x_bias=x_bias, residual=residual, sums=sums
    )


def launch_in_use(
    x: Tensor,
    *,
    weight: Tensor | None,
    bias: Tensor | None,
    x_bias: Tensor | None = None,
    residual: Tensor | None = None,
    sums: Tensor | None = None,
) -> NormLaunch:
    """The launch that was measured fastest for such a norm, if it takes these operands; else Triton's."""
    launch = LAUNCHES.launch_for(NormProblem.of(x, residual, sums is not None), x.device)
    if launch == TRITON:
        return TRITON
    reason = unsupported_reason(launch, x, weight=weight, bias=bias, x_bias=x_bias, residual=residual, sums=sums)
    return launch if reason is None else TRITON


def run(
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
    """Write y [d, M], and x + x_bias + residual to sums; operands as those of the ops.

    Args:
        launch: one that takes the operands (`unsupported_reason`).
    Raises:
        RuntimeError: the launch failed.
    """
    added = {"x_bias": x_bias, "residual": residual, "sums": sums}
    with torch.cuda.device_of(x):
        if launch.kernel == TRITON.kernel:
            # Triton may be absent where only the reference is used, so it is imported by those who need it
            from sparsefront_kernels.norm.triton_norm import launch_layer_norm_columns

            launch_layer_norm_columns(x, y, weight, bias, eps, **added)
        else:
            cuda_norm.launch_cuda_norm(launch, x, y, weight, bias, eps, **added)
