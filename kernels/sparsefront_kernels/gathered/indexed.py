"""`gathered_indexed`: float32 products of tiles of 1 to 16 outputs on CUDA cores.

The kernel, ../csrc/gathered_indexed.cu, shares rows of X among the 16 lists of a block; it is feature-major like
`gathered_simt`.
"""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.cuda.launch import HOPPER, GpuLimits, gpu_limits, launch_kernel, num_sms
from sparsefront_kernels.device_support import library_unsupported_reason
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.format import GatheredFormat, cut_into_cta_tiles
from sparsefront_kernels.gathered.simt import (
    CONSUMER_WARPS,
    FIXED_BYTES,
    MOST_SPLITS,
    MOST_STAGES,
    SimtLaunch,
    rounds_us,
)
from sparsefront_kernels.kernel_op import kernel_entry
from sparsefront_kernels.operands import Epilogue, by_feature, run_length
from sparsefront_kernels.problem import LAYOUTS, Problem
from sparsefront_kernels.tuning import TunedLaunches

KERNEL = "gathered_indexed"  # also the name of its library
VERSION = 1  # increment when a change of the kernel invalidates measurements
LIST_OUTPUTS, LISTS = 8, 16  # outputs per list; lists per block
WIDTH = LIST_OUTPUTS * LISTS
WIDEST_TILE = 16  # from 32 outputs on, gathered_simt reads no row needlessly
HALF = 32  # inputs per half window
OCTET = 8  # steps that the kernel takes together
MOST_STEPS = 32  # per stage: a window in which a list keeps more becomes two stages
HEADER = 16  # bytes before the row indices of a stage


@dataclass(frozen=True, eq=False)
class IndexedPackedWeight:
    """The packed weight.

    A stage is a window of 64 inputs, or half of one, for the 16 lists of a tile of 128 outputs. It consists of its rows (the
    inputs that any list keeps) and its steps (as many as the longest list keeps, rounded up to a multiple of 8). A step is one
    kept input of every list; shorter lists use row 0 with zero weights.

    A tile's outputs are ordered by their owners in a warp, so that the 8 outputs of a thread are one list: output r of list l
    is at l // 4 · 32 + r // 4 · 16 + l % 4 · 4 + r % 4.

    Args:
        n, k: outputs and inputs of the weight.
        panels: float32 [steps of all stages, 128]: weight of each output for its list's input in that step.
        kept: int32 [rows of all stages], ascending within a stage.
        starts: int32 [stages + 1, 2]: first row, first step.
        row_indices: uint8, flat; per stage 16 bytes, the first of which is its steps / 8, then [steps / 8, 16 lists, 8]: the
            row of each list in each step.
        tiles: int32 [tiles, 2]: first stage and number of stages; most steps first.
        outputs: int32 [tiles, 128], padded with -1. Every output of the weight is in one tile.
        most_steps: of any stage, a multiple of 8.
    """

    n: int
    k: int
    panels: Tensor
    kept: Tensor
    starts: Tensor
    row_indices: Tensor
    tiles: Tensor
    outputs: Tensor
    most_steps: int


def tile_unsupported_reason(tile: int) -> str | None:
    """Why the kernel does not support tiles of this width, or None."""
    if tile <= WIDEST_TILE and WIDEST_TILE % tile == 0:
        return None
    return f"takes tiles of 1, 2, 4, 8 or 16 outputs, not of {tile}"


