"""`gathered_simt`: float32 products on CUDA cores, for tiles that divide 32 or are multiples of it.

The kernel, csrc/gathered_simt.cu, is feature-major; `by_feature` brings operands of other layouts into its form.
"""

import functools
import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefront_kernels.cuda.launch import HOPPER, GpuLimits, launch_kernel, num_sms
from sparsefront_kernels.device_support import library_unsupported_reason
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.format import GatheredFormat, cut_into_cta_tiles, width_unsupported_reason
from sparsefront_kernels.kernel_op import kernel_entry
from sparsefront_kernels.operands import Epilogue, by_feature, run_length
from sparsefront_kernels.problem import LAYOUTS, Problem
from sparsefront_kernels.tuning import TunedLaunches

KERNEL = "gathered_simt"  # also the name of its library
VERSION = 1  # increment when a change of the kernel invalidates measurements
MOST_CANDIDATES = 18
WIDTHS = (128, 64, 32)  # outputs per block
FIXED_BYTES = 1_024 + 768  # per block: reserved by the driver, barriers, lists of outputs
CONSUMER_WARPS = 4
# Fitted to measurements on an H200, in microseconds: of a launch; of a block beyond its products, by columns per thread; of a
# further block that shares a work tile.
_LAUNCH, _TAIL, _SPLIT = 3.0, {16: 3.0, 8: 2.0}, 0.7
# Factors on the time of products: shorter rows of X are slower to read; clusters of more than two blocks leave SMs idle.
_WARP_SPLIT_K, _LARGE_CLUSTER = {1: 1.0, 2: 1.04, 4: 1.13}, 1.25
# Products per microsecond of one SM by its number of blocks, by columns per thread
_RATE = {16: (150e3, 200e3), 8: (110e3, 165e3, 175e3)}
MOST_STAGES, MOST_SPLITS = 16, 8


@dataclass(frozen=True, eq=False)
class SimtPackedWeight:
    """The packed weight.

    A tile of the kernel is a part of a wide tile of the format, or several narrow ones with merged lists, filled with zeros.

    Args:
        n, k: outputs and inputs of the weight.
        panels: float32 [kept inputs of all tiles, width]: weights of a kept input for the outputs of its tile.
        kept: int32 [kept inputs of all tiles], ascending within a tile.
        tiles: int32 [tiles, 2]: first kept input and number of them, possibly 0; longest first, so that long tiles do not
            start last.
        outputs: int32 [tiles, width], padded with -1. Every output of the weight is in one tile.
        kept_of_each: the number of kept inputs if it is the same for all tiles, else 0.
    """

    n: int
    k: int
    panels: Tensor
    kept: Tensor
    tiles: Tensor
    outputs: Tensor
    kept_of_each: int

    @property
    def width(self) -> int:
        """Outputs of a tile."""
        return self.outputs.shape[1]


def tile_unsupported_reason(tile: int) -> str | None:
    """Why the kernel's tiles cannot be cut from tiles of this width, or None."""
    return width_unsupported_reason(tile, WIDTHS[-1])


def pack_for_simt(stored: GatheredFormat) -> SimtPackedWeight:
    """Pack the weight, on the format's device.

    Raises:
        ValueError: `tile_unsupported_reason` rejects the tile width.
    """
    reason = tile_unsupported_reason(stored.tile)
    if reason:
        raise ValueError(f"gathered: {reason}")
    width = next((width for width in WIDTHS if stored.tile % width == 0), WIDTHS[-1])
    outputs, keeps = cut_into_cta_tiles(stored, width)
    order = keeps.sum(dim=1).argsort(descending=True, stable=True)
    outputs, keeps = outputs[order], keeps[order]
    count = keeps.sum(dim=1)
    tile, inputs = keeps.nonzero(as_tuple=True)
    rows = outputs[tile].long()  # [kept inputs, width]
    panels = stored.to_dense()[rows.clamp(min=0), inputs[:, None]]
    return SimtPackedWeight(
        n=stored.shape[0],
        k=stored.shape[1],
        panels=panels.where(rows >= 0, torch.zeros((), dtype=panels.dtype, device=panels.device)),
        kept=inputs.to(torch.int32),
        tiles=torch.stack([count.cumsum(0) - count, count], dim=1).to(torch.int32),
        outputs=outputs,
        kept_of_each=int(count[0]) if (count == count[0]).all() else 0,
    )


