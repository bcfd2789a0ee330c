"""`gathered_small_m`: up to 64 rows of X on tensor cores, in any layout; ../csrc/gathered_small_m.cu."""

import itertools
from dataclasses import dataclass, replace
from math import ceil

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.cuda.launch import (
    HOPPER,
    TYPE_CODES,
    GpuLimits,
    find_gpu_limits,
    launch_kernel,
    was_read_before,
)
from sparsefront_kernels.device_support import library_unsupported_reason
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.format import GatheredFormat, in_rows
from sparsefront_kernels.kernel_op import kernel_entry
from sparsefront_kernels.operands import Epilogue
from sparsefront_kernels.problem import LAYOUTS, Problem
from sparsefront_kernels.tuning import TunedLaunches

KERNEL = "gathered_small_m"  # with X feature-major; and its library
KERNEL_ROW_X = "gathered_small_m_row_x"
VERSION = 1  # increment when a change of the kernel invalidates measurements
MOST_CANDIDATES = 18
CHUNK = 16  # kept inputs per tensor-core instruction
FRAGMENT = 16  # outputs per instruction
WIDTHS = (128, 64, 32, 16)  # outputs per row tile
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MOST_INPUTS = 65_535  # lists have 16 bits, and the last value marks a missing input
MOST_ROWS = 64
FEW_ROWS = 8  # up to which blocks share the outputs without inputs, and a small X is copied to shared memory
MOST_X_BYTES = 49_152  # size of an X that is copied completely
STATIC_BYTES = 2_560
MOST_STAGES = 8
PREFETCH_BYTES = 131_072  # maximum of a block's weights beyond its rings that it prefetches into L2 while waiting
GATHERS = ("lanes", "shared")
# Fitted to measurements on an H200 (weights of 1024² to 5120 × 20480, M of 1 to 64) within some 12 %, in microseconds: of a
# launch; of what takes 1 µs to stream; of what takes 1 µs to gather from L2; of a turn of a ring; of a further wave of blocks; of
# a cluster, and of each of its further blocks; of 10 000 sums that an SM adds up; of eight rows of X.
_COSTS = {
    "lanes": (3.2, 1.16, 0.80, 0.18, 3.2, 0.16, 0.074, 0.32, 0.20),
    "shared": (3.1, 1.10, 1.31, 0.10, 3.5, 0.38, 0.060, 0.14, 0.33),
}
_STREAMED, _GATHERED = 4.25e6, 5.5e6  # bytes per microsecond
_FEWEST_BLOCKS = 60  # that stream at the full rate
PDL_MODES = ("off", "early", "prefetch", "prefetch_late")


@dataclass(frozen=True, eq=False)
class SmallMPackedWeight:
    """The packed weight.

    A row tile is a tile, a part of a wide one (repeating the tile's list), or several tiles narrower than 16, with merged lists
    and zero-filled weights. A row tile's kept inputs come in chunks of 16.

    Args:
        n, k: outputs and inputs of the weight.
        width: outputs of a row tile, one of `WIDTHS`.
        panels: [chunks, 16 * width] in the weight's dtype, row tile by row tile: fragments of 16 inputs × 16 outputs, 8
            elements to each of 32 lanes. Lane 4r + q holds, of outputs r and r + 8, the items q, 4 + q, 8 + q and 12 + q
            of the chunk's list, in the order of the left operand of mma.m16n8k16, or, in two runs of 4 elements a lane,
            of two mma.m16n8k8 for float32.
        lists: int16 [chunks, 16], interpreted as unsigned: the inputs of a chunk, padded with 0xFFFF; position 4q + i holds
            item 4i + q.
        row_tiles: int32 [row_tiles, 2]: first chunk and number of chunks; most chunks first, so that long row tiles do not start
            last. Outputs that no tile stores form row tiles without chunks, so that each element of Y has one writer.
        outputs: int32 [row_tiles, width], padded with -1.
        chunks_of_each: the number of chunks if all row tiles have equally many, stored consecutively; else -1.
        most_chunks: maximum per row tile.
        kept_row_tiles: number of row tiles with chunks, which come first.
        in_order: whether `outputs` counts up to n.
    """

    n: int
    k: int
    width: int
    panels: Tensor
    lists: Tensor
    row_tiles: Tensor
    outputs: Tensor
    chunks_of_each: int
    most_chunks: int
    kept_row_tiles: int
    in_order: bool