def pack_for_indexed(stored: GatheredFormat) -> IndexedPackedWeight:
    """Pack the weight, on the format's device.

    Raises:
        ValueError: `tile_unsupported_reason` rejects the tile width.
    """
    reason = tile_unsupported_reason(stored.tile)
    if reason:
        raise ValueError(f"gathered: {reason}")
    outputs, keeps = cut_into_cta_tiles(stored, LIST_OUTPUTS)
    (n, k), device = stored.shape, stored.device
    alike = keeps.sum(dim=1).argsort(descending=True, stable=True)  # a stage is as long as the longest list of its tile
    outputs, keeps = outputs[alike], keeps[alike]
    outputs = pad(outputs, (0, 0, 0, -len(outputs) % LISTS), value=-1).view(-1, LISTS, LIST_OUTPUTS)
    keeps = pad(keeps, (0, -k % (2 * HALF), 0, -len(keeps) % LISTS)).view(len(outputs), LISTS, -1, 2, HALF)
    windows = _Windows(keeps)
    order = windows.steps.flatten(1).sum(dim=1).argsort(descending=True, stable=True)
    outputs, windows = outputs[order], _Windows(keeps[order])
    stages, starts = windows.stages(), windows.starts()
    first_step = starts[:-1, 1].long()
    tile, list_, window, half, position = windows.keeps.nonzero(as_tuple=True)
    stage, rank = stages[tile, window, half], windows.ranks[tile, list_, window, half, position]
    own, inputs = outputs[tile, list_].long(), (window * 2 + half) * HALF + position
    values = stored.to_dense()[own.clamp(min=0), inputs[:, None]]
    panels = values.new_zeros(int(starts[-1, 1]), WIDTH)
    panels[(first_step[stage] + rank)[:, None], _slots(device)[list_]] = values.masked_fill(own < 0, 0)
    begins = (torch.arange(len(first_step), device=device) + first_step) * HEADER
    row_indices = torch.zeros(HEADER * (len(first_step) + len(panels)), dtype=torch.uint8, device=device)
    row_indices[begins] = (starts[:, 1].diff() // OCTET).to(torch.uint8)
    at = begins[stage] + HEADER + rank // OCTET * (LISTS * OCTET) + list_ * OCTET + rank % OCTET
    row_indices[at] = windows.rows_of(tile, window, half, position).to(torch.uint8)
    _, window, half, position = windows.needed.nonzero(as_tuple=True)
    counts = (windows.steps > 0).flatten(1).sum(dim=1)
    in_slots = torch.empty_like(outputs.view(-1, WIDTH))
    in_slots[:, _slots(device).flatten()] = outputs.view(-1, WIDTH)
    return IndexedPackedWeight(
        n=n,
        k=k,
        panels=panels,
        kept=((window * 2 + half) * HALF + position).to(torch.int32),
        starts=starts,
        row_indices=row_indices,
        tiles=torch.stack([counts.cumsum(0) - counts, counts], dim=1).to(torch.int32),
        outputs=in_slots,
        most_steps=max(OCTET, int(windows.steps.max())) if windows.steps.numel() else OCTET,
    )


class _Windows:
    """Windows of a mask, and which of them are split into two stages.

    keeps: bool [tiles, lists, windows, 2, 32]; needed: bool [tiles, windows, 2, 32], the inputs that any list keeps; split:
        bool
    [tiles, windows], whether the halves are two stages; steps: int64 [tiles, windows, 2], of the stage that begins there, 0 if
    none does.
    """

    def __init__(self, keeps: Tensor) -> None:
        self.keeps, self.needed = keeps, keeps.any(dim=1)
        counts = keeps.sum(dim=4)  # [tiles, lists, windows, 2]
        self.split = counts.sum(dim=3).amax(dim=1) > MOST_STEPS
        longest = self._of_stages(counts, self.split[:, None]).amax(dim=1)
        self.steps = -(-longest // OCTET) * OCTET
        self.ranks = self._within_stages(keeps, self.split[:, None])
        self._rows = self._within_stages(self.needed, self.split)

    def stages(self) -> Tensor:
        """int64 [tiles, windows, 2]: the stage of each half window."""
        begins = self.steps > 0
        number = begins.flatten().cumsum(0).view_as(self.steps) - 1
        number[..., 1] = torch.where(self.split, number[..., 1], number[..., 0])
        return number

    def starts(self) -> Tensor:
        """int32 [stages + 1, 2]: first row and first step."""
        begins = self.steps > 0
        rows = self._of_stages(self.needed.sum(dim=3), self.split)
        counts = torch.stack([rows[begins], self.steps[begins]], dim=1)
        return pad(counts.cumsum(0), (0, 0, 1, 0)).to(torch.int32)

    def rows_of(self, *index: Tensor) -> Tensor:
        """For inputs (tile, window, half, position): their row within their stage."""
        return self._rows[index]

    @staticmethod
    def _of_stages(counts: Tensor, split: Tensor) -> Tensor:
        """Combine halves [..., windows, 2] into the stages that begin there."""
        first, second = counts.unbind(dim=-1)
        return torch.stack([first + second * ~split, second * split], dim=-1)

    @staticmethod
    def _within_stages(chosen: Tensor, split: Tensor) -> Tensor:
        """bool [..., windows, 2, 32] → number of chosen inputs of the stage before each."""
        before = chosen.flatten(-2).cumsum(-1).view(chosen.shape) - 1
        before[..., 1, :] -= (chosen[..., 0, :].sum(dim=-1) * split)[..., None]
        return before


def _slots(device: torch.device) -> Tensor:
    """int64 [lists, outputs per list]: position of each output in a tile."""
    list_, output = torch.arange(LISTS, device=device)[:, None], torch.arange(LIST_OUTPUTS, device=device)
    return list_ // 4 * 32 + output // 4 * 16 + list_ % 4 * 4 + output % 4


def dense_weight(packed: IndexedPackedWeight) -> Tensor:
    """Unpack W [N, K] without synchronizing."""
    panels, starts, tiles, device = packed.panels, packed.starts, packed.tiles, packed.panels.device
    step = torch.arange(panels.shape[0], device=device, dtype=starts.dtype)
    stage = torch.searchsorted(starts[:, 1].contiguous(), step, right=True) - 1
    first_row, first_step = starts.long()[stage].unbind(dim=1)
    rank = step - first_step
    at = (stage + first_step) * HEADER + HEADER + rank // OCTET * (LISTS * OCTET) + rank % OCTET
    own = packed.row_indices[at[:, None] + torch.arange(LISTS, device=device) * OCTET]  # [steps, lists]
    inputs = packed.kept[first_row[:, None] + own].long()
    tile = torch.searchsorted(tiles[:, 0].contiguous(), stage.to(tiles.dtype), right=True) - 1
    list_of_slot = torch.empty(WIDTH, dtype=torch.int64, device=device)
    list_of_slot[_slots(device)] = torch.arange(LISTS, device=device)[:, None].expand(-1, LIST_OUTPUTS)
    dense = panels.new_zeros(packed.n + 1, packed.k)  # the last row takes padding (output -1)
    # lists shorter than their stage add zeros to their weight at row 0
    return dense.index_put((packed.outputs.long()[tile], inputs[:, list_of_slot]), panels, accumulate=True)[: packed.n]


def multiply_indexed(
    x: Tensor, y: Tensor, packed: IndexedPackedWeight, epilogue: Epilogue, x_feature_major: bool, y_feature_major: bool
) -> None:
    """`multiply` of `kernel_entry`."""
    with by_feature(x, y, epilogue, x_feature_major, y_feature_major) as (x, y, epilogue):
        launch = LAUNCHES.launch_for(IndexedProblem.of(packed, x.shape[1]), x.device)
        launch_gathered_indexed(x, y, packed, epilogue, launch)


@dataclass(frozen=True, order=True)
class IndexedLaunch:
    """Launch parameters; the pipeline has as many stages as fit.

    Args:
        columns: of Y per thread (with 8 outputs): 8 or 16.
        splits: blocks, 1 to 8, that share the stages of one work tile.
    """

    columns: int
    splits: int = 1

    @property
    def block_m(self) -> int:
        """Columns of Y per block."""
        return 8 * self.columns

    @property
    def blocks_per_sm(self) -> int:
        """Blocks per SM, limited by registers."""
        return 3 if self.columns == 8 else 2

    def stages(self, most_steps: int, limits: GpuLimits = HOPPER) -> int:
        """Number of pipeline stages; at least 2 for packed weights."""
        stage = 2 * HALF * self.block_m * 4 + HEADER + most_steps * (WIDTH * 4 + LISTS)
        of_block = limits.sm_bytes // limits.resident(self.blocks_per_sm) - FIXED_BYTES
        return min(MOST_STAGES, of_block // stage)

    def possible(self, most_steps: int, limits: GpuLimits = HOPPER) -> bool:
        """Whether the kernel is compiled for this and its blocks fit into shared memory."""
        sums = CONSUMER_WARPS * 32 * 8 * self.columns * 4
        return (
            self.columns in (8, 16)
            and 1 <= self.splits <= (MOST_SPLITS if limits.clusters else 1)
            and self.stages(most_steps, limits) >= 2
            and (FIXED_BYTES + sums) * limits.resident(self.blocks_per_sm) <= limits.sm_bytes
        )


def launch_gathered_indexed(
    x: Tensor, y: Tensor, packed: IndexedPackedWeight, epilogue: Epilogue, launch: IndexedLaunch
) -> None:
    """As `simt.launch_gathered_simt`."""
    launch_kernel(
        KERNEL,
        x.device,
        (
            *(x, packed.panels, packed.kept, packed.starts, packed.row_indices, packed.tiles, packed.outputs),
            *(epilogue.bias, epilogue.residual, y),
        ),
        (x.stride(0), y.stride(0), epilogue.residual_stride),
        (
            packed.most_steps,
            *epilogue.codes,
            x.shape[1],
            x.shape[0],
            len(packed.tiles),
            launch.columns,
            launch.stages(packed.most_steps, gpu_limits(x.device)),
            launch.splits,
            num_sms(x.device),
        ),
        launch,
    )


SPACE = tuple(itertools.starmap(IndexedLaunch, itertools.product((16, 8), (1, 2, 3, 4, 5, 6, 8))))


@dataclass(frozen=True)
class IndexedProblem:
    """The properties of a problem that determine the speed of launch parameters.

    Args:
        m, k, n: of the product.
        tiles, steps: number of tiles of 128 outputs, and their total number of steps.
    """

    m: int
    k: int
    n: int
    tiles: int
    steps: int

    @classmethod
    def of(cls, packed: IndexedPackedWeight, m: int) -> "IndexedProblem":
        """The problem of a packed weight and m rows of X (padded)."""
        run = run_length(torch.float32)
        return cls(-(-m // run) * run, packed.k, packed.n, len(packed.tiles), len(packed.panels))

    @property
    def shape(self) -> str:
        return f"m={self.m} k={self.k} n={self.n} steps="

    @property
    def amount(self) -> float:
        """Steps per tile."""
        return self.steps / max(1, self.tiles)


def predicted_us(problem: IndexedProblem, launch: IndexedLaunch, num_sms: int) -> float:
    """The prediction for the kernel of wide tiles with as many products: a coarse ranking, not fitted to this kernel."""
    blocks = problem.tiles * -(-problem.m // launch.block_m) * launch.splits
    alike = SimtLaunch(launch.columns, 1, 2, launch.splits)
    return rounds_us(alike, blocks, problem.amount / launch.splits * WIDTH * launch.block_m, num_sms)


def candidates(problem: IndexedProblem, num_sms: int, *, limits: GpuLimits = HOPPER) -> list[IndexedLaunch]:
    """All launches, best predicted first."""
    space = [launch for launch in SPACE if launch.possible(MOST_STEPS, limits)]
    return sorted(space, key=lambda launch: predicted_us(problem, launch, num_sms))


LAUNCHES = TunedLaunches(
    KERNEL,
    VERSION,
    IndexedLaunch,
    describe=lambda packed, problem: IndexedProblem.of(packed, problem.m),
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
    weight=IndexedPackedWeight,
    multiply=multiply_indexed,
    dense=dense_weight,
    pack=pack_for_indexed,
    unsupported=_unsupported,
    layouts=LAYOUTS,
    fuses_epilogue=True,
    tunable=LAUNCHES,
)
