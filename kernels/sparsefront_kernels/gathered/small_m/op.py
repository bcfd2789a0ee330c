"""The product with few rows of X as a PyTorch op, in any layout."""

import torch
from torch import Tensor

from sparsefront_kernels.common.operands import bias_for_kernel, check_epilogue, check_operands, empty_output
from sparsefront_kernels.gathered.gradient import register_gradient
from sparsefront_kernels.gathered.small_m.packed_weight import dense_weight
from sparsefront_kernels.gathered.small_m.spmm import MOST_ROWS, launch_gathered_small_m
from sparsefront_kernels.gathered.small_m.tuning import LAUNCHES, ROW_X_LAUNCHES, SmallMProblem


@torch.library.custom_op("sparsefront::gathered_small_m", mutates_args=())
def gathered_small_m(
    x: Tensor,
    panels: Tensor,
    lists: Tensor,
    row_tiles: Tensor,
    outputs: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    chunks_of_each: int,
    most_chunks: int,
    in_order: bool,
    n: int,
    k: int,
    activation: str,
    x_feature_major: bool,
    y_feature_major: bool,
) -> Tensor:
    """Y = activation(X · Wᵀ + bias) + residual with the arguments of `SmallMPackedWeight`, for up to 64 rows of X.

    Args:
        x: [M, K], or [K, M] where x_feature_major; float16, bfloat16 or float32 as `panels`, any strides. For M > 8
            the kernel reads rows side by side (feature-major, M a multiple of 2, 4 or 8): otherwise a first small
            kernel packs X.
        bias: [N], any float dtype, or None.
        residual: of Y's shape and dtype, any strides, or None.
        activation: a name of `common.epilogue.ACTIVATIONS`.
    Returns:
        [M, N], or [N, M] where y_feature_major, contiguous, in x's dtype; added up in float32.
    Raises:
        ValueError: operands that do not fit together, more rows than 64, or no such activation.
    """
    check_operands(x, panels, bias, k=k, n=n, feature_major=x_feature_major)
    y = empty_output(x, n, x_feature_major, y_feature_major)
    check_epilogue(y, activation, residual)
    if y.numel() == 0:
        return y
    rows, out = (x.t() if x_feature_major else x), (y.t() if y_feature_major else y)
    if rows.shape[0] > MOST_ROWS:
        raise ValueError(f"gathered_small_m: {rows_unsupported_reason(rows.shape[0])}")
    if max(rows.stride()) >= 2**30:  # the kernel counts bytes from input to input in 32 bits
        rows = rows.contiguous()
    if residual is not None and y_feature_major:
        residual = residual.t()
    problem = SmallMProblem(
        m=rows.shape[0],
        k=k,
        n=n,
        width=outputs.shape[1],
        row_tiles=len(row_tiles),
        chunks=len(panels),
        most_chunks=most_chunks,
        element_bytes=x.element_size(),
        x_feature_major=x_feature_major,
    )
    with torch.cuda.device_of(x):
        launch_gathered_small_m(
            rows,
            out,
            panels=panels,
            lists=lists,
            row_tiles=row_tiles,
            outputs=outputs,
            chunks_of_each=chunks_of_each,
            most_chunks=most_chunks,
            in_order=in_order,
            bias=bias_for_kernel(bias),
            activation=activation,
            residual=residual,
            launch=(LAUNCHES if x_feature_major else ROW_X_LAUNCHES).launch_for(problem, x.device),
        )
    return y


@gathered_small_m.register_fake
def _(
    x,
    panels,
    lists,
    row_tiles,
    outputs,
    bias,
    residual,
    chunks_of_each,
    most_chunks,
    in_order,
    n,
    k,
    activation,
    x_feature_major,
    y_feature_major,
):
    return empty_output(x, n, x_feature_major, y_feature_major)


register_gradient("gathered_small_m", stored=("panels", "lists", "row_tiles", "outputs"), dense=dense_weight)


def rows_unsupported_reason(m: int) -> str | None:
    """Why so many rows of X cannot be multiplied, or None."""
    return None if m <= MOST_ROWS else f"takes up to {MOST_ROWS} rows of X, not {m}"
