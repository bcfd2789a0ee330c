"""Launch parameters of the Hopper kernels, and the arguments that all their launches share."""

from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNMENT = 8  # elements: X is read and Y written in runs of 16 bytes
SHARED_BYTES = 233_472  # of a multiprocessor
FIXED_BYTES = 5_888  # of a block: what the driver reserves, barriers, lists, and alignment
BIAS_TYPES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}
# (columns, blocks to a multiprocessor) that are compiled: a stage for each group of producer warps at least
_FEWEST_STAGES = {(64, 1): 2, (64, 2): 2, (128, 1): 4, (128, 2): 2, (256, 1): 4}


@dataclass(frozen=True, order=True)
class CudaLaunch:
    """Launch parameters.

    Args:
        block_m: columns of Y per block of the grid: 64 or 128; 256: the kernel for many rows.
        stages: of the pipeline, 2 to 8.
        raster_swizzle: CTA tiles whose blocks are neighbours in the order of work; in the kernel for many rows those that go
            through all columns before the next ones begin.
        blocks_per_sm: blocks of the grid that share a multiprocessor.
        splits: blocks, 1 to 8, that share the kept inputs of one work tile and add up through their shared memories.
        prefetch: whether the first weights are brought into L2 while the kernel before still runs; it pays where that takes
            a good part of the time, and costs where memory is busy.
        pdl: programmatic dependent launch: blocks may start before the previous kernel has ended, and wait for it before
            they read anything.
    """

    block_m: int
    stages: int
    raster_swizzle: int
    blocks_per_sm: int
    splits: int = 1
    prefetch: bool = False
    pdl: bool = True

    @property
    def wide(self) -> bool:
        """Whether the kernel for many rows runs (`wide.py`); of the other parameters it takes `raster_swizzle` and `pdl` only."""
        return self.block_m == 256

    @property
    def shared_bytes(self) -> int:
        """Of one block: X and the weights of both halves, 64 inputs to a stage."""
        return FIXED_BYTES + self.stages * 128 * (self.block_m + 128)

    @property
    def _sums_bytes(self) -> int:
        """What the blocks that share inputs send to each of them, in memory of its stages."""
        return -(-(self.block_m // 32) // self.splits) * (self.splits - 1) * 16_384

    @property
    def possible(self) -> bool:
        """Whether the block fits into shared memory; one of 256 columns also fills the registers."""
        return (
            _FEWEST_STAGES.get((self.block_m, self.blocks_per_sm), 9) <= self.stages <= 8
            and self.raster_swizzle >= 1
            and 1 <= self.splits <= (1 if (self.block_m, self.blocks_per_sm) == (128, 2) else 8)
            and self.stages * 128 * (self.block_m + 128) >= self._sums_bytes
            and self.shared_bytes * self.blocks_per_sm <= SHARED_BYTES
        )


def epilogue_arguments(x: Tensor, y: Tensor, bias: Tensor | None, residual: Tensor | None) -> tuple[int | None, ...]:
    """Addresses of bias, residual and y, then the row strides of x, residual and y in elements, as both libraries take them."""
    return (
        None if bias is None else bias.data_ptr(),
        None if residual is None else residual.data_ptr(),
        y.data_ptr(),
        x.stride(0),
        0 if residual is None else residual.stride(0),
        y.stride(0),
    )
