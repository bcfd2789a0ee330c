"""`gathered_sm90`: 16-bit products on the tensor cores of compute capability 9.0.

Two kernels read the same packed weight. In the cluster kernel (csrc/gathered_sm90_cluster.cu) a block computes 64 or 128 columns
of Y, and the blocks of a cluster may share a tile's inputs. The persistent kernel (csrc/gathered_sm90_persistent.cu) computes
up to 256 columns at once, in an order scheduled on the host: whole tiles for many rows (`sm90_schedule.py`), or tiles whose
inputs are shared by blocks, if there are few or their lists are uneven (`sm90_sharing.py`).
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from sparsefront_kernels import operands
from sparsefront_kernels.cuda.host_tables import keep_for_graphs
from sparsefront_kernels.cuda.launch import launch_kernel, num_sms
from sparsefront_kernels.cuda.wgmma_layout import is_halved
from sparsefront_kernels.device_support import library_unsupported_reason
from sparsefront_kernels.epilogue import accumulation_dtype, with_epilogue
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.sm90_packing import (
    K_BLOCK_MMA_TILES,
    Sm90PackedWeight,
    dense_weight,
    pack_for_sm90,
    tile_unsupported_reason,
)
from sparsefront_kernels.gathered.sm90_schedule import ALL, columns_unsupported_reason, last_cycles, schedule_tensors
from sparsefront_kernels.gathered.sm90_sharing import likely_cycles, shared_tables
from sparsefront_kernels.kernel_op import kernel_entry
from sparsefront_kernels.operands import NO_EPILOGUE, Epilogue, aligned_by_input, aligned_like, deliver
from sparsefront_kernels.problem import LAYOUTS, Problem
from sparsefront_kernels.tuning import TunedLaunches

KERNEL, HALVED_KERNEL = "gathered_sm90", "gathered_2_4_sm90"
CLUSTER_LIBRARY, PERSISTENT_LIBRARY = "gathered_sm90_cluster", "gathered_sm90_persistent"
VERSION = 2  # increment when a change of the kernel invalidates measurements

# Fitted to measurements on an H200, in microseconds. Of the cluster kernel by (columns per block, blocks per SM): of a launch, of
# a work tile beyond its k-blocks, of a k-block.
_CLUSTER = {
    (128, 1): (2.5, 1.6, 0.43),
    (128, 2): (3.3, 2.3, 0.84),
    (64, 1): (2.1, 1.0, 0.33),
    (64, 2): (1.2, 1.5, 0.66),
}
# Extra time, for 128 columns, when blocks share a work tile's k-blocks: they wait for one another, and send their sums.
_SPLIT = {1: 0.0, 2: 3.0, 3: 4.0, 4: 6.0}
_REACHED_BY_CLUSTERS = 0.85  # fraction of SMs used by clusters of three or more blocks
_PREFETCH_GAIN, _PREFETCH_COST = 0.3, 0.06  # per launch; per further k-block of a block
_PERSISTENT, _CYCLES_PER_US = 2.7, 1700  # per launch of the persistent kernel; of busy tensor cores
ALIGNMENT = 8  # elements: X is read and Y written 16 bytes at a time
SHARED_BYTES = 233_472  # per SM
FIXED_BYTES = 5_888  # per block: reserved by the driver, barriers, lists, and alignment
# compiled (columns, blocks per SM) -> minimum number of stages: at least one per group of producer warps
_FEWEST_STAGES = {(64, 1): 2, (64, 2): 2, (128, 1): 4, (128, 2): 2, (256, 1): 4}


@dataclass(frozen=True, order=True)
class Sm90Launch:
    """Launch parameters.

    Args:
        block_m: columns of Y per block: 64 or 128; 256: the persistent kernel.
        stages: of the pipeline, 2 to 8.
        raster_swizzle: number of CTA tiles whose blocks are neighbors in the work order; in the persistent kernel, those that
            process all columns before the next ones begin.
        blocks_per_sm: concurrent blocks per SM.
        splits: blocks, 1 to 8, that share the kept inputs of one work tile and reduce through distributed shared memory.
        prefetch: prefetch the first weights into L2 while the previous kernel still runs; helps if that takes a good part of
            the time, and hurts if memory is busy.
        pdl: programmatic dependent launch: blocks may start before the previous kernel has ended, and wait for it before
            reading anything.
        shares: run the persistent kernel with tiles of at most `block_m` columns, 128 or 256, whose k-blocks are shared to
            balance blocks.
    """

    block_m: int
    stages: int
    raster_swizzle: int
    blocks_per_sm: int
    splits: int = 1
    prefetch: bool = False
    pdl: bool = True
    shares: bool = False

    @property
    def persistent(self) -> bool:
        """Whether the persistent kernel runs; of the other parameters it only uses `raster_swizzle`, unless work is shared, and
        `pdl`."""
        return self.shares or self.block_m == 256

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: X and the weights of both halves, 64 inputs per stage."""
        return FIXED_BYTES + self.stages * 128 * (self.block_m + 128)

    @property
    def _sums_bytes(self) -> int:
        """Bytes of the sums that split blocks exchange, in memory of their stages."""
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
            and (not self.shares or self in SHARED)
        )


