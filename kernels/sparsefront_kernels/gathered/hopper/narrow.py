"""Launching ../cuda/gathered_spmm.cu: blocks of 64 or 128 columns, several of which may share a tile's inputs."""

import ctypes
import functools

import torch
from torch import Tensor

from sparsefront_kernels import cuda_library
from sparsefront_kernels.common.epilogue import ACTIVATION_CODES
from sparsefront_kernels.common.launch_shape import processors
from sparsefront_kernels.gathered.hopper.parameters import BIAS_TYPES, PairLaunch, epilogue_arguments
from sparsefront_kernels.gathered.hopper.tables import STEP_GRANULES

LIBRARY = "gathered_spmm"


def launch_narrow_spmm(
    x: Tensor,
    y: Tensor,
    *,
    panels: Tensor,
    steps: Tensor,
    pairs: Tensor,
    outputs: Tensor,
    steps_of_each: int,
    bias: Tensor | None,
    launch: PairLaunch,
    y_row_major: bool = False,
    activation: str = "none",
    residual: Tensor | None = None,
) -> None:
    """As `launch.launch_pairs_spmm`, with `whole_runs` where y_row_major and a launch that is not wide."""
    m = x.shape[1]
    items = len(pairs) * -(-m // launch.block_m)
    clusters = items  # one whose blocks split steps has one item; others take several, as many as run at once
    if launch.splits == 1:
        clusters = min(items, launch.blocks_per_sm * processors(x.device))
    error = _function()(
        *(tensor.data_ptr() for tensor in (x, panels, steps, pairs, outputs)),
        *epilogue_arguments(x, y, bias, residual),
        steps_of_each,
        len(steps) - steps_of_each * len(pairs),
        0 if bias is None else BIAS_TYPES[bias.dtype],
        ACTIVATION_CODES[activation],
        int(y_row_major),
        int(x.dtype == torch.bfloat16),
        m,
        y.shape[0 if y_row_major else 1],
        len(pairs),
        launch.block_m,
        launch.stages,
        launch.group,
        launch.splits,
        int(launch.overlap),
        _granules_of_each_half(panels, steps, pairs) if launch.prefetch else -1,
        launch.blocks_per_sm,
        clusters,
        torch.cuda.current_stream(x.device).cuda_stream,
    )
    if error:
        raise RuntimeError(f"gathered_spmm: CUDA error {error} at launch ({launch})")


def _granules_of_each_half(panels: Tensor, steps: Tensor, pairs: Tensor) -> int:
    """How many granules each half of each pair uses if they use all, as tiles of at least 128 do; else 0. It serves as a hint
    only: what is prefetched by a wrong guess lies among the panels too."""
    granules, rest = divmod(len(panels), 2 * len(pairs))
    return granules if rest == 0 and -(-granules // STEP_GRANULES) * len(pairs) == len(steps) else 0


@functools.cache
def _function() -> ctypes._CFuncPtr:
    function = cuda_library.load(LIBRARY).sparsefront_gathered_spmm
    function.argtypes = [ctypes.c_void_p] * 8 + [ctypes.c_longlong] * 3 + [ctypes.c_int] * 17 + [ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function
