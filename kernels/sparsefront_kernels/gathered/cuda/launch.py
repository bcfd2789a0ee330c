"""Launching the product on Hopper's tensor cores: the kernel for many rows, or the one whose blocks may share a tile's inputs."""

from collections.abc import Sequence

from torch import Tensor

from sparsefront_kernels.gathered.cuda.narrow import launch_narrow
from sparsefront_kernels.gathered.cuda.parameters import CudaLaunch
from sparsefront_kernels.gathered.cuda.wide import launch_wide

# the fields of `CudaPackedWeight` that a launch takes
PACKED_FIELDS = (
    "panels",
    "k_blocks",
    "cta_tiles",
    "outputs",
    "k_blocks_of_each",
    "lengths",
)


def launch_gathered_sm90(
    x: Tensor,
    y: Tensor,
    *,
    panels: Tensor,
    k_blocks: Tensor,
    cta_tiles: Tensor,
    outputs: Tensor,
    k_blocks_of_each: int,
    lengths: Sequence[int],
    launch: CudaLaunch,
    bias: Tensor | None = None,
    y_row_major: bool = False,
    activation: str = "none",
    residual: Tensor | None = None,
) -> None:
    """Write Y[N, M] = activation(W · X[K, M] + bias) + residual on the current stream of x's device, which must be current.

    Args:
        x: [K, M] with M contiguous, 16-byte aligned in every row; M a multiple of 8.
        y: [N, M], likewise; or [M, N] where y_row_major, likewise, and with as many rows as are wanted, at most M. Every
            element is written.
        panels ... lengths: those of `CudaPackedWeight`, whose `whole_runs` holds where y_row_major.
        bias: [N] contiguous, float16, bfloat16 or float32, or None.
        activation: a name of `common.epilogue.ACTIVATION_CODES`.
        residual: of y's shape and dtype, aligned as y, or None.
    Raises:
        RuntimeError: the launch failed.
    """
    common = {
        "panels": panels,
        "k_blocks": k_blocks,
        "outputs": outputs,
        "bias": bias,
        "y_row_major": y_row_major,
        "activation": activation,
        "residual": residual,
    }
    if launch.wide:
        launch_wide(x, y, lengths=lengths, raster_swizzle=launch.raster_swizzle, pdl=launch.pdl, **common)
    else:
        launch_narrow(x, y, cta_tiles=cta_tiles, k_blocks_of_each=k_blocks_of_each, launch=launch, **common)
