"""`blocked_sm90`: blocks of 64 outputs and more on the tensor cores of compute capability 9.0 (`csrc/blocked_sm90.cu`).

`blocked_2_4_sm90` is the same kernel on halved panels, and `sm90_convolution.py` launches it on images.
"""

import ctypes
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from sparsefront_kernels.blocked.pieces import UNIT, Costs, PieceTables, estimated_end, piece_tables, shares
from sparsefront_kernels.blocked.sm90_packing import (
    HALF,
    K_BLOCK,
    BlockedSm90Weight,
    block_unsupported_reason,
    box_of,
    dense_weight,
    pack_for_blocked_sm90,
)
from sparsefront_kernels.cuda.host_tables import keep_for_graphs
from sparsefront_kernels.cuda.launch import clusters_at_once, launch_kernel, was_read_before
from sparsefront_kernels.cuda.wgmma_layout import HALVED_PANEL_BYTES
from sparsefront_kernels.device_support import library_unsupported_reason
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.sm90_schedule import (
    ALL,
    COLUMN_BITS,
    MOST_SCHEDULES,
    WIDTHS,
    columns_unsupported_reason,
    schedule_tensors,
)
from sparsefront_kernels.kernel_op import kernel_entry
from sparsefront_kernels.operands import NO_EPILOGUE, Epilogue, aligned_by_input, is_loadable, loadable, run_length
from sparsefront_kernels.problem import LAYOUTS, X_FEATURE_MAJOR, Problem
from sparsefront_kernels.tuning import TunedLaunches

KERNEL, HALVED_KERNEL = "blocked_sm90", "blocked_2_4_sm90"
LIBRARY = "blocked_sm90"
VERSION = 2  # increment when a change of the kernel invalidates measurements


def multiply_blocked(
    x: Tensor, y: Tensor, packed: BlockedSm90Weight, epilogue: Epilogue, x_feature_major: bool, y_feature_major: bool
) -> None:
    """`multiply` of `kernel_entry`; X and the residual are copied if the kernel cannot read them as they are."""
    m = x.shape[1 if x_feature_major else 0]
    operand, by_input = _x_operand(x, feature_major=x_feature_major, box=packed.box)
    problem = BlockedProblem.of(packed, m)
    launches = launches_of(problem)
    launch_blocked_sm90(
        operand,
        y,
        packed,
        epilogue.with_residual(residual_operand),
        m=m,
        launch=launches.launch_for(problem, x.device),
        quick_schedule=not launches.timed_alike(problem, x.device),
        x_feature_major=by_input,
        y_feature_major=y_feature_major,
    )


def _x_operand(x: Tensor, *, feature_major: bool, box: int) -> tuple[Tensor, bool]:
    """X as the kernel reads it, and whether its rows are inputs.

    Depends on X's actual strides: a transposed view is free.
    """
    by_row, by_input = (x.t(), x) if feature_major else (x, x.t())
    if is_loadable(by_row):
        return by_row, False
    if box == K_BLOCK and is_loadable(by_input):
        return by_input, True
    if box == K_BLOCK and feature_major:
        return aligned_by_input(by_input.contiguous(), feature_major=True), True
    return loadable(by_row), False


