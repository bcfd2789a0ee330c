"""Launch parameters of the Triton kernel in TF32: the search space, in the order in which it is timed, and what was measured."""

import itertools
from dataclasses import dataclass

from sparsefront_kernels.common.launch import LaunchShape, power_of_two_within
from sparsefront_kernels.gathered.triton.packed_weight import TritonPackedWeight
from sparsefront_kernels.tuning import TunedLaunches

KERNEL = "gathered_triton_tf32"
VERSION = 1  # raised when a change of the kernel makes old measurements useless
MOST_CANDIDATES = 18
SMALLEST_SHARED_BYTES = 101_376  # of a block on compute capability 8.9, which an untuned launch must fit
SHARED_BYTES = 232_448  # of a block on compute capability 9.0


@dataclass(frozen=True)
class Tf32Problem:
    """What decides how fast launch parameters are.

    Args:
        m, k, n: of the product.
        tile: outputs of a tile.
        tiles, kept: tiles, and how many inputs all of them keep together.
    """

    m: int
    k: int
    n: int
    tile: int
    tiles: int
    kept: int

    @classmethod
    def of(cls, packed: TritonPackedWeight, m: int) -> "Tf32Problem":
        """Of a packed weight and m rows of X."""
        tiles, tile = packed.outputs.shape
        return cls(m, packed.k, packed.n, tile, tiles, len(packed.kept_inputs))

    @property
    def shape(self) -> str:
        return f"m={self.m} k={self.k} n={self.n} tile={self.tile} kept="

    @property
    def amount(self) -> float:
        """Kept inputs of a tile."""
        return self.kept / max(1, self.tiles)

    @property
    def block_n(self) -> int:
        return power_of_two_within(self.tile, lowest=16, highest=128)


def shared_bytes(launch: LaunchShape) -> int:
    """Of the operands in flight: the compiler keeps a buffer for each stage at most."""
    return 4 * (launch.block_m + launch.block_n) * launch.block_k * launch.num_stages


def candidates(problem: Tf32Problem, *, shared_limit: int = SHARED_BYTES) -> list[LaunchShape]:
    """The launches worth timing, the most promising first.

    Blocks of 32 rows come first: on an H200 they took half the time of blocks of 256 (4096³, tiles of 128 and of 32).
    """
    space = [
        LaunchShape(block_m, problem.block_n, block_k, num_warps, num_stages)
        for block_m, block_k, num_warps, num_stages in itertools.product(
            (32, 16, 64, 128), (32, 64, 16), (4, 8), (4, 3)
        )
        if block_m < 2 * max(problem.m, 32) and (num_warps == 4 or block_m * problem.block_n >= 128 * 64)
    ]
    return [launch for launch in space if shared_bytes(launch) <= shared_limit][:MOST_CANDIDATES]


LAUNCHES = TunedLaunches(
    KERNEL,
    VERSION,
    LaunchShape,
    describe=lambda packed, problem: Tf32Problem.of(packed, problem.m),
    worth_timing=lambda problem, _: candidates(problem),
    untuned=lambda problem, _: candidates(problem, shared_limit=SMALLEST_SHARED_BYTES)[0],
)
