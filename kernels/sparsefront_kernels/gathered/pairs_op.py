"""The product on Hopper's tensor cores as a PyTorch op, in either layout."""

import torch
from torch import Tensor

from sparsefront_kernels.common.operands import check_operands
from sparsefront_kernels.gathered.cuda_spmm import ALIGNMENT, launch_pairs_spmm
from sparsefront_kernels.gathered.tuning import PairProblem, launch_for


@torch.library.custom_op("sparsefront::gathered_pairs_spmm", mutates_args=())
def gathered_pairs_spmm(
    x: Tensor,
    panels: Tensor,
    steps: Tensor,
    pairs: Tensor,
    outputs: Tensor,
    steps_of_each: int,
    bias: Tensor | None,
    n: int,
    k: int,
    feature_major: bool,
) -> Tensor:
    """Y = X · Wᵀ + bias with the arguments of `PairTables`.

    Args:
        x: [M, K], or [K, M] where feature_major; float16 or bfloat16 as `panels`, any strides. The kernel reads
            aligned [K, M]: other layouts, an M that is no multiple of 8 and unaligned rows cost a copy of X and of Y.
        bias: [N], any float dtype, or None.
    Returns:
        [M, N], or [N, M] where feature_major, contiguous, in x's dtype; added up in float32.
    Raises:
        ValueError: operands that do not fit together.
    """
    check_operands(x, panels, bias, k=k, n=n, feature_major=feature_major)
    y = _empty_output(x, n, feature_major)
    if y.numel() == 0:
        return y
    m = x.shape[1 if feature_major else 0]
    if bias is not None:
        bias = (bias.float() if bias.dtype == torch.float64 else bias).contiguous()
    with torch.cuda.device_of(x):
        by_input = _aligned_by_input(x, feature_major)
        direct = feature_major and by_input.shape[1] == m
        by_output = y if direct else x.new_empty(n, by_input.shape[1])
        launch_pairs_spmm(
            by_input,
            by_output,
            panels=panels,
            steps=steps,
            pairs=pairs,
            outputs=outputs,
            steps_of_each=steps_of_each,
            bias=bias,
            launch=launch_for(PairProblem(by_input.shape[1], k, n, len(pairs), len(steps)), x.device),
        )
        if not direct and feature_major:
            y.copy_(by_output[:, :m])
        elif not direct:
            _transpose_into(by_output[:, :m], y)
    return y


@gathered_pairs_spmm.register_fake
def _(x, panels, steps, pairs, outputs, steps_of_each, bias, n, k, feature_major):
    return _empty_output(x, n, feature_major)


def _aligned_by_input(x: Tensor, feature_major: bool) -> Tensor:
    """X as the kernel reads it: [K, M rounded up to a multiple of 8], every row a run that begins at 16 bytes."""
    m = x.shape[1 if feature_major else 0]
    by_input = x if feature_major else x.t()
    aligned = by_input.data_ptr() % 16 == 0 and by_input.stride(0) % ALIGNMENT == 0 and m % ALIGNMENT == 0
    if by_input.stride(1) == 1 and aligned:
        return by_input
    copy = x.new_empty(by_input.shape[0], -(-m // ALIGNMENT) * ALIGNMENT)  # what lies past m reaches no element of Y
    if not feature_major and x.stride(1) == 1:
        _transpose_into(x, copy[:, :m])
    else:
        copy[:, :m].copy_(by_input)
    return copy


def _transpose_into(source: Tensor, target: Tensor) -> None:
    from sparsefront_kernels.gathered.triton_transpose import transpose_into  # Triton may be absent

    transpose_into(source, target)


def _empty_output(x: Tensor, n: int, feature_major: bool) -> Tensor:
    return x.new_empty((n, x.shape[1]) if feature_major else (x.shape[0], n))
