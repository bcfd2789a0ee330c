"""The product on Hopper's tensor cores as a PyTorch op, in any layout."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsefront_kernels.common.operands import bias_for_kernel, check_epilogue, check_operands, empty_output
from sparsefront_kernels.gathered.aligned_operands import aligned_by_input, aligned_like, deliver
from sparsefront_kernels.gathered.gradient import register_gradient
from sparsefront_kernels.gathered.hopper.launch import launch_pairs_spmm
from sparsefront_kernels.gathered.hopper.spmm import ALIGNMENT
from sparsefront_kernels.gathered.hopper.tables import dense_weight
from sparsefront_kernels.gathered.hopper.tuning import LAUNCHES, PairProblem


@torch.library.custom_op("sparsefront::gathered_pairs_spmm", mutates_args=())
def gathered_pairs_spmm(
    x: Tensor,
    panels: Tensor,
    steps: Tensor,
    pairs: Tensor,
    outputs: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    runs: Tensor,
    runs_begin: Tensor,
    steps_of_each: int,
    whole_runs: bool,
    lengths: Sequence[int],
    n: int,
    k: int,
    activation: str,
    x_feature_major: bool,
    y_feature_major: bool,
) -> Tensor:
    """Y = activation(X · Wᵀ + bias) + residual with the arguments of `PairTables`.

    Args:
        x: [M, K], or [K, M] where x_feature_major; float16 or bfloat16 as `panels`, any strides. The kernel reads
            aligned [K, M]: other layouts, an M that is no multiple of 8 and unaligned rows cost a copy of X.
        bias: [N], any float dtype, or None.
        residual: of Y's shape and dtype, any strides, or None; unaligned rows cost a copy.
        activation: a name of `common.epilogue.ACTIVATIONS`.
    Returns:
        [M, N], or [N, M] where y_feature_major, contiguous, in x's dtype; added up in float32. A copy of Y is paid
        feature-major where M is no multiple of 8; row-major where N is none, or, by the kernel for few rows, where outputs
        are dropped or permuted (not `whole_runs`).
    Raises:
        ValueError: operands that do not fit together, or no such activation.
    """
    check_operands(x, panels, bias, k=k, n=n, feature_major=x_feature_major)
    y = empty_output(x, n, x_feature_major, y_feature_major)
    check_epilogue(y, activation, residual)
    if y.numel() == 0:
        return y
    m = x.shape[1 if x_feature_major else 0]
    with torch.cuda.device_of(x):
        by_input = aligned_by_input(x, feature_major=x_feature_major)
        padded_m = by_input.shape[1]
        problem = PairProblem(padded_m, k, n, len(pairs), len(steps), tuple(lengths))
        launch = LAUNCHES.launch_for(problem, x.device)
        writes_rows = not y_feature_major and (n % ALIGNMENT == 0 if launch.wide else whole_runs)
        direct = writes_rows or (y_feature_major and padded_m == m)
        target = y if direct else x.new_empty(n, padded_m)
        if residual is not None and not direct:
            residual = residual if y_feature_major else residual.t()
        launch_pairs_spmm(
            by_input,
            target,
            panels=panels,
            steps=steps,
            pairs=pairs,
            outputs=outputs,
            runs=runs,
            runs_begin=runs_begin,
            steps_of_each=steps_of_each,
            whole_runs=whole_runs,
            lengths=lengths,
            bias=bias_for_kernel(bias),
            launch=launch,
            y_row_major=writes_rows,
            activation=activation,
            residual=None if residual is None else aligned_like(target, residual),
        )
        if not direct:
            deliver(target, y, feature_major=y_feature_major)
    return y


@gathered_pairs_spmm.register_fake
def _(
    x,
    panels,
    steps,
    pairs,
    outputs,
    bias,
    residual,
    runs,
    runs_begin,
    steps_of_each,
    whole_runs,
    lengths,
    n,
    k,
    activation,
    x_feature_major,
    y_feature_major,
):
    return empty_output(x, n, x_feature_major, y_feature_major)


register_gradient("gathered_pairs_spmm", stored=("panels", "steps", "pairs", "outputs"), dense=dense_weight)
