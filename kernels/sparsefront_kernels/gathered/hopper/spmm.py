"""Launching the Hopper kernel of ../cuda/gathered_spmm.cu."""

import ctypes
import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefront_kernels import cuda_library
from sparsefront_kernels.common.epilogue import ACTIVATION_CODES
from sparsefront_kernels.common.launch_shape import processors
from sparsefront_kernels.gathered.hopper.tables import STEP_GRANULES

LIBRARY = "gathered_spmm"
ALIGNMENT = 8  # elements: X is read and Y written in runs of 16 bytes
SHARED_BYTES = 233_472  # of a multiprocessor
FIXED_BYTES = 5_888  # of a block: what the driver reserves, barriers, lists, and alignment
# (columns, blocks to a multiprocessor) that are compiled: a stage for each team of producer warps at least
_FEWEST_STAGES = {(64, 1): 2, (64, 2): 2, (128, 1): 4, (128, 2): 2, (256, 1): 2}
_BIAS_TYPES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}


@dataclass(frozen=True, order=True)
class PairLaunch:
    """Launch parameters.

    Args:
        block_m: columns of Y per block of the grid: 64, 128 or 256.
        stages: of the pipeline, 2 to 8.
        group: pairs whose blocks are neighbours in the order of work.
        blocks_per_sm: blocks of the grid that share a multiprocessor.
        splits: blocks, 1 to 8, that share the kept inputs of one piece of Y and add up through their shared memories.
        prefetch: whether the first weights are brought into L2 while the kernel before still runs; it pays where that takes
            a good part of the time, and costs where memory is busy.
        overlap: whether blocks may start before the kernel before has ended. They wait for it before they read anything.
    """

    block_m: int
    stages: int
    group: int
    blocks_per_sm: int
    splits: int = 1
    prefetch: bool = False
    overlap: bool = True

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
            and self.group >= 1
            and 1 <= self.splits <= (1 if (self.block_m, self.blocks_per_sm) == (128, 2) else 8)
            and self.stages * 128 * (self.block_m + 128) >= self._sums_bytes
            and self.shared_bytes * self.blocks_per_sm <= SHARED_BYTES
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
    bias: Tensor | None,
    launch: PairLaunch,
    y_row_major: bool = False,
    activation: str = "none",
    residual: Tensor | None = None,
) -> None:
    """Write Y[N, M] = activation(W · X[K, M] + bias) + residual on the current stream of x's device, which must be current.

    Args:
        x: [K, M] with M contiguous, 16-byte aligned in every row; M a multiple of 8.
        y: [N, M], likewise; or [M, N] where y_row_major, likewise, and with as many rows as are wanted, at most M. Every
            element is written.
        panels, steps, pairs, outputs, steps_of_each: those of `PairTables`, with `whole_runs` where y_row_major.
        bias: [N] contiguous, float16, bfloat16 or float32, or None.
        activation: a name of `common.epilogue.ACTIVATION_CODES`.
        residual: of y's shape and dtype, aligned as y, or None.
    Raises:
        RuntimeError: the launch failed.
    """
    m = x.shape[1]
    items = len(pairs) * -(-m // launch.block_m)
    clusters = items  # one whose blocks split steps has one item; others take several, as many as run at once
    if launch.splits == 1:
        clusters = min(items, launch.blocks_per_sm * processors(x.device))
    error = _function()(
        *(tensor.data_ptr() for tensor in (x, panels, steps, pairs, outputs)),
        None if bias is None else bias.data_ptr(),
        None if residual is None else residual.data_ptr(),
        y.data_ptr(),
        x.stride(0),
        0 if residual is None else residual.stride(0),
        y.stride(0),
        steps_of_each,
        len(steps) - steps_of_each * len(pairs),
        0 if bias is None else _BIAS_TYPES[bias.dtype],
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
