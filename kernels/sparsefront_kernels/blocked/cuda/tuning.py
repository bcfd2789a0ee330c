"""Launch parameters of the Hopper kernel: the search space, a performance model that orders it, and what was measured."""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sparsefront_kernels.blocked.cuda.packed_weight import HALF, K_BLOCK, BlockedCudaWeight
from sparsefront_kernels.blocked.cuda.parameters import (
    CLUSTERS,
    COLUMNS_OF_SPLIT,
    SPLITS,
    BlockedLaunch,
    clusters_of,
)
from sparsefront_kernels.common.wgmma_layout import HALVED_PANEL_BYTES
from sparsefront_kernels.gathered.sm90_schedule import ALL, schedule
from sparsefront_kernels.tuning import TunedLaunches

KERNEL, HALVED_KERNEL = "blocked_sm90", "blocked_2_4_sm90"
VERSION = 1  # raised when a change of the kernel makes old measurements useless

_RASTER_SWIZZLES = (ALL, 32, 8)
SPACE = (
    *(BlockedLaunch(cluster, swizzle) for cluster, swizzle in itertools.product(CLUSTERS, _RASTER_SWIZZLES)),
    *(BlockedLaunch(1, splits=splits) for splits in SPLITS),
)
_MOST_ROUNDS_OF_SPLIT = 2  # with more work than that, all blocks are busy without sharing

# Estimates for an H200, not measured: cycles of the launch, of a cluster's synchronization, of a tile, of one of its columns
# (epilogue), and of a k-block around its products; bytes that L2 gives an SM in a cycle.
_START, _CLUSTER_START, _TILE, _TILE_COLUMN, _K_BLOCK = 4500, 500, 700, 3.0, 70
_SPLIT = 1500  # of blocks that add up
_L2_BYTES = 45
_SHARED_BYTES = 128  # that shared memory gives and takes in a cycle
_CYCLES_PER_US = 1700


@dataclass(frozen=True)
class BlockedProblem:
    """What decides how fast launch parameters are.

    Args:
        m, k, n: of the product.
        box: inputs of a box.
        cta_tiles, panels: CTA tiles of two halves, and how many panels all of them have together.
        lengths: k-blocks of each CTA tile, most first.
        halved: whether panels hold two of every four inputs.
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
    def of(cls, packed: BlockedCudaWeight, m: int) -> "BlockedProblem":
        """Of a packed weight and m rows of X."""
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
        """Describes uneven lists: how many CTA tiles keep blocks, and how much longer than the mean the longest list is."""
        kept = [length for length in self.lengths if length]
        if not kept or self.lengths[0] - self.lengths[-1] <= 1:
            return ""
        return f"kept={len(kept)} longest={max(kept) * len(kept) / sum(kept):.1f} "

    @property
    def amount(self) -> float:
        """k-blocks of a CTA tile."""
        return sum(self.lengths) / max(1, self.cta_tiles)


def tile_cycles(k_blocks: int, columns: int, cluster: int, panels: float = 2.0, *, halved: bool = False) -> float:
    """Predicted cycles of a work tile of one block.

    Args:
        columns: rows of X.
        panels: of a k-block: 1 where one half alone uses it.
        halved: whether a panel holds two of every four inputs. Tensor cores then take half the time, in which shared memory
            cannot give each half its X: it binds.
    """
    panel_bytes = HALVED_PANEL_BYTES if halved else 2 * HALF * K_BLOCK
    row_bytes = 2 * K_BLOCK  # of X in a k-block
    products = 2 * panels * columns
    if halved:
        products = ((panels + 1) * row_bytes * columns + 2 * panels * panel_bytes) / _SHARED_BYTES
    loads = (row_bytes * columns + panel_bytes * panels / cluster) / _L2_BYTES
    return _TILE + _TILE_COLUMN * columns + k_blocks * (_K_BLOCK + max(products, loads))


@functools.lru_cache(maxsize=4096)
def predicted_us(problem: BlockedProblem, launch: BlockedLaunch, num_sms: int) -> float:
    """Coarse predicted latency: the work of the cluster that ends last."""
    panels = problem.panels / max(1, sum(problem.lengths))
    if launch.splits > 1:
        rounds = -(-_split_blocks(problem, launch) // (launch.splits * clusters_of(launch.splits, num_sms)))
        k_blocks = -(-max(problem.lengths, default=0) // launch.splits)
        cycles = rounds * (tile_cycles(k_blocks, COLUMNS_OF_SPLIT, 1, panels, halved=problem.halved) + _SPLIT)
        return (_START + _CLUSTER_START + cycles) / _CYCLES_PER_US
    clusters, rows = clusters_of(launch.cluster, num_sms), -(-problem.m // launch.cluster)
    dealt = schedule(problem.lengths, rows, clusters, launch.raster_swizzle)
    last = max(
        sum(
            tile_cycles(problem.lengths[tile], columns, launch.cluster, panels, halved=problem.halved)
            for tile, _, columns in dealt.tiles[begin:end]
        )
        for begin, end in pairwise(dealt.begins)
    )
    return (_START + _CLUSTER_START * (launch.cluster > 1) + last) / _CYCLES_PER_US


def candidates(problem: BlockedProblem, num_sms: int) -> Sequence[BlockedLaunch]:
    """The launches worth timing, best predicted first.

    Other orders of work where there are more CTA tiles than they hold, clusters where all of their blocks have rows of X, and
    shared k-blocks where there is too little work for the GPU.
    """

    def is_worth_timing(launch: BlockedLaunch) -> bool:
        if launch.splits > 1:
            return _split_blocks(problem, launch) <= _MOST_ROUNDS_OF_SPLIT * num_sms
        ordered = launch.raster_swizzle == ALL or launch.raster_swizzle < problem.cta_tiles
        return ordered and (launch.cluster == 1 or 64 * (launch.cluster // 2) < problem.m)

    return sorted(filter(is_worth_timing, SPACE), key=lambda launch: predicted_us(problem, launch, num_sms))


def _split_blocks(problem: BlockedProblem, launch: BlockedLaunch) -> int:
    """Of the grid."""
    return problem.cta_tiles * -(-problem.m // COLUMNS_OF_SPLIT) * launch.splits


def _launches(kernel: str) -> TunedLaunches:
    return TunedLaunches(
        kernel,
        VERSION,
        BlockedLaunch,
        describe=lambda packed, problem: BlockedProblem.of(packed, problem.m),
        worth_timing=candidates,
        untuned=lambda problem, num_sms: candidates(problem, num_sms)[0],
        similar=lambda problem: problem.shape_of_equal_lists,
    )


LAUNCHES, HALVED_LAUNCHES = _launches(KERNEL), _launches(HALVED_KERNEL)


def launches_of(problem: BlockedProblem) -> TunedLaunches:
    """What was measured for weights like these."""
    return HALVED_LAUNCHES if problem.halved else LAUNCHES
