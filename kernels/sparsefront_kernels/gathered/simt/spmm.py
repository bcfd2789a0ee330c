"""Launching the float32 kernel of ../csrc/gathered_simt.cu."""

import ctypes
import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefront_kernels import cuda_library
from sparsefront_kernels.common.epilogue import ACTIVATION_CODES
from sparsefront_kernels.common.launch import num_sms

LIBRARY = "gathered_simt"
ALIGNMENT = 4  # elements: X is read and Y written in runs of 16 bytes
SHARED_BYTES = 233_472  # of a multiprocessor
FIXED_BYTES = 1_024 + 768  # of a block: what the driver reserves, barriers, lists of outputs
CONSUMER_WARPS = 4
MOST_STAGES, MOST_SPLITS = 16, 8
BIAS_TYPES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}


@dataclass(frozen=True, order=True)
class SimtLaunch:
    """Launch parameters.

    Args:
        columns: of Y in the registers of a thread, beside 8 outputs: 8 or 16.
        warp_split_k: warps, 1, 2 or 4, that share the kept inputs of one work tile and add up through shared memory.
        stages: of the pipeline, 2 to 16.
        splits: blocks, 1 to 8, that share them, likewise.
    """

    columns: int
    warp_split_k: int
    stages: int
    splits: int = 1

    def block_m(self, width: int) -> int:
        """Columns of Y per block of the grid, 0 where warp split-K leaves no warp for a work tile."""
        return CONSUMER_WARPS * 32 // (width * self.warp_split_k) * 8 * self.columns

    @property
    def rows(self) -> int:
        """Kept inputs of a stage."""
        return 8 * self.warp_split_k

    @property
    def blocks_per_sm(self) -> int:
        """Blocks of the grid that share a multiprocessor: the registers allow no more."""
        return 3 if self.columns == 8 and self.warp_split_k == 1 else 2

    def shared_bytes(self, width: int) -> int:
        """Of one block: X and the weights, or what is added up in the end."""
        stages = self.stages * self.rows * (self.block_m(width) + width) * 4
        return FIXED_BYTES + max(stages, CONSUMER_WARPS * 32 * 8 * self.columns * 4)

    def possible(self, width: int) -> bool:
        """Whether the kernel is compiled for this and its blocks fit into shared memory."""
        return (
            self.columns in (8, 16)
            and self.warp_split_k in (1, 2, 4)
            and self.block_m(width) > 0
            and 2 <= self.stages <= MOST_STAGES
            and 1 <= self.splits <= MOST_SPLITS
            and self.shared_bytes(width) * self.blocks_per_sm <= SHARED_BYTES
        )


def launch_gathered_simt(
    x: Tensor,
    y: Tensor,
    *,
    panels: Tensor,
    kept: Tensor,
    tiles: Tensor,
    outputs: Tensor,
    kept_of_each: int,
    bias: Tensor | None,
    activation: str,
    residual: Tensor | None,
    launch: SimtLaunch,
) -> None:
    """Write Y[N, M] = activation(W · X[K, M] + bias) + residual on the current stream of x's device, which must be current.

    Args:
        x: [K, M] with M contiguous, 16-byte aligned in every row; M a multiple of 4.
        y: [N, M], likewise; every element is written.
        panels, kept, tiles, outputs, kept_of_each: those of `SimtPackedWeight`.
        bias: [N] contiguous, float16, bfloat16 or float32, or None.
        activation: a name of `ACTIVATION_CODES`.
        residual: [N, M] as y, or None.
    Raises:
        RuntimeError: the launch failed.
    """
    error = _function()(
        *(tensor.data_ptr() for tensor in (x, panels, kept, tiles, outputs)),
        None if bias is None else bias.data_ptr(),
        None if residual is None else residual.data_ptr(),
        y.data_ptr(),
        x.stride(0),
        y.stride(0),
        0 if residual is None else residual.stride(0),
        kept_of_each,
        0 if bias is None else BIAS_TYPES[bias.dtype],
        ACTIVATION_CODES[activation],
        x.shape[1],
        x.shape[0],
        len(tiles),
        outputs.shape[1],
        launch.warp_split_k,
        launch.columns,
        launch.stages,
        launch.splits,
        num_sms(x.device),
        torch.cuda.current_stream(x.device).cuda_stream,
    )
    if error:
        raise RuntimeError(f"{LIBRARY}: CUDA error {error} at launch ({launch})")


@functools.cache
def _function() -> ctypes._CFuncPtr:
    function = cuda_library.load(LIBRARY).sparsefront_gathered_simt
    function.argtypes = [ctypes.c_void_p] * 8 + [ctypes.c_longlong] * 3 + [ctypes.c_int] * 12 + [ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function
