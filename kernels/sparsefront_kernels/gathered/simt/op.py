"""The float32 product on Hopper's CUDA cores as a PyTorch op, in any layout."""

from typing import Any

import torch
from torch import Tensor

from sparsefront_kernels.common.operands import empty_output
from sparsefront_kernels.gathered.fp32_product import fp32_product
from sparsefront_kernels.gathered.gradient import register_gradient
from sparsefront_kernels.gathered.simt.packed_weight import dense_weight
from sparsefront_kernels.gathered.simt.spmm import launch_gathered_simt
from sparsefront_kernels.gathered.simt.tuning import LAUNCHES, SimtProblem


@torch.library.custom_op("sparsefront::gathered_simt", mutates_args=())
def gathered_simt(
    x: Tensor,
    panels: Tensor,
    kept: Tensor,
    tiles: Tensor,
    outputs: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    kept_of_each: int,
    n: int,
    k: int,
    activation: str,
    x_feature_major: bool,
    y_feature_major: bool,
) -> Tensor:
    """`fp32_product` with the arguments of `SimtPackedWeight`; arguments, result and errors are the same."""

    def launch(by_input: Tensor, y: Tensor, **epilogue: Any) -> None:
        problem = SimtProblem(by_input.shape[1], k, n, outputs.shape[1], len(tiles), len(kept))
        launch_gathered_simt(
            by_input,
            y,
            panels=panels,
            kept=kept,
            tiles=tiles,
            outputs=outputs,
            kept_of_each=kept_of_each,
            launch=LAUNCHES.launch_for(problem, x.device),
            **epilogue,
        )

    return fp32_product(
        launch,
        x,
        panels,
        bias,
        residual,
        n=n,
        k=k,
        activation=activation,
        x_feature_major=x_feature_major,
        y_feature_major=y_feature_major,
    )


@gathered_simt.register_fake
def _(
    x, panels, kept, tiles, outputs, bias, residual, kept_of_each, n, k, activation, x_feature_major, y_feature_major
):
    return empty_output(x, n, x_feature_major, y_feature_major)


register_gradient("gathered_simt", stored=("panels", "kept", "tiles", "outputs"), dense=dense_weight)