def dense_weight(packed: SimtPackedWeight) -> Tensor:
    """Unpack W [N, K] without synchronizing."""
    device, tiles = packed.panels.device, packed.tiles
    rank = torch.arange(packed.kept.shape[0], device=device, dtype=tiles.dtype)
    tile = torch.searchsorted(tiles[:, 0].contiguous(), rank, right=True) - 1
    dense = packed.panels.new_zeros(packed.n + 1, packed.k)  # the last row takes padding (output -1)
    dense[packed.outputs.long()[tile], packed.kept.long()[:, None]] = packed.panels
    return dense[: packed.n]


def multiply_simt(
    x: Tensor, y: Tensor, packed: SimtPackedWeight, epilogue: Epilogue, x_feature_major: bool, y_feature_major: bool
) -> None:
    """`multiply` of `kernel_entry`."""
    with by_feature(x, y, epilogue, x_feature_major, y_feature_major) as (x, y, epilogue):
        launch = LAUNCHES.launch_for(SimtProblem.of(packed, x.shape[1]), x.device)
        launch_gathered_simt(x, y, packed, epilogue, launch)


@dataclass(frozen=True, order=True)
class SimtLaunch:
    """Launch parameters.

    Args:
        columns: of Y per thread (with 8 outputs): 8 or 16.
        warp_split_k: warps, 1, 2 or 4, that share the kept inputs of one work tile and reduce through shared memory.
        stages: of the pipeline, 2 to 16.
        splits: blocks, 1 to 8, that share them likewise.
    """

    columns: int
    warp_split_k: int
    stages: int
    splits: int = 1

    def block_m(self, width: int) -> int:
        """Columns of Y per block, 0 if warp split-K leaves no warp for a work tile."""
        return CONSUMER_WARPS * 32 // (width * self.warp_split_k) * 8 * self.columns

    @property
    def rows(self) -> int:
        """Kept inputs per stage."""
        return 8 * self.warp_split_k

    @property
    def blocks_per_sm(self) -> int:
        """Blocks per SM, limited by registers."""
        return 3 if self.columns == 8 and self.warp_split_k == 1 else 2

    def shared_bytes(self, width: int) -> int:
        """Shared memory of a block: X and the weights, or the final reduction."""
        stages = self.stages * self.rows * (self.block_m(width) + width) * 4
        return FIXED_BYTES + max(stages, CONSUMER_WARPS * 32 * 8 * self.columns * 4)

    def possible(self, width: int, limits: GpuLimits = HOPPER) -> bool:
        """Whether the kernel is compiled for this and its blocks fit into shared memory."""
        return (
            self.columns in (8, 16)
            and self.warp_split_k in (1, 2, 4)
            and self.block_m(width) > 0
            and 2 <= self.stages <= MOST_STAGES
            and 1 <= self.splits <= (MOST_SPLITS if limits.clusters else 1)
            and self.shared_bytes(width) * limits.resident(self.blocks_per_sm) <= limits.sm_bytes
        )


def launch_gathered_simt(
    x: Tensor, y: Tensor, packed: SimtPackedWeight, epilogue: Epilogue, launch: SimtLaunch
) -> None:
    """Compute Y[N, M] = activation(W · X[K, M] + bias) + residual on the current stream of x's device, which must be current.

    Args:
        x: [K, M] with M contiguous and 16-byte aligned rows; M a multiple of 4.
        y: [N, M], likewise; fully overwritten.
        epilogue: its residual is [N, M] like y.
    Raises:
        RuntimeError: the launch failed.
    """
    launch_kernel(
        KERNEL,
        x.device,
        (x, packed.panels, packed.kept, packed.tiles, packed.outputs, epilogue.bias, epilogue.residual, y),
        (x.stride(0), y.stride(0), epilogue.residual_stride),
        (
            packed.kept_of_each,
            *epilogue.codes,
            x.shape[1],
            x.shape[0],
            len(packed.tiles),
            packed.width,
            launch.warp_split_k,
            launch.columns,
            launch.stages,
            launch.splits,
            num_sms(x.device),
        ),
        launch,
    )