def pack_for_small_m(stored: GatheredFormat) -> SmallMPackedWeight:
    """Pack the weight, on the format's device.

    Args:
        stored: float16, bfloat16 or float32, of at most `MOST_INPUTS` inputs.
    Raises:
        ValueError: another dtype, or more inputs.
    """
    (n, k), device = stored.shape, stored.device
    reason = dtype_unsupported_reason(stored.dtype) or inputs_unsupported_reason(k)
    if reason:
        raise ValueError(f"gathered: {reason}")
    outputs, keeps = _row_tiles(stored)
    width = outputs.shape[1]
    count = -(-keeps.sum(dim=1) // CHUNK)  # chunks of a row tile
    order = count.argsort(descending=True, stable=True)
    outputs, keeps, count = outputs[order], keeps[order], count[order]
    first = count.cumsum(0) - count
    row_tile, inputs = keeps.nonzero(as_tuple=True)
    kept_each = torch.bincount(row_tile, minlength=len(keeps))
    rank = torch.arange(len(row_tile), device=device) - (kept_each.cumsum(0) - kept_each)[row_tile]
    lists = torch.full((int(count.sum()), CHUNK), -1, dtype=torch.int64, device=device)
    lists[first[row_tile] + rank // CHUNK, rank % CHUNK] = inputs
    owner = torch.repeat_interleave(torch.arange(len(count), device=device), count)
    flat = outputs.flatten()
    counted = torch.arange(flat.numel(), dtype=torch.int32, device=device)
    return SmallMPackedWeight(
        n=n,
        k=k,
        width=width,
        panels=_panels(stored.to_dense(), outputs[owner], lists),
        lists=lists.view(-1, 4, 4).transpose(1, 2).reshape(-1, CHUNK).to(torch.int16),
        row_tiles=torch.stack([first, count], dim=1).to(torch.int32),
        outputs=outputs,
        chunks_of_each=int(count[0]) if len(count) and bool((count == count[0]).all()) else -1,
        most_chunks=int(count[0]) if len(count) else 0,
        kept_row_tiles=int((count > 0).sum()),
        in_order=torch.equal(flat, torch.where(counted < n, counted, -1)),
    )


def row_tile_width(tile: int) -> int:
    """The widest of `WIDTHS` that stores a tile with the least padding."""
    return min(WIDTHS, key=lambda width: (-(-tile // width) * width, -width))


def _row_tiles(stored: GatheredFormat) -> tuple[Tensor, Tensor]:
    """Outputs, int32 [row_tiles, width] padded with -1, and the inputs they keep, bool [row_tiles, K]."""
    keeps, tile, width = stored.keeps, stored.tile, row_tile_width(stored.tile)
    together = max(1, FRAGMENT // tile)  # tiles narrower than a fragment are merged
    outputs = in_rows(stored.output_index, tile * together)
    outputs = pad(outputs, (0, -outputs.shape[1] % width), value=-1)
    parts = outputs.shape[1] // width  # of a wide tile
    keeps = pad(keeps, (0, 0, 0, -len(keeps) % together)).view(-1, together, keeps.shape[1]).any(dim=1)
    outputs, keeps = outputs.view(-1, width), keeps.repeat_interleave(parts, dim=0)
    held = (outputs >= 0).any(dim=1)  # the last tile may be too narrow for its last parts
    dropped = in_rows(stored.dropped_outputs, width)
    return torch.cat([outputs[held], dropped]), pad(keeps[held], (0, 0, 0, len(dropped)))


def _panels(weight: Tensor, outputs: Tensor, lists: Tensor) -> Tensor:
    """[chunks, 16 * width] from weight [N, K], outputs [chunks, width] and lists [chunks, 16]."""
    chunks, width = outputs.shape
    valid = (outputs >= 0)[:, None, :] & (lists >= 0)[:, :, None]
    panels = torch.where(valid, weight[outputs.clamp(min=0).long()[:, None, :], lists.clamp(min=0)[:, :, None]], 0)
    # item 8a + 4b + q of the list, output 16f + 8h + r
    parts = panels.view(chunks, 2, 2, 4, width // FRAGMENT, 2, 8)  # a, b, q, f, h, r
    if weight.dtype == torch.float32:
        fragments = parts.permute(0, 4, 1, 6, 3, 2, 5)  # f, a, lane 4r + q, element 2b + h
    else:
        fragments = parts.permute(0, 4, 6, 3, 1, 5, 2)  # f, lane 4r + q, element 4a + 2h + b
    return fragments.reshape(chunks, CHUNK * width)


def dense_weight(packed: SmallMPackedWeight) -> Tensor:
    """Unpack W [N, K] without synchronizing."""
    panels, row_tiles, n, k = packed.panels, packed.row_tiles, packed.n, packed.k
    chunks, device = panels.shape[0], panels.device
    chunk = torch.arange(chunks, device=device, dtype=row_tiles.dtype)
    # row tiles without chunks come last
    owner = torch.searchsorted(row_tiles[:, 0].contiguous(), chunk, right=True) - 1
    if panels.dtype == torch.float32:
        parts = panels.view(chunks, packed.width // FRAGMENT, 2, 8, 4, 2, 2).permute(0, 2, 5, 4, 1, 6, 3)
    else:
        parts = panels.view(chunks, packed.width // FRAGMENT, 8, 4, 2, 2, 2).permute(0, 4, 6, 3, 1, 5, 2)
    weights = parts.reshape(chunks, CHUNK, packed.width)  # item, output
    inputs = packed.lists.view(chunks, 4, 4).transpose(1, 2).reshape(chunks, CHUNK).long()
    inputs = torch.where(inputs == -1, k, inputs & 0xFFFF)
    dense = panels.new_zeros(n + 1, k + 1)  # the last row and column take padding
    dense[packed.outputs.long()[owner][:, None, :], inputs[:, :, None]] = weights
    return dense[:n, :k]


def dtype_unsupported_reason(dtype: torch.dtype) -> str | None:
    """Why weights of this dtype are unsupported, or None."""
    return None if dtype in DTYPES else f"takes float16, bfloat16 or float32, not {dtype}"


def inputs_unsupported_reason(k: int, limits: GpuLimits = HOPPER) -> str | None:
    """Why this many inputs are unsupported, or None; where clusters cannot share it, a list takes shared memory."""
    most = MOST_INPUTS if limits.clusters else limits.block_bytes // 8
    return None if k <= most else f"takes up to {most} inputs, not {k}"


def rows_unsupported_reason(m: int) -> str | None:
    """Why this many rows of X are unsupported, or None."""
    return None if m <= MOST_ROWS else f"takes up to {MOST_ROWS} rows of X, not {m}"


def multiply_small_m(
    x: Tensor, y: Tensor, packed: SmallMPackedWeight, epilogue: Epilogue, x_feature_major: bool, y_feature_major: bool
) -> None:
    """Write Y for up to 64 rows of X; see `kernel_entry`.

    For M > 8 the kernel reads contiguous rows (feature-major, M a multiple of 2, 4 or 8): otherwise a first small kernel packs X.
    """
    rows, out = (x.t() if x_feature_major else x), (y.t() if y_feature_major else y)
    if max(rows.stride()) >= 2**30:  # the kernel has 32-bit byte offsets between inputs
        rows = rows.contiguous()
    problem = SmallMProblem.of(packed, rows.shape[0], x_feature_major=x_feature_major)
    launch = (LAUNCHES if x_feature_major else ROW_X_LAUNCHES).launch_for(problem, x.device)
    launch_gathered_small_m(
        rows, out, packed, epilogue.with_residual(Tensor.t) if y_feature_major else epilogue, launch
    )


@dataclass(frozen=True, order=True)
class SmallMLaunch:
    """Launch parameters.

    Args:
        gather: how X is gathered. "lanes": each lane gathers its own elements into registers; the warps of a block share
            the chunks. "shared": separate warps gather into shared memory, and eight other warps share the outputs of a
            row tile; 16-bit only.
        fragments: of 16 outputs each, per warp: 1, 2, 4 or 8.
        splits: blocks of a cluster, 1 to 8, that share the chunks of a row tile and reduce through distributed shared memory.
        warps: consumer warps per block, 1 to 8; 8 for "shared".
        stages: slots of a ring, 2 to 8. "lanes": every warp has a ring with about 4 KB per slot. "shared": the block has
            one, with `stage_chunks` chunks per slot.
        stage_chunks: see `stages`; unused for "lanes".
        pdl: programmatic dependent launch. "off": none. "early": starts while the previous kernel still runs, fills its rings
            with the weight, and waits before reading X. "prefetch": also prefetches more of the weight into L2 meanwhile.
            "prefetch_late": also lets the next kernel start only after requesting all of its weight.
    """

    gather: str
    fragments: int
    splits: int
    warps: int
    stages: int
    stage_chunks: int = 0
    pdl: str = "prefetch"

    def warp_split_k(self, width: int) -> int:
        """Warps that share the chunks of a work tile."""
        return 8 * FRAGMENT * self.fragments // width if self.gather == "shared" else self.warps

    def slot_chunks(self, m: int, width: int, element_bytes: int) -> int:
        """Chunks per slot of a ring."""
        if self.gather == "shared":
            return max(self.stage_chunks, self.warp_split_k(width))
        return max(1, 16 // element_bytes // max(self.fragments, column_blocks(m)))

    def turns(self, chunks: int, m: int, width: int, element_bytes: int) -> int:
        """Number of slots that a ring processes for this many chunks of a block."""
        slot = self.slot_chunks(m, width, element_bytes)
        if self.gather == "shared":
            return -(-chunks // slot)
        return -(-chunks // (self.warps * min(slot, -(-chunks // self.warps))))

    def shared_bytes(self, m: int, width: int, element_bytes: int, most_chunks: int) -> int:
        """Shared memory of a block: rings, later reused for sums, and lists."""
        blocks, slot = column_blocks(m), self.slot_chunks(m, width, element_bytes)
        lists = 2 * CHUNK * -(-most_chunks // self.splits)
        if self.gather == "shared":
            stage = slot * (CHUNK * element_bytes * width + 16 * CHUNK * blocks)
            return STATIC_BYTES + lists + max(self.stages * stage, 33 * width * blocks * self.warp_split_k(width))
        ring = self.stages * slot * CHUNK * element_bytes * FRAGMENT * self.fragments
        return STATIC_BYTES + lists + self.warps * max(ring, 528 * self.fragments * blocks)

    def blocks_at_once(self, m: int, width: int, element_bytes: int, most_chunks: int) -> int:
        """Approximate number of blocks per SM."""
        threads = 384 if self.gather == "shared" else 32 * self.warps
        registers = 128 if self.fragments * column_blocks(m) * element_bytes <= 32 else 255
        by_memory = 233_472 // (1024 + self.shared_bytes(m, width, element_bytes, most_chunks))
        return max(1, min(by_memory, 65_536 // (threads * registers)))

    def possible(
        self, m: int, width: int, element_bytes: int = 2, most_chunks: int = 0, limits: GpuLimits = HOPPER
    ) -> bool:
        """Whether the launch supports row tiles of this width and `most_chunks` chunks, for m rows of 2- or 4-byte elements."""
        shared = self.gather == "shared"
        return (
            self.gather in GATHERS
            and self.fragments in (1, 2, 4, 8)
            and width % (FRAGMENT * self.fragments) == 0
            and self.fragments * column_blocks(m) * element_bytes <= 64  # the sums fit into registers
            and 1 <= self.splits <= (8 if limits.clusters else 1)
            and self.fragments <= 2 * self.warps <= 16
            and 2 <= self.stages <= MOST_STAGES
            and self.pdl in PDL_MODES
            and (not shared or (element_bytes == 2 and self.warps == 8 and self.stage_chunks >= 1))
            and self.shared_bytes(m, width, element_bytes, most_chunks) <= limits.block_bytes
        )


def column_blocks(m: int) -> int:
    """Blocks of eight rows of X per warp: 1, 2, 4 or 8."""
    return 1 if m <= 8 else 2 if m <= 16 else 4 if m <= 32 else 8


def launch_gathered_small_m(
    x: Tensor, y: Tensor, packed: SmallMPackedWeight, epilogue: Epilogue, launch: SmallMLaunch
) -> None:
    """Write Y = activation(X · Wᵀ + bias) + residual on the current stream of x's device, which must be current.

    Args:
        x: [M, K], 1 to 64 rows, float16, bfloat16 or float32, any strides below 2**30.
        y: [M, N], any strides; fully overwritten.
        epilogue: its residual is [M, N], any strides.
    Raises:
        RuntimeError: the launch failed.
    """
    m, k = x.shape
    shared, blocks = launch.gather == "shared", column_blocks(m)
    packed_x = None if _side_by_side(x, 8 if shared else blocks) else x.new_empty(k, 8 * blocks)
    outputs, residual = None if packed.in_order else packed.outputs, epilogue.residual
    parts = (packed.panels, packed.lists, packed.row_tiles, packed.outputs)
    residual_strides = (0, 0) if residual is None else residual.stride()
    launch_kernel(
        KERNEL,
        x.device,
        (x, packed_x, packed.lists, packed.panels, packed.row_tiles, outputs, epilogue.bias, residual, y),
        (x.stride(1), x.stride(0), *residual_strides, *y.stride(), _spanned_bytes(x), len(packed.panels)),
        (
            TYPE_CODES[x.dtype],
            *epilogue.codes,
            m,
            y.shape[1],
            k,
            len(packed.row_tiles),
            _row_tiles_with_blocks(packed, m),
            packed.chunks_of_each,
            packed.most_chunks,
            packed.width,
            int(shared),
            launch.fragments,
            launch.splits,
            launch.warps,
            launch.stages,
            launch.stage_chunks,
            PDL_MODES.index(launch.pdl if was_read_before(*parts) else "off"),
            PREFETCH_BYTES,
        ),
        launch,
    )


def _row_tiles_with_blocks(packed: SmallMPackedWeight, m: int) -> int:
    """Number of row tiles with their own blocks; those after them keep no input."""
    return max(1, packed.kept_row_tiles) if m <= FEW_ROWS else len(packed.row_tiles)


def _side_by_side(x: Tensor, rows: int) -> bool:
    """Whether `rows` rows of an input can be loaded at once; a single row always can."""
    if rows == 1:
        return True
    alignment = min(16, rows * x.element_size())
    aligned = x.data_ptr() % alignment == 0 and x.stride(1) * x.element_size() % alignment == 0
    return x.stride(0) == 1 and aligned and x.shape[0] % rows == 0


def _spanned_bytes(x: Tensor) -> int:
    """Bytes from X's first element to its last; 0 if X has less than half of them."""
    spanned = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return spanned * x.element_size() if spanned <= 2 * x.numel() else 0


_SPLITS = (1, 2, 3, 4, 6, 8)
SPACE = tuple(
    SmallMLaunch("lanes", fragments, splits, warps, stages)
    for fragments, splits, warps, stages in itertools.product((1, 2, 4, 8), _SPLITS, (4, 8), (2, 4))
) + tuple(
    SmallMLaunch("shared", fragments, splits, 8, stages, stage_chunks)
    for fragments, splits, stages, stage_chunks in itertools.product((1, 2, 4), _SPLITS, (2, 4), (2, 4, 8))
)


@dataclass(frozen=True)
class SmallMProblem:
    """The properties of a problem that determine the speed of launch parameters.

    Args:
        m, k, n: of the product.
        width: outputs per row tile.
        row_tiles, chunks: numbers of them; row tiles without their own blocks are not counted.
        most_chunks: maximum per row tile.
        element_bytes: of X, W and Y.
        x_feature_major: whether X is [K, M], so that rows of an input are loaded together.
        pruned: whether there are row tiles without their own blocks.
    """

    m: int
    k: int
    n: int
    width: int
    row_tiles: int
    chunks: int
    most_chunks: int
    element_bytes: int = 2
    x_feature_major: bool = True
    pruned: bool = False

    @classmethod
    def of(cls, packed: SmallMPackedWeight, m: int, *, x_feature_major: bool) -> "SmallMProblem":
        """The problem of a packed weight and m rows of X."""
        return cls(
            m=m,
            k=packed.k,
            n=packed.n,
            width=packed.width,
            row_tiles=_row_tiles_with_blocks(packed, m),
            chunks=len(packed.panels),
            most_chunks=packed.most_chunks,
            element_bytes=packed.panels.element_size(),
            x_feature_major=x_feature_major,
            pruned=_row_tiles_with_blocks(packed, m) < len(packed.row_tiles),
        )

    @property
    def shape(self) -> str:
        kept_field = f"kept={self.row_tiles} " if self.pruned else ""
        return f"m={self.m} k={self.k} n={self.n} width={self.width} bytes={self.element_bytes} {kept_field}chunks="

    @property
    def amount(self) -> float:
        """Chunks per row tile."""
        return self.chunks / max(1, self.row_tiles)


_REACHED_BY_CLUSTERS = 0.85  # fraction of SMs used by clusters of three or more blocks
_SMALL_BYTES = 3 << 20  # for smaller weights the next kernel may start at once without delaying this one's stream


def predicted_us(problem: SmallMProblem, launch: SmallMLaunch, num_sms: int) -> float:
    """Coarse latency prediction in a stream of such kernels, to rank launches."""
    outputs = problem.width if launch.gather == "shared" else FRAGMENT * launch.fragments  # of a block
    blocks = problem.row_tiles * (problem.width // outputs) * launch.splits
    chunks = max(1, ceil(problem.amount / launch.splits))  # of a block
    at_once = launch.blocks_at_once(problem.m, problem.width, problem.element_bytes, problem.most_chunks)
    waves = ceil(blocks / (num_sms * at_once))
    inputs = blocks * chunks * CHUNK
    stream_us = inputs * outputs * problem.element_bytes / _STREAMED * max(1, _FEWEST_BLOCKS / blocks)
    gather_us = inputs * max(32, problem.m * problem.element_bytes) / _GATHERED
    turns = launch.turns(chunks, problem.m, problem.width, problem.element_bytes) * waves
    sums = outputs * problem.m * launch.warp_split_k(problem.width) * ceil(blocks / num_sms)
    splits, rows = launch.splits, column_blocks(problem.m)
    terms = (1, stream_us, gather_us, turns, waves - 1, splits > 1, splits - 1, sums / 1e4, rows)
    return sum(cost * term for cost, term in zip(_COSTS[launch.gather], terms, strict=True))


def _waves(problem: SmallMProblem, launch: SmallMLaunch, num_sms: int) -> int:
    """Waves of blocks of "lanes" launches."""
    blocks = problem.row_tiles * (problem.width // (FRAGMENT * launch.fragments)) * launch.splits
    x_bytes = problem.k * problem.m * problem.element_bytes
    rings = launch.shared_bytes(problem.m, problem.width, problem.element_bytes, problem.most_chunks)
    held = 1024 + rings + (x_bytes if x_bytes <= MOST_X_BYTES else 0)
    reached = 1.0 if launch.splits <= 2 else _REACHED_BY_CLUSTERS
    return ceil(blocks / (max(1, min(2, HOPPER.sm_bytes // held)) * num_sms * reached))


def candidates(
    problem: SmallMProblem, num_sms: int, *, limits: GpuLimits = HOPPER, most: int = MOST_CANDIDATES
) -> list[SmallMLaunch]:
    """The launches worth timing, best predicted first; the first few also with the other `pdl` modes."""
    worth = [launch for launch in SPACE if possible(problem, launch, limits)]
    small = problem.chunks * CHUNK * problem.width * problem.element_bytes < _SMALL_BYTES
    first = "prefetch" if small else "prefetch_late"
    best = sorted(worth, key=lambda launch: predicted_us(problem, launch, num_sms))[:most]
    if problem.pruned and not small and problem.element_bytes == 2:
        # as many blocks as run concurrently, with the longest copies: within 1 to 12 % of the fastest (H200, M of 1 and 4)
        first, by_warp = "prefetch", [launch for launch in worth if launch.gather == "lanes" and launch.warps == 8]
        by_warp.sort(key=lambda one: (_waves(problem, one, num_sms), -one.fragments, -one.splits, one.stages))
        best = by_warp[:most]
    best = [replace(launch, pdl=first) for launch in best]
    others = [replace(launch, pdl=way) for launch in best[:3] for way in PDL_MODES[1:] if way != first]
    return (best[: most - len(others)] + others)[:most] if most > len(others) else best[:most]


def possible(problem: SmallMProblem, launch: SmallMLaunch, limits: GpuLimits = HOPPER) -> bool:
    """Whether the launch supports the problem."""
    return launch.possible(problem.m, problem.width, problem.element_bytes, problem.most_chunks, limits)


def _launches(kernel: str, *, x_feature_major: bool) -> TunedLaunches:
    return TunedLaunches(
        kernel,
        VERSION,
        SmallMLaunch,
        describe=lambda packed, problem: SmallMProblem.of(packed, problem.m, x_feature_major=x_feature_major),
        worth_timing=candidates,
        limited=True,
    )


LAUNCHES = _launches(KERNEL, x_feature_major=True)
ROW_X_LAUNCHES = _launches(KERNEL_ROW_X, x_feature_major=False)  # row-major X is read differently


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    """Why the kernel is unsupported: it supports few rows."""
    reason = (
        rows_unsupported_reason(problem.m)
        or dtype_unsupported_reason(problem.dtype)
        or inputs_unsupported_reason(problem.k, find_gpu_limits(problem.device))
    )
    return reason or library_unsupported_reason(problem, KERNEL)


ENTRY = kernel_entry(
    KERNEL,
    "gathered",
    weight=SmallMPackedWeight,
    multiply=multiply_small_m,
    dense=dense_weight,
    pack=pack_for_small_m,
    unsupported=_unsupported,
    layouts=LAYOUTS,
    fuses_epilogue=True,
    tunable=LAUNCHES,
    row_x_tunable=ROW_X_LAUNCHES,
    most_rows=lambda packed: MOST_ROWS,
)
