"""Launch parameters of the Triton kernel where it multiplies in TF32: the space, an order to time it in, what was measured."""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from sparsefront_kernels.common.launch_shape import LaunchShape, power_of_two_within
from sparsefront_kernels.gathered.tables import GatheredTables
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.tuning import tuned_kernel
from sparsefront_kernels.tuning.nearest import nearest_launch

KERNEL = "gathered_tf32_triton"
VERSION = 1  # raised when a change of the kernel makes old measurements worthless
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

    @property
    def kept_of_tile(self) -> float:
        return self.kept / max(1, self.tiles)

    @property
    def shape(self) -> str:
        """The key of measured launches without the kept inputs of a tile, which end it."""
        return f"m={self.m} k={self.k} n={self.n} tile={self.tile} kept="

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


def tf32_launch(m: int, k: int, n: int, tiles: Sequence[int], kept: int, device: torch.device) -> LaunchShape:
    """The launch to use: measured for this shape, at the nearest number of kept inputs, or else the first candidate.

    Args:
        tiles: number of tiles and outputs of each.
        kept: inputs that all tiles keep together.
    """
    problem = Tf32Problem(m, k, n, tiles[1], tiles[0], kept)
    return _launch_for(problem, torch.cuda.get_device_name(device) if device.type == "cuda" else "")


@functools.lru_cache(maxsize=4096)
def _launch_for(problem: Tf32Problem, gpu: str) -> LaunchShape:
    entries = tuned_kernel(gpu, KERNEL, VERSION).entries
    measured = nearest_launch(entries, LaunchShape, problem.shape, problem.kept_of_tile)
    return measured or candidates(problem, shared_limit=SMALLEST_SHARED_BYTES)[0]


class Tf32Tunable:
    """The Triton kernel in TF32 for whoever tunes it (`tuning.tunable.Tunable`)."""

    kernel = KERNEL
    version = VERSION

    def candidates(self, prepared: GatheredTables, problem: Problem) -> Sequence[LaunchShape]:
        """At most 18 launches, the most promising first, on the current CUDA device."""
        return candidates(_problem(prepared, problem))

    def remember(self, prepared: GatheredTables, problem: Problem, launch: LaunchShape, latency_us: float) -> None:
        """Use this launch for this problem from now on in this process; `tuned_kernel(...).save` keeps it."""
        described = _problem(prepared, problem)
        key = f"{described.shape}{described.kept_of_tile:.4g}"
        table = tuned_kernel(torch.cuda.get_device_name(), KERNEL, VERSION)
        table.record(key, asdict(launch) | {"latency_us": round(latency_us, 2)})
        _launch_for.cache_clear()


def _problem(tables: GatheredTables, problem: Problem) -> Tf32Problem:
    tiles, tile = tables.outputs.shape
    return Tf32Problem(problem.m, problem.k, problem.n, tile, tiles, len(tables.kept_inputs))
