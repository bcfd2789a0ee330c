"""Launching the product on Hopper's tensor cores: the kernel for many rows, or the one whose blocks may share a tile's inputs."""

from collections.abc import Sequence

from torch import Tensor

from sparsefront_kernels.gathered.hopper.narrow import launch_narrow_spmm
from sparsefront_kernels.gathered.hopper.parameters import PairLaunch
from sparsefront_kernels.gathered.hopper.wide import launch_wide_spmm

# the fields of `PairTables` that a launch takes
TABLE_FIELDS = (
    "panels",
    "steps",
    "pairs",
    "outputs",
    "steps_of_each",
    "lengths",
)


def launch_pairs_spmm(
    x: Tensor,
    y: Tensor,
    *,
    panels: Tensor,
    steps: Tensor,
    pairs: Tensor,
    outputs: Tensor,
    steps_of_each: int,
    lengths: Sequence[int],
    launch: PairLaunch,
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
        panels ... lengths: those of `PairTables`, whose `whole_runs` holds where y_row_major.
        bias: [N] contiguous, float16, bfloat16 or float32, or None.
        activation: a name of `common.epilogue.ACTIVATION_CODES`.
        residual: of y's shape and dtype, aligned as y, or None.
    Raises:
        RuntimeError: the launch failed.
    """
    common = {
        "panels": panels,
        "steps": steps,
        "outputs": outputs,
        "bias": bias,
        "y_row_major": y_row_major,
        "activation": activation,
        "residual": residual,
    }
    if launch.wide:
        launch_wide_spmm(x, y, lengths=lengths, group=launch.group, overlap=launch.overlap, **common)
    else:
        launch_narrow_spmm(x, y, pairs=pairs, steps_of_each=steps_of_each, launch=launch, **common)
