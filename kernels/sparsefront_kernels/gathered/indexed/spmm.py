"""Launching the float32 kernel of narrow tiles, ../csrc/gathered_indexed.cu."""

import ctypes
import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefront_kernels import cuda_library
from sparsefront_kernels.common.epilogue import ACTIVATION_CODES
from sparsefront_kernels.common.launch import num_sms
from sparsefront_kernels.gathered.indexed.packed_weight import HALF, HEADER, LISTS, WIDTH
from sparsefront_kernels.gathered.simt.spmm import (
    BIAS_TYPES,
    CONSUMER_WARPS,
    FIXED_BYTES,
    MOST_SPLITS,
    MOST_STAGES,
    SHARED_BYTES,
)

LIBRARY = "gathered_indexed"


@dataclass(frozen=True, order=True)
class IndexedLaunch:
    """Launch parameters; the pipeline has as many stages as fit.

    Args:
        columns: of Y in the registers of a thread, beside 8 outputs: 8 or 16.
        splits: blocks, 1 to 8, that share the stages of one work tile.
    """

    columns: int
    splits: int = 1

    @property
    def block_m(self) -> int:
        """Columns of Y per block of the grid."""
        return 8 * self.columns

    @property
    def blocks_per_sm(self) -> int:
        """Blocks of the grid that share a multiprocessor: the registers allow no more."""
        return 3 if self.columns == 8 else 2

    def stages(self, most_steps: int) -> int:
        """Of the pipeline; at least 2 for what is packed."""
        stage = 2 * HALF * self.block_m * 4 + HEADER + most_steps * (WIDTH * 4 + LISTS)
        return min(MOST_STAGES, (SHARED_BYTES // self.blocks_per_sm - FIXED_BYTES) // stage)

    def possible(self, most_steps: int) -> bool:
        """Whether the kernel is compiled for this and its blocks fit into shared memory."""
        sums = CONSUMER_WARPS * 32 * 8 * self.columns * 4
        return (
            self.columns in (8, 16)
            and 1 <= self.splits <= MOST_SPLITS
            and self.stages(most_steps) >= 2
            and (FIXED_BYTES + sums) * self.blocks_per_sm <= SHARED_BYTES
        )


def launch_gathered_indexed(
    x: Tensor,
    y: Tensor,
    *,
    panels: Tensor,
    kept: Tensor,
    starts: Tensor,
    places: Tensor,
    tiles: Tensor,
    outputs: Tensor,
    most_steps: int,
    bias: Tensor | None,
    activation: str,
    residual: Tensor | None,
    launch: IndexedLaunch,
) -> None:
    """Write Y[N, M] = activation(W · X[K, M] + bias) + residual on the current stream of x's device, which must be current.

    Args:
        x: [K, M] with M contiguous, 16-byte aligned in every row; M a multiple of 4.
        y: [N, M], likewise; every element is written.
        panels, kept, starts, places, tiles, outputs, most_steps: those of `IndexedPackedWeight`.
        bias: [N] contiguous, float16, bfloat16 or float32, or None.
        activation: a name of `ACTIVATION_CODES`.
        residual: [N, M] as y, or None.
    Raises:
        RuntimeError: the launch failed.
    """
    error = _function()(
        *(tensor.data_ptr() for tensor in (x, panels, kept, starts, places, tiles, outputs)),
        None if bias is None else bias.data_ptr(),
        None if residual is None else residual.data_ptr(),
        y.data_ptr(),
        x.stride(0),
        y.stride(0),
        0 if residual is None else residual.stride(0),
        most_steps,
        0 if bias is None else BIAS_TYPES[bias.dtype],
        ACTIVATION_CODES[activation],
        x.shape[1],
        x.shape[0],
        len(tiles),
        launch.columns,
        launch.stages(most_steps),
        launch.splits,
        num_sms(x.device),
        torch.cuda.current_stream(x.device).cuda_stream,
    )
    if error:
        raise RuntimeError(f"{LIBRARY}: CUDA error {error} at launch ({launch})")


@functools.cache
def _function() -> ctypes._CFuncPtr:
    function = cuda_library.load(LIBRARY).sparsefront_gathered_indexed
    function.argtypes = [ctypes.c_void_p] * 10 + [ctypes.c_longlong] * 3 + [ctypes.c_int] * 10 + [ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function
