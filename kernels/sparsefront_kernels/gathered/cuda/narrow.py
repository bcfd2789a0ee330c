"""Launching ../csrc/gathered_sm90_cluster.cu: blocks of 64 or 128 columns, several of which may share a tile's inputs."""

import ctypes
import functools

import torch
from torch import Tensor

from sparsefront_kernels import cuda_library
from sparsefront_kernels.common.epilogue import ACTIVATION_CODES
from sparsefront_kernels.common.launch import num_sms
from sparsefront_kernels.gathered.cuda.mma_tiles import K_BLOCK_MMA_TILES
from sparsefront_kernels.gathered.cuda.parameters import BIAS_TYPES, CudaLaunch, epilogue_arguments

LIBRARY = "gathered_sm90_cluster"


def launch_narrow(
    x: Tensor,
    y: Tensor,
    *,
    panels: Tensor,
    k_blocks: Tensor,
    cta_tiles: Tensor,
    outputs: Tensor,
    k_blocks_of_each: int,
    bias: Tensor | None,
    launch: CudaLaunch,
    y_row_major: bool = False,
    activation: str = "none",
    residual: Tensor | None = None,
) -> None:
    """As `launch.launch_gathered_sm90`, with `whole_runs` where y_row_major and a launch that is not wide."""
    m = x.shape[1]
    work_tiles = len(cta_tiles) * -(-m // launch.block_m)
    # a cluster whose blocks split the k-blocks has one work tile; others take several, as many as run at once
    clusters = work_tiles
    if launch.splits == 1:
        clusters = min(work_tiles, launch.blocks_per_sm * num_sms(x.device))
    error = _function()(
        *(tensor.data_ptr() for tensor in (x, panels, k_blocks, cta_tiles, outputs)),
        *epilogue_arguments(x, y, bias, residual),
        k_blocks_of_each,
        len(k_blocks) - k_blocks_of_each * len(cta_tiles),
        0 if bias is None else BIAS_TYPES[bias.dtype],
        ACTIVATION_CODES[activation],
        int(y_row_major),
        int(x.dtype == torch.bfloat16),
        m,
        y.shape[0 if y_row_major else 1],
        len(cta_tiles),
        launch.block_m,
        launch.stages,
        launch.raster_swizzle,
        launch.splits,
        int(launch.pdl),
        _mma_tiles_of_each_half(panels, k_blocks, cta_tiles) if launch.prefetch else -1,
        launch.blocks_per_sm,
        clusters,
        torch.cuda.current_stream(x.device).cuda_stream,
    )
    if error:
        raise RuntimeError(f"gathered_sm90_cluster: CUDA error {error} at launch ({launch})")


def _mma_tiles_of_each_half(panels: Tensor, k_blocks: Tensor, cta_tiles: Tensor) -> int:
    """How many MMA tiles each half of each CTA tile uses if they use all, as tiles of at least 128 do; else 0.

    Only a prefetch hint: a wrong guess prefetches other panels.
    """
    mma_tiles, rest = divmod(len(panels), 2 * len(cta_tiles))
    return mma_tiles if rest == 0 and -(-mma_tiles // K_BLOCK_MMA_TILES) * len(cta_tiles) == len(k_blocks) else 0


@functools.cache
def _function() -> ctypes._CFuncPtr:
    function = cuda_library.load(LIBRARY).sparsefront_gathered_sm90_cluster
    function.argtypes = [ctypes.c_void_p] * 8 + [ctypes.c_longlong] * 3 + [ctypes.c_int] * 17 + [ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function
