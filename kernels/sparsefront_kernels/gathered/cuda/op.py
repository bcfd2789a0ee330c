"""The product on Hopper's tensor cores as a PyTorch op, in any layout."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsefront_kernels.common.operands import (
    aligned_by_input,
    aligned_like,
    bias_for_kernel,
    check_epilogue,
    check_operands,
    deliver,
    empty_output,
)
from sparsefront_kernels.common.wgmma_layout import is_halved
from sparsefront_kernels.gathered.cuda.launch import launch_gathered_sm90
from sparsefront_kernels.gathered.cuda.packed_weight import dense_weight
from sparsefront_kernels.gathered.cuda.tuning import CudaProblem, launches_of
from sparsefront_kernels.gathered.gradient import register_gradient


@torch.library.custom_op("sparsefront::gathered_sm90", mutates_args=())
def gathered_sm90(
    x: Tensor,
    panels: Tensor,
    k_blocks: Tensor,
    cta_tiles: Tensor,
    outputs: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    compact: Tensor,
    place: Tensor,
    k_blocks_of_each: int,
    whole_runs: bool,
    lengths: Sequence[int],
    n: int,
    k: int,
    activation: str,
    x_feature_major: bool,
    y_feature_major: bool,
) -> Tensor:
    """Y = activation(X · Wᵀ + bias) + residual with the arguments of `CudaPackedWeight`.

    Args:
        x: [M, K], or [K, M] where x_feature_major; float16 or bfloat16 as `panels`, any strides. The kernel reads
            aligned [K, M]: other layouts, an M that is no multiple of 8 and unaligned rows cost a copy of X.
        bias: [N], any float dtype, or None.
        residual: of Y's shape and dtype, any strides, or None; unaligned rows cost a copy.
        activation: a name of `common.epilogue.ACTIVATIONS`.
    Returns:
        [M, N], or [N, M] where y_feature_major, contiguous, in x's dtype; added up in float32. A copy of Y is paid
        feature-major where M is no multiple of 8; row-major where outputs are dropped or permuted (not `whole_runs`): what is
        computed is then written feature-major, side by side, and a second kernel makes rows of it.
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
        problem = CudaProblem(padded_m, k, n, len(cta_tiles), len(k_blocks), tuple(lengths), is_halved(panels))
        launch = launches_of(problem).launch_for(problem, x.device)
        packed = {"panels": panels, "k_blocks": k_blocks, "launch": launch}
        if not y_feature_major and not whole_runs:
            sums = x.new_empty(compact.numel(), padded_m)
            if kept := len(compact):
                launch_gathered_sm90(
                    by_input,
                    sums,
                    cta_tiles=cta_tiles[:kept],
                    outputs=compact,
                    lengths=lengths[:kept],
                    k_blocks_of_each=0,
                    **packed,
                )
            _expand(sums, place, y, bias_for_kernel(bias), activation, residual)
            return y
        direct = padded_m == m or not y_feature_major
        target = y if direct else x.new_empty(n, padded_m)
        launch_gathered_sm90(
            by_input,
            target,
            cta_tiles=cta_tiles,
            outputs=outputs,
            lengths=lengths,
            k_blocks_of_each=k_blocks_of_each,
            bias=bias_for_kernel(bias),
            y_row_major=not y_feature_major,
            activation=activation,
            residual=None if residual is None else aligned_like(target, residual),
            **packed,
        )
        if not direct:
            deliver(target, y, feature_major=y_feature_major)
    return y


def _expand(
    sums: Tensor, place: Tensor, y: Tensor, bias: Tensor | None, activation: str, residual: Tensor | None
) -> None:
    from sparsefront_kernels.gathered.triton_spmm import expand_rows  # Triton may be absent

    if residual is not None and residual.stride(1) != 1:
        residual = residual.contiguous()
    expand_rows(sums, place, y, bias, activation, residual)


@gathered_sm90.register_fake
def _(
    x,
    panels,
    k_blocks,
    cta_tiles,
    outputs,
    bias,
    residual,
    compact,
    place,
    k_blocks_of_each,
    whole_runs,
    lengths,
    n,
    k,
    activation,
    x_feature_major,
    y_feature_major,
):
    return empty_output(x, n, x_feature_major, y_feature_major)


register_gradient("gathered_sm90", stored=("panels", "k_blocks", "cta_tiles", "outputs"), dense=dense_weight)
