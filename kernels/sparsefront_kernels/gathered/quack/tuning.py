"""Launch parameters of QuACK's kernel: those worth timing, and what was measured."""

from dataclasses import dataclass, replace

from sparsefront_kernels.common.operands import run_length
from sparsefront_kernels.gathered.quack.library import QuackLaunch
from sparsefront_kernels.gathered.quack.packed_weight import QuackPackedWeight
from sparsefront_kernels.tuning import TunedLaunches

KERNEL = "gathered_quack"
VERSION = 1  # raised when a change of the kernel makes old measurements useless

# (rows of a block, pingpong, cluster): the first was the fastest of large products on an H200
_BLOCKS = ((256, False, 1), (256, False, 2), (128, True, 1), (128, True, 2), (128, False, 1), (192, True, 1))
_NARROW_BLOCKS = ((128, True, 1), (256, False, 1))  # of half the outputs, where blocks are few
_TILE_NS = (16, 32, 64, 128)
_FEW_BLOCKS = 4  # to a processor, counted in blocks of 256 rows: fewer leave room for smaller ones


@dataclass(frozen=True)
class QuackProblem:
    """What decides how fast launch parameters are.

    Args:
        m, k, n: of the product; m as the kernel reads it.
        width: outputs of a tile.
        tiles, kept: tiles, and how many inputs all of them keep together.
        uneven: whether they keep unequally many.
    """

    m: int
    k: int
    n: int
    width: int
    tiles: int
    kept: int
    uneven: bool

    @classmethod
    def of(cls, packed: QuackPackedWeight, m: int) -> "QuackProblem":
        """Of a packed weight and m rows of X, which the kernel reads padded."""
        run = run_length(packed.panels.dtype)
        total, width = packed.panels.shape
        tiles = len(packed.offsets) - 1
        return cls(-(-m // run) * run, packed.k, packed.n, width, tiles, total, packed.order is not None)

    @property
    def shape(self) -> str:
        return f"m={self.m} k={self.k} n={self.n} width={self.width} uneven={int(self.uneven)} kept="

    @property
    def amount(self) -> float:
        """Kept inputs of a tile."""
        return self.kept / max(1, self.tiles)


def candidates(problem: QuackProblem, num_sms: int) -> list[QuackLaunch]:
    """The launches worth timing, most often the fastest first."""
    width = next((size for size in _TILE_NS if size >= problem.width), _TILE_NS[-1])
    blocks = [(tile_m, width, pingpong, cluster) for tile_m, pingpong, cluster in _BLOCKS]
    if problem.tiles * -(-problem.m // 256) < _FEW_BLOCKS * num_sms and width > _TILE_NS[0]:
        blocks += [(tile_m, width // 2, pingpong, cluster) for tile_m, pingpong, cluster in _NARROW_BLOCKS]
    found = [QuackLaunch(*block, longest_first=problem.uneven) for block in blocks]
    return found + [replace(found[0], longest_first=False)] if problem.uneven else found


LAUNCHES = TunedLaunches(
    KERNEL,
    VERSION,
    QuackLaunch,
    describe=lambda packed, problem: QuackProblem.of(packed, problem.m),
    worth_timing=candidates,
    untuned=lambda problem, num_sms: candidates(problem, num_sms)[0],
)