def multiply_sm90(
    x: Tensor, y: Tensor, packed: Sm90PackedWeight, epilogue: Epilogue, x_feature_major: bool, y_feature_major: bool
) -> None:
    """Write Y; see `kernel_entry`.

    The kernel reads aligned [K, M]: other layouts, an M that is not a multiple of 8 and unaligned rows cost a copy of X. Costs a
    copy of Y in feature-major layout if M is not a multiple of 8, and in row-major layout if outputs are dropped or permuted (not
    `whole_runs`): computed outputs are then written compactly, feature-major, and a second kernel makes rows of them.
    """
    m = x.shape[1 if x_feature_major else 0]
    by_input = aligned_by_input(x, feature_major=x_feature_major)
    padded_m = by_input.shape[1]
    problem = Sm90Problem.of(packed, padded_m)
    launches = launches_of(problem)
    launch, quick_schedule = launches.launch_for(problem, x.device), not launches.timed_alike(problem, x.device)
    if not y_feature_major and not packed.whole_runs:
        sums = x.new_empty(packed.compact.numel(), padded_m)
        nonempty = len(packed.compact)
        if nonempty:
            computed = replace(
                packed,
                n=packed.compact.numel(),
                cta_tiles=packed.cta_tiles[:nonempty],
                outputs=packed.compact,
                lengths=packed.lengths[:nonempty],
                k_blocks_of_each=0,
            )
            launch_gathered_sm90(by_input, sums, computed, NO_EPILOGUE, launch, quick_schedule=quick_schedule)
        _expand(sums, packed.compact_index, y, epilogue)
        return
    direct = padded_m == m or not y_feature_major
    target = y if direct else x.new_empty(packed.n, padded_m)
    launch_gathered_sm90(
        by_input,
        target,
        packed,
        epilogue.with_residual(partial(aligned_like, target)),
        launch,
        quick_schedule=quick_schedule,
        y_row_major=not y_feature_major,
    )
    if not direct:
        deliver(target, y, feature_major=y_feature_major)


def _expand(sums: Tensor, index: Tensor, y: Tensor, epilogue: Epilogue) -> None:
    """Write rows of Y, activation(sums + bias) + residual, with zero sums for outputs that are not computed.

    Args:
        sums: [computed outputs, at least M].
        index: int32 [N], the row of each output in `sums`, or -1.
    """
    bias, activation, residual = epilogue.bias, epilogue.activation, epilogue.residual
    if not operands.TRITON_IS_INSTALLED:  # with more passes over memory
        computed = (
            sums[index.clamp(min=0).long(), : y.shape[0]] if len(sums) else sums.new_zeros(len(index), y.shape[0])
        )
        rows = torch.where(index >= 0, computed.t().to(accumulation_dtype(y.dtype)), 0.0)
        y.copy_(with_epilogue(rows, bias, activation, residual))
        return
    from sparsefront_kernels.gathered.triton_spmm import expand_rows

    if residual is not None and residual.stride(1) != 1:
        residual = residual.contiguous()
    expand_rows(sums, index, y, bias, activation, residual)


