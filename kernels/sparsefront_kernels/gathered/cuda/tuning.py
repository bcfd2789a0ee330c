"""Launch parameters of the Hopper kernel: the search space, what a launch counts for its cost, and what was measured."""

import itertools
from dataclasses import dataclass, replace

from sparsefront_kernels.common.wgmma_layout import is_halved
from sparsefront_kernels.gathered.cuda.packed_weight import CudaPackedWeight
from sparsefront_kernels.gathered.cuda.parameters import ALIGNMENT, CudaLaunch
from sparsefront_kernels.gathered.cuda.schedule import ALL, schedule
from sparsefront_kernels.performance_model.launch_costs import cuda_many_rows_us, cuda_us
from sparsefront_kernels.tuning import TunedLaunches

KERNEL, HALVED_KERNEL = "gathered_sm90", "gathered_2_4_sm90"
VERSION = 2  # raised when a change of the kernel makes old measurements useless

_RASTER_SWIZZLES = (64, 16, 4)  # the first is best for most large products
_WIDE_RASTER_SWIZZLE = 32  # 132 blocks then work on four times 256 columns: half of L2 for weights, half for rows of X
_HALVED_SWIZZLES = (_WIDE_RASTER_SWIZZLE, 8, 2)  # the kernel for many rows serves all M there
_SPLITS = (1, 2, 3, 4)
_STAGES = {(256, 1): 4, (128, 1): 6, (128, 2): 3, (64, 1): 8, (64, 2): 4}  # as many as fit: fewer were never faster

WIDE = CudaLaunch(256, 4, ALL, 1)  # the kernel for many rows makes its own schedule
SPACE = (WIDE,) + tuple(
    launch
    for (block_m, blocks_per_sm), raster_swizzle, splits, prefetch in itertools.product(
        _STAGES, _RASTER_SWIZZLES, _SPLITS, (False, True)
    )
    if block_m != WIDE.block_m
    and (
        launch := CudaLaunch(block_m, _STAGES[block_m, blocks_per_sm], raster_swizzle, blocks_per_sm, splits, prefetch)
    ).possible
)


@dataclass(frozen=True)
class CudaProblem:
    """What decides how fast launch parameters are.

    Args:
        m, k, n: of the product.
        cta_tiles, k_blocks: CTA tiles of two halves, and how many k-blocks all of them have together.
        lengths: k-blocks of each CTA tile, most first; empty: all alike.
        halved: whether panels hold two of every four inputs, as the kernel for many rows alone reads them.
    """

    m: int
    k: int
    n: int
    cta_tiles: int
    k_blocks: int
    lengths: tuple[int, ...] = ()
    halved: bool = False

    @classmethod
    def of(cls, packed: CudaPackedWeight, m: int) -> "CudaProblem":
        """Of a packed weight and m rows of X, which the kernel reads padded."""
        padded = -(-m // ALIGNMENT) * ALIGNMENT
        halved = is_halved(packed.panels)
        return cls(padded, packed.k, packed.n, len(packed.cta_tiles), len(packed.k_blocks), packed.lengths, halved)

    @property
    def shape(self) -> str:
        return f"{self._sizes}{self._lists}k_blocks="

    @property
    def shape_of_equal_lists(self) -> str:
        return f"{self._sizes}k_blocks="

    @property
    def _sizes(self) -> str:
        return f"m={self.m} k={self.k} n={self.n} "

    @property
    def _lists(self) -> str:
        """Describes uneven lists, which need other launches than equal ones: how many CTA tiles keep inputs, and how much
        longer than the mean the longest list is, in tenths. Layers of one network then share what was measured."""
        kept = [length for length in self.lengths if length]
        if not kept or self.lengths[0] - self.lengths[-1] <= 1:
            return ""
        return f"kept={len(kept)} longest={max(kept) * len(kept) / sum(kept):.1f} "

    @property
    def amount(self) -> float:
        """k-blocks of a CTA tile."""
        return self.k_blocks / max(1, self.cta_tiles)


def predicted_us(problem: CudaProblem, launch: CudaLaunch, num_sms: int) -> float:
    """By the launch level of the performance model."""
    if launch.wide:
        lengths = problem.lengths or (round(problem.amount),) * problem.cta_tiles
        return cuda_many_rows_us(schedule(lengths, problem.m, num_sms, launch.raster_swizzle).cycles)
    work_tiles = problem.cta_tiles * -(-problem.m // launch.block_m) * launch.splits
    return cuda_us(launch, work_tiles, problem.amount, num_sms)


def candidates(problem: CudaProblem, num_sms: int, *, slack: float = 1.4, most: int = 18) -> list[CudaLaunch]:
    """The launches worth timing, best predicted first: those predicted within `slack` of the best, `most` at most.

    The model does not predict how the rasterization order affects caches: other orders are tried with the two best only.
    """
    if problem.halved:
        return [
            WIDE,
            *(
                replace(WIDE, raster_swizzle=cta_tiles)
                for cta_tiles in _HALVED_SWIZZLES
                if cta_tiles < problem.cta_tiles
            ),
        ]
    predicted = {launch: predicted_us(problem, launch, num_sms) for launch in SPACE}
    bound = slack * min(predicted.values())
    worth = [
        launch for launch in SPACE if launch.raster_swizzle in (_RASTER_SWIZZLES[0], ALL) and predicted[launch] <= bound
    ]
    others = 2 * (len(_RASTER_SWIZZLES) - 1)
    worth = sorted(worth, key=lambda launch: predicted[launch])[: most - others]
    worth += [
        replace(best, raster_swizzle=raster_swizzle)
        for best in worth[:2]
        if best.block_m < problem.m and not best.wide
        for raster_swizzle in _RASTER_SWIZZLES[1:]
    ]
    found = sorted(worth, key=lambda launch: predicted[launch])
    if WIDE in found and problem.cta_tiles > _WIDE_RASTER_SWIZZLE:
        found.insert(found.index(WIDE) + 1, replace(WIDE, raster_swizzle=_WIDE_RASTER_SWIZZLE))
    return found


def _launches(kernel: str) -> TunedLaunches:
    return TunedLaunches(
        kernel,
        VERSION,
        CudaLaunch,
        describe=lambda packed, problem: CudaProblem.of(packed, problem.m),
        worth_timing=candidates,
        untuned=lambda problem, num_sms: candidates(problem, num_sms, slack=1.0)[0],
        similar=lambda problem: problem.shape_of_equal_lists,
    )


LAUNCHES, HALVED_LAUNCHES = _launches(KERNEL), _launches(HALVED_KERNEL)


def launches_of(problem: CudaProblem) -> TunedLaunches:
    """What was measured for weights like these."""
    return HALVED_LAUNCHES if problem.halved else LAUNCHES
