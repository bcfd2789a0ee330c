"""Launching the kernel for few rows of X, ../csrc/gathered_small_m.cu."""

import ctypes
import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefront_kernels import cuda_library
from sparsefront_kernels.common.epilogue import ACTIVATION_CODES
from sparsefront_kernels.gathered.small_m.packed_weight import CHUNK, FRAGMENT

LIBRARY = "gathered_small_m"
MOST_ROWS = 64
SHARED_BYTES = 232_448  # of a block, at most
STATIC_BYTES = 2_560
MOST_STAGES = 8
GATHERS = ("lanes", "shared")
PDL_MODES = ("off", "early", "prefetch", "prefetch_late")
_TYPES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}


@dataclass(frozen=True, order=True)
class SmallMLaunch:
    """Launch parameters.

    Args:
        gather: how X is gathered. "lanes": each lane gathers its own elements into registers; the warps of a block share
            the chunks. "shared": separate warps gather into shared memory, and eight other warps share the outputs of a
            row tile; 16-bit only.
        fragments: of 16 outputs each, that one warp computes: 1, 2, 4 or 8.
        splits: blocks of a cluster, 1 to 8, that share the chunks of a row tile and add up through their shared memories.
        warps: of a block, 1 to 8, that multiply; 8 where X is gathered into shared memory.
        stages: slots of a ring, 2 to 8. "lanes": every warp has a ring, of about 4 KB a slot. "shared": the block has
            one, of `stage_chunks` chunks a slot.
        stage_chunks: see `stages`; without meaning for "lanes".
        pdl: programmatic dependent launch. "off": none. "early": it is launched while the kernel before it in the stream
            still runs, and waits before it reads. "prefetch": and has its weight brought into L2 meanwhile.
            "prefetch_late": and lets the next one start only once it has asked for all of its weight.
    """

    gather: str
    fragments: int
    splits: int
    warps: int
    stages: int
    stage_chunks: int = 0
    pdl: str = "prefetch"

    def warp_split_k(self, width: int) -> int:
        """Warps that share the chunks of a block."""
        return 8 * FRAGMENT * self.fragments // width if self.gather == "shared" else self.warps

    def slot_chunks(self, m: int, width: int, element_bytes: int) -> int:
        """Chunks of a slot of a ring."""
        if self.gather == "shared":
            return max(self.stage_chunks, self.warp_split_k(width))
        return max(1, 16 // element_bytes // max(self.fragments, column_blocks(m)))

    def turns(self, chunks: int, m: int, width: int, element_bytes: int) -> int:
        """How many slots a ring passes where a block has so many chunks."""
        slot = self.slot_chunks(m, width, element_bytes)
        if self.gather == "shared":
            return -(-chunks // slot)
        return -(-chunks // (self.warps * min(slot, -(-chunks // self.warps))))

    def shared_bytes(self, m: int, width: int, element_bytes: int, most_chunks: int) -> int:
        """Shared memory of a block: rings, which later take the sums, and lists."""
        blocks, slot = column_blocks(m), self.slot_chunks(m, width, element_bytes)
        lists = 2 * CHUNK * -(-most_chunks // self.splits)
        if self.gather == "shared":
            stage = slot * (CHUNK * element_bytes * width + 16 * CHUNK * blocks)
            return STATIC_BYTES + lists + max(self.stages * stage, 33 * width * blocks * self.warp_split_k(width))
        ring = self.stages * slot * CHUNK * element_bytes * FRAGMENT * self.fragments
        return STATIC_BYTES + lists + self.warps * max(ring, 528 * self.fragments * blocks)

    def blocks_at_once(self, m: int, width: int, element_bytes: int, most_chunks: int) -> int:
        """Blocks that fit a multiprocessor, about."""
        threads = 384 if self.gather == "shared" else 32 * self.warps
        registers = 128 if self.fragments * column_blocks(m) * element_bytes <= 32 else 255
        by_memory = 233_472 // (1024 + self.shared_bytes(m, width, element_bytes, most_chunks))
        return max(1, min(by_memory, 65_536 // (threads * registers)))

    def possible(self, m: int, width: int, element_bytes: int = 2, most_chunks: int = 0) -> bool:
        """Whether row tiles of this width and of `most_chunks` chunks can be computed so, for m rows of 2- or 4-byte elements."""
        shared = self.gather == "shared"
        return (
            self.gather in GATHERS
            and self.fragments in (1, 2, 4, 8)
            and width % (FRAGMENT * self.fragments) == 0
            and self.fragments * column_blocks(m) * element_bytes <= 64  # the sums fit into registers
            and 1 <= self.splits <= 8
            and self.fragments <= 2 * self.warps <= 16
            and 2 <= self.stages <= MOST_STAGES
            and self.pdl in PDL_MODES
            and (not shared or (element_bytes == 2 and self.warps == 8 and self.stage_chunks >= 1))
            and self.shared_bytes(m, width, element_bytes, most_chunks) <= SHARED_BYTES
        )


def column_blocks(m: int) -> int:
    """Blocks of eight rows of X that a warp computes: 1, 2, 4 or 8."""
    return 1 if m <= 8 else 2 if m <= 16 else 4 if m <= 32 else 8


def launch_gathered_small_m(
    x: Tensor,
    y: Tensor,
    *,
    panels: Tensor,
    lists: Tensor,
    row_tiles: Tensor,
    outputs: Tensor,
    chunks_of_each: int,
    most_chunks: int,
    in_order: bool,
    bias: Tensor | None,
    activation: str,
    residual: Tensor | None,
    launch: SmallMLaunch,
) -> None:
    """Write Y = activation(X · Wᵀ + bias) + residual on the current stream of x's device, which must be current.

    Args:
        x: [M, K], 1 to 64 rows, float16, bfloat16 or float32, any strides below 2**30.
        y: [M, N], any strides; every element is written.
        panels, lists, row_tiles, outputs, chunks_of_each, most_chunks, in_order: those of `SmallMPackedWeight`.
        bias: [N] contiguous, float16, bfloat16 or float32, or None.
        residual: [M, N] in x's dtype, any strides, or None.
    Raises:
        RuntimeError: the launch failed.
    """
    m, k = x.shape
    width = outputs.shape[1]
    shared, blocks = launch.gather == "shared", column_blocks(m)
    packed = None if _side_by_side(x, 8 if shared else blocks) else x.new_empty(k, 8 * blocks)
    pointers = (x, packed, lists, panels, row_tiles, None if in_order else outputs, bias, residual, y)
    residual_strides = (0, 0) if residual is None else residual.stride()
    error = _function()(
        *(None if tensor is None else tensor.data_ptr() for tensor in pointers),
        x.stride(1),
        x.stride(0),
        *residual_strides,
        *y.stride(),
        _spanned_bytes(x),
        len(panels),
        _TYPES[x.dtype],
        0 if bias is None else _TYPES[bias.dtype],
        ACTIVATION_CODES[activation],
        m,
        y.shape[1],
        k,
        len(row_tiles),
        chunks_of_each,
        most_chunks,
        width,
        int(shared),
        launch.fragments,
        launch.splits,
        launch.warps,
        launch.stages,
        launch.stage_chunks,
        PDL_MODES.index(launch.pdl),
        PREFETCH_BYTES,
        torch.cuda.current_stream(x.device).cuda_stream,
    )
    if error:
        raise RuntimeError(f"gathered_small_m: CUDA error {error} at launch ({launch})")


PREFETCH_BYTES = 65_536  # of the weight that a block has brought into L2 while it waits, at most


def _side_by_side(x: Tensor, rows: int) -> bool:
    """Whether `rows` rows of one input can be loaded at once; one row is loaded from anywhere."""
    if rows == 1:
        return True
    alignment = min(16, rows * x.element_size())
    aligned = x.data_ptr() % alignment == 0 and x.stride(1) * x.element_size() % alignment == 0
    return x.stride(0) == 1 and aligned and x.shape[0] % rows == 0


def _spanned_bytes(x: Tensor) -> int:
    """Bytes from X's first element to its last, or 0 where it holds less than half of them."""
    spanned = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return spanned * x.element_size() if spanned <= 2 * x.numel() else 0


@functools.cache
def _function() -> ctypes._CFuncPtr:
    function = cuda_library.load(LIBRARY).sparsefront_gathered_small_m
    function.argtypes = [ctypes.c_void_p] * 9 + [ctypes.c_longlong] * 8 + [ctypes.c_int] * 18 + [ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function
