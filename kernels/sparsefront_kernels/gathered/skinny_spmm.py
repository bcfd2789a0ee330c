"""Launching the kernel for few rows of X, cuda/gathered_skinny.cu."""

import ctypes
import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefront_kernels import cuda_library
from sparsefront_kernels.common.epilogue import ACTIVATION_CODES
from sparsefront_kernels.gathered.skinny_tables import CHUNK, FRAGMENT

LIBRARY = "gathered_skinny"
MOST_ROWS = 64
SHARED_BYTES = 232_448  # of a block, at most
STATIC_BYTES = 2_048
BARRIERS = 8  # of a warp
OVERLAPS = ("apart", "early", "prefetch", "prefetch_late")
_TYPES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}


@dataclass(frozen=True, order=True)
class SkinnyLaunch:
    """Launch parameters.

    Args:
        fragments: of 16 outputs each, that one warp computes: 1, 2, 4 or 8.
        splits: blocks of a cluster, 1 to 8, that share the chunks of a strip and add up through their shared memories.
        warps: of a block, 1 to 8, that share the block's chunks.
        stages: slots of about 4 KB in a warp's ring, 2 to 8.
        overlap: with the kernels before and after in the stream. "apart": none. "early": it is launched while the one
            before still runs, and waits before it reads. "prefetch": and has its weight brought into L2 meanwhile.
            "prefetch_late": and lets the next one start only once its own first loads are on their way.
    """

    fragments: int
    splits: int
    warps: int
    stages: int
    overlap: str = "prefetch"

    def region_bytes(self, m: int, element_bytes: int) -> int:
        """Shared memory of one warp: its ring, and later its sums."""
        blocks = column_blocks(m)
        unit = max(1, 16 // element_bytes // max(self.fragments, blocks))  # chunks of a slot
        ring = self.stages * unit * CHUNK * (2 + FRAGMENT * self.fragments * element_bytes)
        return -(-max(ring, 512 * self.fragments * blocks) // 128) * 128

    def possible(self, m: int, width: int, element_bytes: int = 2) -> bool:
        """Whether a strip of this width can be computed so, for m rows and elements of 2 or 4 bytes."""
        return (
            self.fragments in (1, 2, 4, 8)
            and width % (FRAGMENT * self.fragments) == 0
            and self.fragments * column_blocks(m) * element_bytes <= 64  # the sums fit into registers
            and 1 <= self.splits <= 8
            and self.fragments <= 2 * self.warps <= 16
            and 2 <= self.stages <= BARRIERS
            and self.overlap in OVERLAPS
            and self.warps * self.region_bytes(m, element_bytes) + STATIC_BYTES <= SHARED_BYTES
        )


def column_blocks(m: int) -> int:
    """Blocks of eight rows of X that a warp computes: 1, 2, 4 or 8."""
    return 1 if m <= 8 else 2 if m <= 16 else 4 if m <= 32 else 8


def launch_skinny_spmm(
    x: Tensor,
    y: Tensor,
    *,
    stream: Tensor,
    strips: Tensor,
    outputs: Tensor,
    chunks_of_each: int,
    in_order: bool,
    bias: Tensor | None,
    activation: str,
    residual: Tensor | None,
    launch: SkinnyLaunch,
) -> None:
    """Write Y = activation(X · Wᵀ + bias) + residual on the current stream of x's device, which must be current.

    Args:
        x: [M, K], 1 to 64 rows, float16, bfloat16 or float32, any strides below 2**30.
        y: [M, N], any strides; every element is written.
        stream, strips, outputs, chunks_of_each, in_order: those of `SkinnyTables`.
        bias: [N] contiguous, float16, bfloat16 or float32, or None.
        residual: [M, N] in x's dtype, any strides, or None.
    Raises:
        RuntimeError: the launch failed.
    """
    m, k = x.shape
    width = outputs.shape[1]
    blocks = column_blocks(m)
    packed = None if _side_by_side(x, blocks) else x.new_empty(k, 8 * blocks)
    pointers = (x, packed, stream, strips, None if in_order else outputs, bias, residual, y)
    residual_strides = (0, 0) if residual is None else residual.stride()
    error = _function()(
        *(None if tensor is None else tensor.data_ptr() for tensor in pointers),
        x.stride(1),
        x.stride(0),
        *residual_strides,
        *y.stride(),
        stream.nbytes,
        _TYPES[x.dtype],
        0 if bias is None else _TYPES[bias.dtype],
        ACTIVATION_CODES[activation],
        m,
        y.shape[1],
        k,
        len(strips),
        chunks_of_each,
        width,
        launch.fragments,
        launch.splits,
        launch.warps,
        launch.stages,
        OVERLAPS.index(launch.overlap),
        PREFETCH_BYTES,
        torch.cuda.current_stream(x.device).cuda_stream,
    )
    if error:
        raise RuntimeError(f"gathered_skinny: CUDA error {error} at launch ({launch})")


PREFETCH_BYTES = 65_536  # of the weight that a block has brought into L2 while it waits, at most


def _side_by_side(x: Tensor, blocks: int) -> bool:
    """Whether a lane can load its `blocks` rows of one input at once; one row is loaded from anywhere."""
    if blocks == 1:
        return True
    m, _ = x.shape
    alignment = min(16, blocks * x.element_size())
    aligned = x.data_ptr() % alignment == 0 and x.stride(1) * x.element_size() % alignment == 0
    return x.stride(0) == 1 and aligned and m % blocks == 0


@functools.cache
def _function() -> ctypes._CFuncPtr:
    function = cuda_library.load(LIBRARY).sparsefront_gathered_skinny
    function.argtypes = [ctypes.c_void_p] * 8 + [ctypes.c_longlong] * 7 + [ctypes.c_int] * 15 + [ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function
