"""Launch parameters of the kernel for few rows: the space, a model that prunes it, and what was measured."""

import functools
import itertools
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sparsefront_kernels.gathered.cuda_spmm import processors
from sparsefront_kernels.gathered.skinny_spmm import SkinnyLaunch
from sparsefront_kernels.gathered.skinny_tables import CHUNK, FRAGMENT, SkinnyTables
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.tuning import tuned_kernel
from sparsefront_kernels.tuning.nearest import nearest_launch

KERNEL = "gathered_skinny"  # with X feature-major
KERNEL_ROW_X = "gathered_skinny_row_x"
VERSION = 1  # raised when a change of the kernel makes old measurements worthless
MOST_CANDIDATES = 18

_SPLITS = (1, 2, 3, 4, 6, 8)
SPACE = tuple(
    SkinnyLaunch("lanes", fragments, splits, warps, stages)
    for fragments, splits, warps, stages in itertools.product((1, 2, 4, 8), _SPLITS, (4, 8), (2, 4))
) + tuple(
    SkinnyLaunch("shared", fragments, splits, 8, stages, stage_chunks)
    for fragments, splits, stages, stage_chunks in itertools.product((1, 2, 4), _SPLITS, (2, 4), (2, 4, 8))
)


@dataclass(frozen=True)
class SkinnyProblem:
    """What decides how fast launch parameters are.

    Args:
        m, k, n: of the product.
        width: outputs of a strip.
        strips, chunks: how many there are.
        most_chunks: of any strip.
        element_bytes: of X, W and Y.
        x_feature_major: whether X is [K, M], whose neighbouring rows of one input are loaded at once.
    """

    m: int
    k: int
    n: int
    width: int
    strips: int
    chunks: int
    most_chunks: int
    element_bytes: int = 2
    x_feature_major: bool = True

    @property
    def chunks_of_strip(self) -> float:
        return self.chunks / max(1, self.strips)

    @property
    def kernel(self) -> str:
        """Under which measurements are kept."""
        return KERNEL if self.x_feature_major else KERNEL_ROW_X

    @property
    def shape_key(self) -> str:
        return f"m={self.m} k={self.k} n={self.n} width={self.width} bytes={self.element_bytes} chunks="

    @property
    def key(self) -> str:
        return f"{self.shape_key}{self.chunks_of_strip:.4g}"


def predicted_us(problem: SkinnyProblem, launch: SkinnyLaunch, device_processors: int) -> float:
    """A coarse model: the stream at the rate that the blocks at work reach, and what a block does besides."""
    blocks = problem.strips * (problem.width // (FRAGMENT * launch.fragments)) * launch.splits
    bytes_of_block = launch.fragments * 256 * problem.element_bytes * problem.chunks_of_strip / launch.splits
    waves = blocks / device_processors
    busy = waves / -(-waves // 1) if waves > 1 else waves  # share of the processors at work
    stream = blocks * bytes_of_block / 4.2e6 / min(1.0, busy * 1.3)
    x_bytes = blocks * problem.chunks_of_strip / launch.splits * CHUNK * max(32, problem.element_bytes * problem.m)
    fixed = 0.4 * -(-blocks // (4 * device_processors))
    return fixed + stream + x_bytes / 5e6 + 0.1 * (launch.splits > 1)


def candidates(problem: SkinnyProblem, device_processors: int, *, most: int = MOST_CANDIDATES) -> list[SkinnyLaunch]:
    """The launches worth timing, best predicted first."""
    worth = [launch for launch in SPACE if possible(problem, launch)]
    return sorted(worth, key=lambda launch: predicted_us(problem, launch, device_processors))[:most]


def launch_for(problem: SkinnyProblem, device: torch.device) -> SkinnyLaunch:
    """The launch to use: measured for this shape, at the nearest number of chunks, or else the best predicted."""
    return _launch_for(problem, torch.cuda.get_device_name(device), processors(device))


@functools.lru_cache(maxsize=4096)
def _launch_for(problem: SkinnyProblem, gpu: str, device_processors: int) -> SkinnyLaunch:
    entries = tuned_kernel(gpu, problem.kernel, VERSION).entries
    measured = nearest_launch(entries, SkinnyLaunch, problem.shape_key, problem.chunks_of_strip)
    return measured or candidates(problem, device_processors, most=1)[0]


@dataclass(frozen=True)
class SkinnyTunable:
    """`tuning.tunable.Tunable` of the kernel for few rows; entries with the same layout of X share one."""

    kernel: str = KERNEL
    version: int = VERSION

    def candidates(self, prepared: SkinnyTables, problem: Problem) -> list[SkinnyLaunch]:
        return candidates(self._problem(prepared, problem), processors(problem.device))

    def remember(self, prepared: SkinnyTables, problem: Problem, launch: SkinnyLaunch, latency_us: float) -> None:
        measured: dict[str, Any] = asdict(launch) | {"latency_us": round(latency_us, 2)}
        table = tuned_kernel(torch.cuda.get_device_name(problem.device), self.kernel, self.version)
        table.record(self._problem(prepared, problem).key, measured)
        _launch_for.cache_clear()

    def _problem(self, tables: SkinnyTables, problem: Problem) -> SkinnyProblem:
        return SkinnyProblem(
            m=problem.m,
            k=tables.k,
            n=tables.n,
            width=tables.width,
            strips=len(tables.strips),
            chunks=len(tables.panels),
            most_chunks=tables.most_chunks,
            element_bytes=tables.panels.element_size(),
            x_feature_major=self.kernel == KERNEL,
        )


def possible(problem: SkinnyProblem, launch: SkinnyLaunch) -> bool:
    """Whether the launch can compute the problem."""
    return launch.possible(problem.m, problem.width, problem.element_bytes, problem.most_chunks)