@functools.cache
def launch_space(width: int, limits: GpuLimits = HOPPER) -> tuple[SimtLaunch, ...]:
    """All possible launches, with as many stages as fit: fewer were never faster."""
    chosen = []
    clusters = (1, 2, 3, 4, 5, 6, 8) if limits.clusters else (1,)
    for columns, warp_split_k, splits in itertools.product((16, 8), (1, 2, 4), clusters):
        fitting = [
            stages
            for stages in range(2, MOST_STAGES + 1)
            if SimtLaunch(columns, warp_split_k, stages).possible(width, limits)
        ]
        if fitting:
            chosen.append(SimtLaunch(columns, warp_split_k, fitting[-1], splits))
    return tuple(chosen)


@dataclass(frozen=True)
class SimtProblem:
    """The properties of a problem that determine the speed of launch parameters.

    Args:
        m, k, n: of the product.
        width: outputs per tile.
        tiles, kept: number of tiles, and their total number of kept inputs.
    """

    m: int
    k: int
    n: int
    width: int
    tiles: int
    kept: int

    @classmethod
    def of(cls, packed: SimtPackedWeight, m: int) -> "SimtProblem":
        """The problem of a packed weight and m rows of X (padded)."""
        run = run_length(torch.float32)
        return cls(-(-m // run) * run, packed.k, packed.n, packed.width, len(packed.tiles), len(packed.kept))

    @property
    def shape(self) -> str:
        return f"m={self.m} k={self.k} n={self.n} width={self.width} kept="

    @property
    def amount(self) -> float:
        """Kept inputs per tile."""
        return self.kept / max(1, self.tiles)


def predicted_us(problem: SimtProblem, launch: SimtLaunch, num_sms: int) -> float:
    """Coarse latency prediction, to rank launches."""
    block_m = launch.block_m(problem.width)
    blocks = problem.tiles * -(-problem.m // block_m) * launch.splits
    return rounds_us(launch, blocks, problem.amount / launch.splits * problem.width * block_m, num_sms)


def rounds_us(launch: SimtLaunch, blocks: int, products: float, num_sms: int) -> float:
    """Microseconds of full rounds of blocks with so many products each, then one in which SMs have fewer blocks."""
    products *= _WARP_SPLIT_K[launch.warp_split_k] * (_LARGE_CLUSTER if launch.splits > 2 else 1.0)
    rounds, rest = divmod(blocks, num_sms * launch.blocks_per_sm)

    def round_us(share: int) -> float:
        return _TAIL[launch.columns] + share * products / _RATE[launch.columns][share - 1] if share else 0.0

    last = round_us(-(-rest // num_sms))
    return _LAUNCH + rounds * round_us(launch.blocks_per_sm) + last + _SPLIT * (launch.splits - 1)


def candidates(
    problem: SimtProblem, num_sms: int, *, limits: GpuLimits = HOPPER, slack: float = 1.5
) -> list[SimtLaunch]:
    """The launches worth timing, best predicted first: those predicted within `slack` of the best."""
    space = launch_space(problem.width, limits)
    predicted = {launch: predicted_us(problem, launch, num_sms) for launch in space}
    bound = slack * min(predicted.values())
    worth = sorted((launch for launch in predicted if predicted[launch] <= bound), key=predicted.__getitem__)
    return worth[:MOST_CANDIDATES]


LAUNCHES = TunedLaunches(
    KERNEL,
    VERSION,
    SimtLaunch,
    describe=lambda packed, problem: SimtProblem.of(packed, problem.m),
    worth_timing=candidates,
    limited=True,
)


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    if problem.dtype != torch.float32:
        return f"takes float32, not {problem.dtype}"
    return tile_unsupported_reason(stored.tile) or library_unsupported_reason(problem, KERNEL)


ENTRY = kernel_entry(
    KERNEL,
    "gathered",
    weight=SimtPackedWeight,
    multiply=multiply_simt,
    dense=dense_weight,
    pack=pack_for_simt,
    unsupported=_unsupported,
    layouts=LAYOUTS,
    fuses_epilogue=True,
    tunable=LAUNCHES,
)