def residual_operand(residual: Tensor) -> Tensor:
    """The residual as the kernel reads it: 16-byte aligned rows whose vectorized reads stay in bounds."""
    rows, columns = residual.shape
    run = run_length(residual.dtype)
    if is_loadable(residual) and columns % run == 0:
        return residual
    return residual.new_empty(rows, -(-columns // run) * run)[:, :columns].copy_(residual)


CLUSTERS = (1, 2, 4)  # numbers of blocks
_REACHED_BY_FOUR = 0.85  # fraction of SMs usable by clusters of four: not every GPC has a multiple of four


@dataclass(frozen=True, order=True)
class BlockedLaunch:
    """Launch parameters.

    Args:
        cluster: 1, 2 or 4 blocks that compute the same outputs for different rows of X; each multicasts a part of the weights.
        raster_swizzle: number of CTA tiles that process all rows of X before the next ones begin.
        cut: 0, or rows of X per tile (64, 128, 192 or 256), which may then be cut into pieces to balance the blocks; see
            `pieces`.
        pdl: programmatic dependent launch: blocks may start before the previous kernel has ended. Before waiting for it they
            only read their tables and the weight's list of k-blocks, if an earlier launch has read it.
    """

    cluster: int
    raster_swizzle: int = ALL
    cut: int = 0
    pdl: bool = True


def clusters_of(cluster: int, num_sms: int) -> int:
    """Approximate number of concurrent clusters; the library can query it for the current GPU."""
    return max(1, int(num_sms * (_REACHED_BY_FOUR if cluster > 2 else 1.0)) // cluster)


def work_tensors(
    lengths: tuple[int, ...],
    m: int,
    launch: BlockedLaunch,
    clusters_at_once: Callable[[int], int],
    device: torch.device,
    *,
    quick: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Work tiles of every cluster of blocks.

    Args:
        lengths: k-blocks of each CTA tile, stored consecutively, descending.
        m: rows of X.
        clusters_at_once: blocks per cluster → number of concurrent clusters.
        quick: see `schedule`.
    Returns:
        work, int32 [tiles, 4]: CTA tile, its first k-block, its number of k-blocks, and the first row of X divided by the
        blocks that share the weights, with a block's number of rows / 64 - 1 in the upper four bits; begins, int32
        [clusters + 1]; firsts, int32 [clusters, 4]: a copy of each cluster's first tile, read without an indirection.
    Raises:
        ValueError: the number of rows does not fit into a word of `work`.
    """
    # a cluster's rows of X are adjacent: the schedule treats it as one block with a fraction of them
    rows = -(-m // launch.cluster)
    return schedule_tensors(lengths, rows, clusters_at_once(launch.cluster), launch.raster_swizzle, device, quick=quick)


@functools.lru_cache(maxsize=MOST_SCHEDULES)
def cut_tensors(
    lengths: tuple[int, ...],
    m: int,
    launch: BlockedLaunch,
    panels: float,
    halved: bool,
    clusters: int,
    device: torch.device,
) -> PieceTables:
    """Pieces of every cluster, for a launch with cutting.

    Args:
        panels: per k-block, on average.
        others: as in `work_tensors`, and the number of concurrent clusters.
    Raises:
        ValueError: the number of rows does not fit into a word of `work`.
    """
    reason = columns_unsupported_reason(m)
    if reason:
        raise ValueError(f"a schedule {reason}")
    columns = _columns_of_tiles(m, launch)
    work_shares = shares(lengths, columns, clusters, _costs(launch, panels, halved, clusters * launch.cluster))
    places = [column * launch.cut | (launch.cut // 64 - 1) << COLUMN_BITS for column in range(columns)]
    return piece_tables(work_shares, lengths, range(len(lengths)), places, launch.cluster * launch.cut, device)


def _columns_of_tiles(m: int, launch: BlockedLaunch) -> int:
    return -(-m // (launch.cluster * launch.cut))


def launch_blocked_sm90(
    x: Tensor,
    y: Tensor,
    packed: BlockedSm90Weight,
    epilogue: Epilogue = NO_EPILOGUE,
    *,
    m: int,
    launch: BlockedLaunch,
    quick_schedule: bool = False,
    x_feature_major: bool,
    y_feature_major: bool,
    relu_last: bool = False,
    images: ctypes.Structure | None = None,
    panels: Tensor | None = None,
) -> None:
    """Compute Y on the current stream of x's device, which must be current.

    Sums with bias are rounded to Y's dtype before the activation, and again when a residual is added.

    Args:
        x: [M, K], or [K, M] if x_feature_major, which requires boxes of 64 inputs; rows contiguous and 16-byte aligned.
        y: [M, N], likewise, or [N, M] if y_feature_major, rows contiguous. Fully overwritten.
        epilogue: rows of its residual are contiguous and 16-byte aligned.
        m: valid rows of X, if x has more.
        quick_schedule: see `schedule`.
        relu_last: apply a ReLU after adding the residual.
        images: `sm90_convolution.Images` if x is their pixels, and X is its im2col matrix; else None.
        panels: replaces those of `packed`.
    Raises:
        RuntimeError: the launch failed.
    """
    tables = (packed.lengths, m, launch)
    units = cut = sums = None
    if launch.cut:
        share = _panels_of_k_block(len(packed.panels), packed.lengths)
        clusters = clusters_at_once(LIBRARY, launch.cluster, x.device)
        pieces = keep_for_graphs(packed.k_blocks, cut_tensors(*tables, share, packed.halved, clusters, x.device))
        work, begins, firsts = pieces.work, pieces.begins, pieces.firsts
        if len(pieces.cut):
            units, cut = pieces.units, pieces.cut
            sums = x.new_empty(pieces.units_in_all * UNIT * 2 * HALF, dtype=torch.float32)
    else:
        together = partial(clusters_at_once, LIBRARY, device=x.device)
        whole = work_tensors(*tables, together, x.device, quick=quick_schedule)
        work, begins, firsts = keep_for_graphs(packed.k_blocks, whole)
    panels = packed.panels if panels is None else panels
    tensors = (x, panels, packed.k_blocks, work, begins, firsts, packed.outputs, units, cut, sums)
    launch_kernel(
        LIBRARY,
        x.device,
        (*tensors, epilogue.bias, epilogue.residual, y),
        (x.stride(0), epilogue.residual_stride, y.stride(0)),
        (
            *epilogue.codes,
            x_feature_major,
            not y_feature_major,
            x.dtype == torch.bfloat16,
            *(m, packed.n, packed.k, packed.box),
            packed.halved,
            launch.cluster,
            len(begins) - 1,
            0 if cut is None else len(cut),
            launch.cluster * launch.cut // UNIT,
            launch.pdl and was_read_before(packed.k_blocks),
            relu_last,
        ),
        images=(images,),
    )


_RASTER_SWIZZLES = (ALL, 32, 8)
SPACE = (
    *(BlockedLaunch(cluster, swizzle) for cluster, swizzle in itertools.product(CLUSTERS, _RASTER_SWIZZLES)),
    *(BlockedLaunch(cluster, cut=width) for cluster, width in itertools.product(CLUSTERS, WIDTHS)),
)
_MOST_CUT = 6  # tiles per cluster up to which cutting is tried; more tiles balance without it

# Fitted to 1,000 launches on an H200 with 256, 1024 and 4096 rows, with a mean error of 11 %: cycles of the launch, of a
# cluster's synchronization, of a tile, of a tile column (epilogue), and of a k-block besides its products; L2 bytes per SM and
# cycle.
_START, _CLUSTER_START, _TILE, _TILE_COLUMN, _K_BLOCK = 4000, 500, 1100, 2.5, 340
_PIECE_COLUMN = 4.5  # cycles per column of a piece
_ADD_UP, _SUM_BYTES = 3300, 12  # of the reduction kernel; bytes of sums that an SM writes and reads per cycle
_L2_BYTES = 45
_SHARED_BYTES = 128  # shared memory bandwidth per cycle
_CYCLES_PER_US = 1700


@dataclass(frozen=True)
class BlockedProblem:
    """The properties of a problem that determine the speed of launch parameters.

    Args:
        m, k, n: of the product.
        box: inputs per box.
        cta_tiles, panels: number of CTA tiles (of two halves), and their total number of panels.
        lengths: k-blocks of each CTA tile, descending.
        halved: panels have two of every four inputs.
    """

    m: int
    k: int
    n: int
    box: int
    cta_tiles: int
    panels: int
    lengths: tuple[int, ...]
    halved: bool = False

    @classmethod
    def of(cls, packed: BlockedSm90Weight, m: int) -> "BlockedProblem":
        """The problem of a packed weight and m rows of X."""
        return cls(
            m, packed.k, packed.n, packed.box, len(packed.outputs), len(packed.panels), packed.lengths, packed.halved
        )

    @property
    def shape(self) -> str:
        return f"{self._sizes}{self._lists}k_blocks="

    @property
    def shape_of_equal_lists(self) -> str:
        return f"{self._sizes}k_blocks="

    @property
    def _sizes(self) -> str:
        return f"m={self.m} k={self.k} n={self.n} box={self.box} "

    @property
    def _lists(self) -> str:
        """Key of uneven lists: number of nonempty CTA tiles, and the ratio of the longest list to the mean."""
        nonempty = [length for length in self.lengths if length]
        if not nonempty or self.lengths[0] - self.lengths[-1] <= 1:
            return ""
        return f"kept={len(nonempty)} longest={max(nonempty) * len(nonempty) / sum(nonempty):.1f} "

    @property
    def amount(self) -> float:
        """k-blocks per CTA tile."""
        return sum(self.lengths) / max(1, self.cta_tiles)


def tile_cycles(k_blocks: int, columns: int, cluster: int, panels: float = 2.0, *, halved: bool = False) -> float:
    """Predicted cycles of a work tile of one block.

    Args:
        columns: rows of X.
        panels: per k-block: 1 if only one half uses it.
        halved: a panel has two of every four inputs. Tensor cores then take half the time, and shared memory, which must
            deliver X to each half, becomes the bottleneck.
    """
    panel_bytes = HALVED_PANEL_BYTES if halved else 2 * HALF * K_BLOCK
    row_bytes = 2 * K_BLOCK  # of X per k-block
    products = 2 * panels * columns
    if halved:
        products = ((panels + 1) * row_bytes * columns + 2 * panels * panel_bytes) / _SHARED_BYTES
    loads = (row_bytes * columns + panel_bytes * panels / cluster) / _L2_BYTES
    return _TILE + _TILE_COLUMN * columns + k_blocks * (_K_BLOCK + max(products, loads))


def _panels_of_k_block(panels: int, lengths: tuple[int, ...]) -> float:
    return panels / max(1, sum(lengths))


def _costs(launch: BlockedLaunch, panels: float, halved: bool, num_sms: int) -> Costs:
    """Costs in cycles of tiles that may be cut."""
    empty, one = (tile_cycles(count, launch.cut, launch.cluster, panels, halved=halved) for count in (0, 1))
    sum_bytes = launch.cluster * launch.cut * 2 * HALF * 4
    adding = _ADD_UP, sum_bytes / (num_sms * _SUM_BYTES)
    return Costs(empty, _TILE + _PIECE_COLUMN * launch.cut, one - empty, adding)


@functools.lru_cache(maxsize=4096)
def predicted_us(problem: BlockedProblem, launch: BlockedLaunch, num_sms: int) -> float:
    """Coarse latency prediction from the work of the last cluster to end."""
    panels = _panels_of_k_block(problem.panels, problem.lengths)
    start = _START + _CLUSTER_START * (launch.cluster > 1)
    if launch.cut:
        columns, clusters = _columns_of_tiles(problem.m, launch), clusters_of(launch.cluster, num_sms)
        costs = _costs(launch, panels, problem.halved, num_sms)
        return (start + estimated_end(problem.lengths, columns, clusters, costs)) / _CYCLES_PER_US
    clusters, rows = clusters_of(launch.cluster, num_sms), -(-problem.m // launch.cluster)
    last = min(_last_cycles(problem, rows, clusters, width, launch.cluster, panels) for width in WIDTHS)
    return (start + last) / _CYCLES_PER_US


def _last_cycles(problem: BlockedProblem, rows: int, clusters: int, width: int, cluster: int, panels: float) -> float:
    """Cycles of the last cluster to end, if all tiles have `width` rows: the longest tile, or an equal share of the work plus
    half a tile if clusters have unequal numbers of tiles."""
    empty, one = (tile_cycles(count, width, cluster, panels, halved=problem.halved) for count in (0, 1))
    columns = -(-rows // width)
    tiles, k_blocks = columns * len(problem.lengths), columns * sum(problem.lengths)
    mean = empty + (one - empty) * k_blocks / max(1, tiles)
    longest = empty + (one - empty) * max(problem.lengths, default=0)
    share = tiles * mean / clusters + mean / 2 if tiles > clusters else mean
    return max(longest, share)


def candidates(problem: BlockedProblem, num_sms: int) -> Sequence[BlockedLaunch]:
    """The launches worth timing, best predicted first.

    Includes other work orders if there are enough CTA tiles, clusters if all of their blocks have rows of X, and cutting if
    there are few tiles.
    """

    def is_worth_timing(launch: BlockedLaunch) -> bool:
        if launch.cut:
            columns = _columns_of_tiles(problem.m, launch)
            few = columns * problem.cta_tiles <= _MOST_CUT * clusters_of(launch.cluster, num_sms)
            return few and columns * launch.cluster * launch.cut - problem.m < launch.cut
        ordered = launch.raster_swizzle == ALL or launch.raster_swizzle < problem.cta_tiles
        return ordered and (launch.cluster == 1 or 64 * (launch.cluster // 2) < problem.m)

    return sorted(filter(is_worth_timing, SPACE), key=lambda launch: predicted_us(problem, launch, num_sms))


def _launches(kernel: str) -> TunedLaunches:
    return TunedLaunches(
        kernel,
        VERSION,
        BlockedLaunch,
        describe=lambda packed, problem: BlockedProblem.of(packed, problem.m),
        worth_timing=candidates,
        predicted_us=predicted_us,
        similar=lambda problem: problem.shape_of_equal_lists,
    )


LAUNCHES, HALVED_LAUNCHES = _launches(KERNEL), _launches(HALVED_KERNEL)


def launches_of(problem: BlockedProblem) -> TunedLaunches:
    """Measured launches for similar weights."""
    return HALVED_LAUNCHES if problem.halved else LAUNCHES


def blocked_sm90_unsupported_reason(stored: SparseFormat, problem: Problem) -> str | None:
    """Why the kernel is unsupported: it needs instructions of compute capability 9.0."""
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return f"takes float16 or bfloat16, not {problem.dtype}"
    reason = block_unsupported_reason(stored.block) or columns_unsupported_reason(problem.m)
    if reason:
        return reason
    if problem.layout in X_FEATURE_MAJOR and (box := box_of(stored.block[1])) < K_BLOCK:
        return (
            f"takes boxes of {K_BLOCK} inputs where X is feature-major, not of {box}: "
            "there the gathered kernel reads single inputs as fast"
        )
    return library_unsupported_reason(problem, LIBRARY)


ENTRY = kernel_entry(
    KERNEL,
    "blocked",
    weight=BlockedSm90Weight,
    multiply=multiply_blocked,
    dense=dense_weight,
    pack=pack_for_blocked_sm90,
    unsupported=blocked_sm90_unsupported_reason,
    layouts=LAYOUTS,
    fuses_epilogue=True,
    tunable=LAUNCHES,
)