def launch_gathered_sm90(
    x: Tensor,
    y: Tensor,
    packed: Sm90PackedWeight,
    epilogue: Epilogue,
    launch: Sm90Launch,
    *,
    quick_schedule: bool = False,
    y_row_major: bool = False,
) -> None:
    """Compute Y[N, M] = activation(W · X[K, M] + bias) + residual on the current stream of x's device, which must be current.

    Args:
        x: [K, M] with M contiguous and 16-byte aligned rows; M a multiple of 8.
        y: [N, M], likewise; or [M, N] if y_row_major, likewise, with at most M rows. Fully overwritten.
        packed: must have `whole_runs` if y_row_major.
        epilogue: its residual is of y's shape and aligned like y. The persistent kernel rounds sums to Y's dtype before the
            activation, and again when a residual is added.
        quick_schedule: of the persistent kernel, see `schedule`.
    Raises:
        RuntimeError: the launch failed.
    """
    added, strides = (epilogue.bias, epilogue.residual, y), (x.stride(0), epilogue.residual_stride, y.stride(0))
    kinds = (*epilogue.codes, int(y_row_major), int(x.dtype == torch.bfloat16))
    m, columns = x.shape[1], y.shape[0 if y_row_major else 1]
    if not launch.persistent:
        panels, k_blocks, cta_tiles = packed.panels, packed.k_blocks, packed.cta_tiles
        work_tiles = len(cta_tiles) * -(-m // launch.block_m)
        # a cluster that splits k-blocks has one work tile; others process several, as many as run at once
        clusters = work_tiles if launch.splits > 1 else min(work_tiles, launch.blocks_per_sm * num_sms(x.device))
        numbers = (
            packed.k_blocks_of_each,
            len(k_blocks) - packed.k_blocks_of_each * len(cta_tiles),
            *kinds,
            m,
            columns,
            len(cta_tiles),
            launch.block_m,
            launch.stages,
            launch.raster_swizzle,
            launch.splits,
            int(launch.pdl),
            _mma_tiles_of_each_half(panels, k_blocks, cta_tiles) if launch.prefetch else -1,
            launch.blocks_per_sm,
            clusters,
        )
        pointers = (x, panels, k_blocks, cta_tiles, packed.outputs, *added)
        launch_kernel(CLUSTER_LIBRARY, x.device, pointers, strides, numbers, launch)
        return
    blocks, shared, partials = num_sms(x.device), None, None
    if launch.shares:
        tables = keep_for_graphs(packed.k_blocks, shared_tables(packed.lengths, m, blocks, launch.block_m, x.device))
        work, begins, shared = tables.work, tables.begins, tables.shared
        partials = x.new_empty(tables.parts, packed.outputs.shape[1] * launch.block_m, dtype=torch.float32)
    else:
        swizzle = launch.raster_swizzle
        whole = schedule_tensors(packed.lengths, m, blocks, swizzle, x.device, quick=quick_schedule)
        work, begins, _ = keep_for_graphs(packed.k_blocks, whole)
    pointers = (x, packed.panels, packed.k_blocks, work, begins, shared, partials, packed.outputs, *added)
    shared_tiles = 0 if shared is None else len(shared)
    sizes = (int(is_halved(packed.panels)), m, columns, launch.block_m, len(begins) - 1, shared_tiles, int(launch.pdl))
    launch_kernel(PERSISTENT_LIBRARY, x.device, pointers, strides, (*kinds, *sizes), launch)


def _mma_tiles_of_each_half(panels: Tensor, k_blocks: Tensor, cta_tiles: Tensor) -> int:
    """Number of MMA tiles per half of each CTA tile if halves use all of them, as tiles of at least 128 do; else 0.

    Only a prefetch hint: a wrong value prefetches other panels.
    """
    mma_tiles, rest = divmod(len(panels), 2 * len(cta_tiles))
    return mma_tiles if rest == 0 and -(-mma_tiles // K_BLOCK_MMA_TILES) * len(cta_tiles) == len(k_blocks) else 0


_RASTER_SWIZZLES = (64, 16, 4)  # the first is best for most large products
# 132 blocks then work on four times 256 columns: half of L2 for weights, half for rows of X.
_PERSISTENT_RASTER_SWIZZLE = 32
_HALVED_SWIZZLES = (_PERSISTENT_RASTER_SWIZZLE, 8, 2)  # for halved panels the persistent kernel serves all M
_SPLITS = (1, 2, 3, 4)
_STAGES = {(256, 1): 4, (128, 1): 6, (128, 2): 3, (64, 1): 8, (64, 2): 4}  # as many as fit: fewer were never faster

PERSISTENT = Sm90Launch(256, 4, ALL, 1)  # the persistent kernel has its own schedule
SHARED = (Sm90Launch(256, 4, ALL, 1, shares=True), Sm90Launch(128, 6, ALL, 1, shares=True))
SPACE = (PERSISTENT, *SHARED) + tuple(
    launch
    for (block_m, blocks_per_sm), raster_swizzle, splits, prefetch in itertools.product(
        _STAGES, _RASTER_SWIZZLES, _SPLITS, (False, True)
    )
    if block_m != PERSISTENT.block_m
    and (
        launch := Sm90Launch(block_m, _STAGES[block_m, blocks_per_sm], raster_swizzle, blocks_per_sm, splits, prefetch)
    ).possible
)
_CLEARLY, _CLEARLY_UNMEASURED = (
    1.06,
    1.15,
)  # required predicted advantage of shared tiles, for more rows than were measured
# Rows of X above which launches measured for equal lists are better than predictions for uneven ones.
_MOST_PREDICTED = 1024
_UNORDERED_SPACE = {  # raster swizzle of the cluster kernel → launches that differ in other parameters
    raster_swizzle: tuple(launch for launch in SPACE if launch.raster_swizzle in (raster_swizzle, ALL))
    for raster_swizzle in _RASTER_SWIZZLES
}


@dataclass(frozen=True)
class Sm90Problem:
    """The properties of a problem that determine the speed of launch parameters.

    Args:
        m, k, n: of the product.
        cta_tiles, k_blocks: number of CTA tiles (of two halves), and their total number of k-blocks.
        lengths: k-blocks of each CTA tile, descending; empty: all equal.
        halved: panels have two of every four inputs, which only the persistent kernel supports.
    """

    m: int
    k: int
    n: int
    cta_tiles: int
    k_blocks: int
    lengths: tuple[int, ...] = ()
    halved: bool = False

    @classmethod
    def of(cls, packed: Sm90PackedWeight, m: int) -> "Sm90Problem":
        """The problem of a packed weight and m rows of X (padded)."""
        padded = -(-m // ALIGNMENT) * ALIGNMENT
        halved = is_halved(packed.panels)
        return cls(padded, packed.k, packed.n, len(packed.cta_tiles), len(packed.k_blocks), packed.lengths, halved)

    @property
    def shape(self) -> str:
        return f"{self._sizes}{self._lists}k_blocks="

    @property
    def similar_shape(self) -> str:
        """Key of problems whose launches are used if none was measured for similar lists."""
        return f"{self._sizes}k_blocks=" if self.m > _MOST_PREDICTED else self.shape

    @property
    def uneven(self) -> bool:
        """Whether lists differ by more than one k-block."""
        return bool(self.lengths) and self.lengths[0] - self.lengths[-1] > 1

    @property
    def _sizes(self) -> str:
        return f"m={self.m} k={self.k} n={self.n} "

    @property
    def _lists(self) -> str:
        """Key of uneven lists, which need other launches than equal ones: number of nonempty CTA tiles, and ratio of the
        longest list to the mean, in tenths. Layers of one network thus share measurements."""
        nonempty = [length for length in self.lengths if length]
        if not nonempty or not self.uneven:
            return ""
        return f"kept={len(nonempty)} longest={max(nonempty) * len(nonempty) / sum(nonempty):.1f} "

    @property
    def amount(self) -> float:
        """k-blocks per CTA tile."""
        return self.k_blocks / max(1, self.cta_tiles)


def predicted_us(problem: Sm90Problem, launch: Sm90Launch, num_sms: int) -> float:
    """Coarse latency prediction, to rank launches."""
    lengths = problem.lengths or (round(problem.amount),) * problem.cta_tiles
    if launch.shares:
        clearly = _CLEARLY if problem.m <= _MOST_PREDICTED else _CLEARLY_UNMEASURED
        cycles = likely_cycles(lengths, problem.m, num_sms, launch.block_m)
        return clearly * (_PERSISTENT + cycles / _CYCLES_PER_US)
    if launch.persistent:
        return _PERSISTENT + last_cycles(lengths, problem.m, num_sms, launch.raster_swizzle) / _CYCLES_PER_US
    return _cluster_us(launch, lengths, -(-problem.m // launch.block_m), num_sms)


def _cluster_us(launch: Sm90Launch, lengths: Sequence[int], columns: int, num_sms: int) -> float:
    """Rounds of blocks, each with a start, its k-blocks and its stores; a round lasts as long as its longest tile.

    Args:
        lengths: k-blocks of each CTA tile, most first.
        columns: work tiles of a CTA tile.
    """
    start, tail, k_block = _CLUSTER[launch.block_m, launch.blocks_per_sm]
    reached = _REACHED_BY_CLUSTERS if launch.splits > 2 else 1.0
    at_once = max(1, int(num_sms * reached * launch.blocks_per_sm) // launch.splits)
    group = launch.raster_swizzle  # of CTA tiles; its first has the longest list of those that a round takes
    firsts = [lengths[tile // (group * columns) * group] for tile in range(0, len(lengths) * columns, at_once)]
    k_blocks = sum(-(-first // launch.splits) for first in firsts)
    predicted = start + len(firsts) * (tail + _SPLIT[launch.splits] * launch.block_m / 128) + k_blocks * k_block
    if launch.prefetch:
        predicted += _PREFETCH_COST * max(0.0, k_blocks - launch.stages) - _PREFETCH_GAIN
    return predicted


def candidates(problem: Sm90Problem, num_sms: int, *, slack: float = 1.4, most: int = 18) -> list[Sm90Launch]:
    """The launches worth timing, best predicted first: those within `slack` of the best prediction, at most `most`.

    The model does not predict cache effects of the rasterization order: other orders are only tried with the two best.
    """
    if problem.halved:
        return [
            PERSISTENT,
            *(
                replace(PERSISTENT, raster_swizzle=cta_tiles)
                for cta_tiles in _HALVED_SWIZZLES
                if cta_tiles < problem.cta_tiles
            ),
        ]
    first, *others = _raster_swizzles(problem)
    predicted = {launch: predicted_us(problem, launch, num_sms) for launch in _UNORDERED_SPACE[first]}
    bound = slack * min(predicted.values())
    worth = sorted((launch for launch in predicted if predicted[launch] <= bound), key=predicted.__getitem__)
    worth = worth[: most - 2 * len(others)]
    of_others = [
        replace(best, raster_swizzle=raster_swizzle)
        for best in [launch for launch in worth if not launch.persistent][:2]
        if best.block_m < problem.m
        for raster_swizzle in others
    ]
    launches = sorted([*worth, *of_others], key=lambda launch: predicted_us(problem, launch, num_sms))
    if PERSISTENT in launches and problem.cta_tiles > _PERSISTENT_RASTER_SWIZZLE:
        launches.insert(launches.index(PERSISTENT) + 1, replace(PERSISTENT, raster_swizzle=_PERSISTENT_RASTER_SWIZZLE))
    return launches


def best_predicted(problem: Sm90Problem, num_sms: int) -> Sm90Launch:
    """The first of `candidates`, for calls that cannot wait for tuning."""
    if problem.halved:
        return PERSISTENT
    every = _UNORDERED_SPACE[_raster_swizzles(problem)[0]]
    if problem.cta_tiles * -(-problem.m // 128) >= 4 * num_sms:
        every = tuple(launch for launch in every if launch.splits == 1)  # whole tiles occupy all blocks
    return min(every, key=lambda launch: predicted_us(problem, launch, num_sms))


def _raster_swizzles(problem: Sm90Problem) -> tuple[int, ...]:
    """Swizzles of the cluster kernel, best first: uneven lists are processed longest first, which a wide swizzle disturbs."""
    return _RASTER_SWIZZLES[::-1] if problem.uneven else _RASTER_SWIZZLES


def _serves(launch: Sm90Launch, measured: int, m: int) -> bool:
    """Whether a launch measured for `measured` rows of X is used for m rows: sharing depends on the number of tiles."""
    few, many = sorted((measured, m))
    return few > _MOST_PREDICTED and many <= 2 * few and not launch.shares


def _launches(kernel: str) -> TunedLaunches:
    return TunedLaunches(
        kernel,
        VERSION,
        Sm90Launch,
        describe=lambda packed, problem: Sm90Problem.of(packed, problem.m),
        worth_timing=candidates,
        untuned=best_predicted,
        predicted_us=None if kernel == HALVED_KERNEL else predicted_us,
        similar=lambda problem: problem.similar_shape,
        serves=_serves,
    )


LAUNCHES, HALVED_LAUNCHES = _launches(KERNEL), _launches(HALVED_KERNEL)


def launches_of(problem: Sm90Problem) -> TunedLaunches:
    """Measured launches for similar weights."""
    return HALVED_LAUNCHES if problem.halved else LAUNCHES


def sm90_unsupported_reason(problem: Problem, other_reason: str | None = None) -> str | None:
    """Why the kernels are unsupported: they need 16-bit types and instructions of compute capability 9.0.

    Args:
        other_reason: returned if the dtype is supported.
    """
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return f"takes float16 or bfloat16, not {problem.dtype}"
    return (
        other_reason
        or columns_unsupported_reason(problem.m)
        or library_unsupported_reason(problem, CLUSTER_LIBRARY)
        or library_unsupported_reason(problem, PERSISTENT_LIBRARY)
    )


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    return sm90_unsupported_reason(problem, tile_unsupported_reason(stored.tile))


ENTRY = kernel_entry(
    KERNEL,
    "gathered",
    weight=Sm90PackedWeight,
    multiply=multiply_sm90,
    dense=dense_weight,
    pack=pack_for_sm90,
    unsupported=_unsupported,
    layouts=LAYOUTS,
    fuses_epilogue=True,
    tunable=LAUNCHES,
)
