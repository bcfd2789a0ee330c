"""The float32 product of narrow tiles on Hopper's CUDA cores as a PyTorch op, in any layout."""

from typing import Any

import torch
from torch import Tensor

from sparsefront_kernels.common.operands import empty_output
from sparsefront_kernels.gathered.fp32_product import fp32_product
from sparsefront_kernels.gathered.gradient import register_gradient
from sparsefront_kernels.gathered.indexed.packed_weight import dense_weight
from sparsefront_kernels.gathered.indexed.spmm import launch_gathered_indexed
from sparsefront_kernels.gathered.indexed.tuning import LAUNCHES, IndexedProblem


@torch.library.custom_op("sparsefront::gathered_indexed", mutates_args=())
def gathered_indexed(
    x: Tensor,
    panels: Tensor,
    kept: Tensor,
    starts: Tensor,
    places: Tensor,
    tiles: Tensor,
    outputs: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    most_steps: int,
    n: int,
    k: int,
    activation: str,
    x_feature_major: bool,
    y_feature_major: bool,
) -> Tensor:
    """`fp32_product` with the arguments of `IndexedPackedWeight`; arguments, result and errors are the same."""

    def launch(by_input: Tensor, y: Tensor, **epilogue: Any) -> None:
        problem = IndexedProblem(by_input.shape[1], k, n, len(tiles), len(panels))
        launch_gathered_indexed(
            by_input,
            y,
            panels=panels,
            kept=kept,
            starts=starts,
            places=places,
            tiles=tiles,
            outputs=outputs,
            most_steps=most_steps,
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


@gathered_indexed.register_fake
def _(
    x,
    panels,
    kept,
    starts,
    places,
    tiles,
    outputs,
    bias,
    residual,
    most_steps,
    n,
    k,
    activation,
    x_feature_major,
    y_feature_major,
):
    return empty_output(x, n, x_feature_major, y_feature_major)


register_gradient(
    "gathered_indexed", stored=("panels", "kept", "starts", "places", "tiles", "outputs"), dense=dense_weight
)
