"""Launch parameters of the float32 kernel: the space, a model that says what is worth timing, and what was measured."""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from sparsefront_kernels.gathered.aligned_operands import run_length
from sparsefront_kernels.gathered.cuda_spmm import processors
from sparsefront_kernels.gathered.fp32_spmm import MOST_STAGES, Fp32Launch
from sparsefront_kernels.gathered.fp32_tables import WIDTHS, Fp32Tables
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.tuning import tuned_kernel
from sparsefront_kernels.tuning.nearest import nearest_launch

KERNEL = "gathered_fp32_cuda"
VERSION = 1  # raised when a change of the kernel makes old measurements worthless
MOST_CANDIDATES = 18

# Microseconds, fitted to measurements on an H200.
_START = 3.0  # of the launch
_TAIL = {16: 3.0, 8: 2.0}  # of a block beyond its products, by columns of a thread
_SPLIT = 0.7  # of a further block that shares a piece of Y
# Factors on the time of products: shorter rows of X come slower; clusters of more than two blocks leave processors idle
_SLICES = {1: 1.0, 2: 1.04, 4: 1.13}
_LARGE_CLUSTER = 1.25
# Products a microsecond on one multiprocessor by its number of blocks, by columns of a thread
_RATE = {16: (150e3, 200e3), 8: (110e3, 165e3, 175e3)}


def _space(width: int) -> tuple[Fp32Launch, ...]:
    """All possible launches, with as many stages as fit: fewer never were faster."""
    chosen = []
    for columns, slices, splits in itertools.product((16, 8), (1, 2, 4), (1, 2, 3, 4, 5, 6, 8)):
        fitting = [
            stages for stages in range(2, MOST_STAGES + 1) if Fp32Launch(columns, slices, stages).possible(width)
        ]
        if fitting:
            chosen.append(Fp32Launch(columns, slices, fitting[-1], splits))
    return tuple(chosen)


SPACE = {width: _space(width) for width in WIDTHS}


@dataclass(frozen=True)
class Fp32Problem:
    """What decides how fast launch parameters are.

    Args:
        m, k, n: of the product.
        width: outputs of a tile.
        tiles, kept: tiles, and how many inputs all of them keep together.
    """

    m: int
    k: int
    n: int
    width: int
    tiles: int
    kept: int

    @property
    def kept_of_tile(self) -> float:
        return self.kept / max(1, self.tiles)

    @property
    def shape(self) -> str:
        """The key of measured launches without the kept inputs of a tile, which end it."""
        return f"m={self.m} k={self.k} n={self.n} width={self.width} kept="


def predicted_us(problem: Fp32Problem, launch: Fp32Launch, device_processors: int) -> float:
    """A coarse model of the latency: full rounds of blocks, then one in which processors have fewer blocks."""
    block_m = launch.block_m(problem.width)
    products = problem.kept_of_tile / launch.splits * problem.width * block_m  # of a block
    products *= _SLICES[launch.slices] * (_LARGE_CLUSTER if launch.splits > 2 else 1.0)
    rates = _RATE[launch.columns]
    blocks = problem.tiles * -(-problem.m // block_m) * launch.splits
    rounds, rest = divmod(blocks, device_processors * launch.blocks_per_sm)
    most = -(-rest // device_processors)  # blocks of a processor in the last round

    def round_us(share: int) -> float:
        return _TAIL[launch.columns] + share * products / rates[share - 1] if share else 0.0

    return _START + rounds * round_us(launch.blocks_per_sm) + round_us(most) + _SPLIT * (launch.splits - 1)


def candidates(problem: Fp32Problem, device_processors: int, *, slack: float = 1.5) -> list[Fp32Launch]:
    """The launches worth timing, best predicted first: those predicted within `slack` of the best."""
    predicted = {launch: predicted_us(problem, launch, device_processors) for launch in SPACE[problem.width]}
    bound = slack * min(predicted.values())
    worth = sorted((launch for launch in predicted if predicted[launch] <= bound), key=predicted.__getitem__)
    return worth[:MOST_CANDIDATES]


def launch_for(problem: Fp32Problem, device: torch.device) -> Fp32Launch:
    """The launch to use: measured for this shape, at the nearest number of kept inputs, or else the best predicted."""
    return _launch_for(problem, torch.cuda.get_device_name(device), processors(device))


@functools.lru_cache(maxsize=4096)
def _launch_for(problem: Fp32Problem, gpu: str, device_processors: int) -> Fp32Launch:
    entries = tuned_kernel(gpu, KERNEL, VERSION).entries
    measured = nearest_launch(entries, Fp32Launch, problem.shape, problem.kept_of_tile)
    return measured or candidates(problem, device_processors)[0]


class Fp32Tunable:
    """The float32 kernel for whoever tunes it (`tuning.tunable.Tunable`)."""

    kernel = KERNEL
    version = VERSION

    def candidates(self, prepared: Fp32Tables, problem: Problem) -> Sequence[Fp32Launch]:
        """At most 18 launches, best predicted first, on the current CUDA device."""
        return candidates(_problem(prepared, problem), processors(torch.device("cuda", torch.cuda.current_device())))

    def remember(self, prepared: Fp32Tables, problem: Problem, launch: Fp32Launch, latency_us: float) -> None:
        """Use this launch for this problem from now on in this process; `tuned_kernel(...).save` keeps it."""
        described = _problem(prepared, problem)
        table = tuned_kernel(torch.cuda.get_device_name(), KERNEL, VERSION)
        key = f"{described.shape}{described.kept_of_tile:.4g}"
        table.record(key, asdict(launch) | {"latency_us": round(latency_us, 2)})
        _launch_for.cache_clear()


def _problem(tables: Fp32Tables, problem: Problem) -> Fp32Problem:
    run = run_length(torch.float32)
    padded_m = -(-problem.m // run) * run  # as the op pads it
    return Fp32Problem(padded_m, problem.k, problem.n, tables.width, len(tables.tiles), len(tables.kept))
