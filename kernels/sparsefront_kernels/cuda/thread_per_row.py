"""Kernels in which each thread owns rows of X: packed weight, launch parameters, launcher, and kernel entry.

`csr_sm90`, `ell_sm90` and `n_m_sm90` share one kernel. The kept inputs of a group of outputs form a list; X is loaded to shared
memory in k-blocks of 256 inputs. The layout is defined in cuda/thread_per_row.cuh.
"""

import ctypes
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor

from sparsefront_kernels.cuda.launch import (
    DEPENDENT_LAUNCH,
    HOPPER,
    TYPE_CODES,
    GpuLimits,
    address,
    argument_fields,
    best_first,
    launch_with,
)
from sparsefront_kernels.device_support import library_unsupported_reason
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.kernel_op import kernel_entry
from sparsefront_kernels.operands import Epilogue
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Problem
from sparsefront_kernels.tuning import TunedLaunches

K_BLOCK = 256  # inputs loaded to shared memory together
QUAD = 4  # kept inputs read together
SPARE_QUADS = 2  # padding after the last list, because the kernel prefetches


@dataclass(frozen=True, eq=False)
class ThreadPerRowWeight:
    """A weight as lists of kept inputs, one per group in `order`, inputs ascending. Lists are padded to whole quads with zero
    weights at their own last input, so that outputs never read an input that they do not keep.

    Args:
        n, k: outputs and inputs of the weight.
        values: [quads + 2, 4, block] in the weight's dtype: weights of the group's outputs at each input.
        indices: int16 [quads + 2, 4], interpreted as unsigned: input mod 65536.
        pointers: int32 [groups, k-blocks + 1], in entries (four per quad): start of each k-block of 256 inputs in a list, and
            the list's end.
        order: int32 [groups], the group of each list, longest lists first. None: groups in order.
    """

    n: int
    k: int
    values: Tensor
    indices: Tensor
    pointers: Tensor
    order: Tensor | None

    @property
    def quads(self) -> int:
        """Total number of quads."""
        return self.values.shape[0] - SPARE_QUADS

    @property
    def block(self) -> int:
        """Outputs per group."""
        return self.values.shape[2]


def packed_lists(
    group: Tensor, inputs: Tensor, values: Tensor, *, shape: tuple[int, int], by_length: bool
) -> ThreadPerRowWeight:
    """Pack the kept inputs of groups of outputs.

    Args:
        group, inputs: int [kept], sorted by group, then input.
        values: [kept, block].
        shape: (N, K) of the weight, with N / block groups.
        by_length: put the longest lists first, to balance blocks and warps.
    """
    (n, k), device, block = shape, values.device, values.shape[1]
    groups = n // block
    k_blocks = -(-k // K_BLOCK)
    order = torch.bincount(group, minlength=groups).argsort(descending=True, stable=True) if by_length else None
    position = group if order is None else order.argsort()[group]
    by_list = position.argsort(stable=True)  # keeps inputs ascending
    position, inputs, values = position[by_list], inputs[by_list], values[by_list]
    counts = torch.bincount(position, minlength=groups)
    length = (counts + QUAD - 1) // QUAD * QUAD
    first = length.cumsum(0) - length
    entries = int(length.sum())
    target = first[position] + torch.arange(len(values), device=device) - (counts.cumsum(0) - counts)[position]
    stored = values.new_zeros(entries + SPARE_QUADS * QUAD, block)
    stored[target] = values
    indices = inputs.new_zeros(len(stored))
    indices[:entries] = torch.repeat_interleave(
        inputs[(counts.cumsum(0) - 1)[counts > 0]], length[counts > 0]
    )  # last entry of each list
    indices[target] = inputs
    indices = indices % 2**16
    of_k_block = torch.bincount(position * k_blocks + inputs // K_BLOCK, minlength=groups * k_blocks).view(
        groups, k_blocks
    )
    pointers = torch.cat([first[:, None], first[:, None] + of_k_block.cumsum(1)], dim=1)
    at_end = pointers == (first + counts)[:, None]  # includes k-blocks after the last input, where the padding is
    pointers = torch.where(at_end, (first + length)[:, None], pointers)
    return ThreadPerRowWeight(
        n=n,
        k=k,
        values=stored.view(-1, QUAD, block),
        indices=torch.where(indices >= 2**15, indices - 2**16, indices).to(torch.int16).view(-1, QUAD),
        pointers=pointers.to(torch.int32),
        order=None if order is None else order.to(torch.int32),
    )


MOST_CANDIDATES = 20
SLOT_BYTES = 128  # rows of X per input
MOST_WARPS = 16
MOST_SPLITS = 8  # blocks per cluster
MOST_K_BLOCKS = 7
MOST_ROW_BLOCKS = 65_535  # limit of the grid


@dataclass(frozen=True, order=True)
class ThreadPerRowLaunch:
    """Launch parameters.

    Args:
        sets: of `together` groups of outputs, processed by a warp one after the other.
        warps: per block, 2 to 16.
        splits: blocks of a cluster that share K, 1 to 8.
        k_blocks: of 256 inputs, in shared memory at once, 1 to 7.
        lane_units: of 16 bytes of rows of X per lane: 1, or 2 for single weights.
        dependent_launch: as in `thread_per_output.ThreadPerOutputLaunch`.
    """

    sets: int
    warps: int
    splits: int
    k_blocks: int
    lane_units: int
    dependent_launch: str = "late"

    @property
    def together(self) -> int:
        """Groups of outputs that a warp processes at once."""
        return 4 * self.lane_units


@dataclass(frozen=True)
class ThreadPerRowProblem:
    """The properties of a problem that determine the speed of launch parameters.

    Args:
        m, k: of the product.
        groups, block: there are `groups` * `block` outputs.
        quads: total number.
        element_bytes: of X, W and Y.
        x_feature_major: rows of X are contiguous per input.
    """

    m: int
    k: int
    groups: int
    block: int
    quads: int
    element_bytes: int
    x_feature_major: bool

    @property
    def shape(self) -> str:
        layout = "feature" if self.x_feature_major else "row"
        return f"m={self.m} k={self.k} groups={self.groups} block={self.block} bytes={self.element_bytes} x={layout} quads="

    @property
    def amount(self) -> float:
        return float(self.quads)

    @property
    def k_block_count(self) -> int:
        return ceil(self.k / K_BLOCK)

    @property
    def rows(self) -> int:
        """Rows of X per block."""
        return SLOT_BYTES // self.element_bytes


def problem_of(packed: ThreadPerRowWeight, m: int, x_feature_major: bool) -> ThreadPerRowProblem:
    """The problem for m rows of X."""
    groups, size = packed.n // packed.block, packed.values.element_size()
    return ThreadPerRowProblem(m, packed.k, groups, packed.block, packed.quads, size, x_feature_major)


SPACE = tuple(
    ThreadPerRowLaunch(*values)
    for values in itertools.product(
        (1, 2, 4, 8), (2, 4, 8, 16), range(1, MOST_SPLITS + 1), range(1, MOST_K_BLOCKS + 1), (1, 2)
    )
)


def k_blocks_of_block(problem: ThreadPerRowProblem, launch: ThreadPerRowLaunch) -> int:
    """Number of k-blocks of the busiest block of a cluster."""
    return max(1, ceil(problem.k_block_count / launch.splits))


def passes(problem: ThreadPerRowProblem, launch: ThreadPerRowLaunch) -> int:
    """How often that block loads X."""
    return ceil(k_blocks_of_block(problem, launch) / launch.k_blocks)


def shared_bytes(problem: ThreadPerRowProblem, launch: ThreadPerRowLaunch) -> int:
    """Shared memory of a block: inputs, and sums if they are kept between passes or reduced in a cluster."""
    inputs = min(problem.k, launch.k_blocks * K_BLOCK) * SLOT_BYTES
    outputs = launch.together * launch.warps * launch.sets * problem.block
    return inputs + (outputs * problem.rows * 4 if passes(problem, launch) > 1 or launch.splits > 1 else 0)


def possible(problem: ThreadPerRowProblem, launch: ThreadPerRowLaunch, limits: GpuLimits = HOPPER) -> bool:
    """Whether the launch supports the problem, and no smaller cluster or buffer needs as few passes."""
    if not (
        launch.sets >= 1
        and 1 <= launch.splits <= (MOST_SPLITS if limits.clusters else 1)
        and 1 <= launch.k_blocks <= MOST_K_BLOCKS
    ):
        return False
    k_blocks = k_blocks_of_block(problem, launch)
    return (
        1 <= launch.warps <= MOST_WARPS
        and launch.splits == max(1, ceil(problem.k_block_count / k_blocks))
        and launch.k_blocks == ceil(k_blocks / passes(problem, launch))
        and launch.lane_units in ((1, 2) if problem.block == 1 else (1,))
        and shared_bytes(problem, launch) <= limits.block_bytes
        and launch.dependent_launch in DEPENDENT_LAUNCH
    )


def predicted_us(problem: ThreadPerRowProblem, launch: ThreadPerRowLaunch, num_sms: int) -> float:
    """Coarse: the maximum of shared memory reads and instructions at 1.7 GHz, plus loading X; for the busiest SM.

    Only for ordering candidates; instruction counts are from compiled code, not fitted to measurements.
    """
    together = launch.together * launch.warps * launch.sets
    blocks = ceil(problem.groups / together) * ceil(problem.m / problem.rows) * launch.splits
    of_sm = ceil(blocks / num_sms)
    at_once = min(
        HOPPER.sm_bytes // (shared_bytes(problem, launch) + 1024), MOST_WARPS // launch.warps
    )  # by registers, with 16 warps
    rounds = ceil(of_sm / max(1, at_once))
    of_x = 4 * launch.lane_units  # words per lane and entry
    fmas = problem.block * of_x * 4 // problem.element_bytes
    widened = of_x * 2 + problem.block if problem.element_bytes == 2 else 0
    words = of_x + problem.block * problem.element_bytes / 4 + 0.5  # loads to registers per entry: X, values, index
    share = k_blocks_of_block(problem, launch) / max(1, problem.k_block_count)  # fraction of K
    entries = 4 * problem.quads / max(1, problem.groups) * share  # per list
    multiplying = (
        max(words, (fmas + widened + of_x / 2 + 1) / 4) * entries * launch.warps * launch.sets
    )  # cycles of the SM per block
    multiplying *= 1 + 1.5 / (launch.warps * max(1, min(of_sm, at_once)))  # too few warps leave an SM idle
    waiting = launch.sets * (150 + entries * (8 + 8 * launch.lane_units))  # serialized latency of a warp
    staging = problem.k * share * SLOT_BYTES / (50 if problem.x_feature_major else 20)
    sums = together * problem.block * problem.rows * 4 / 128  # cycles to read or write all sums
    keeping = sums * (2 * (passes(problem, launch) - 1) + (5 if launch.splits > 1 else 0))
    first = (
        staging / passes(problem, launch) / launch.sets
    )  # not hidden: later k-blocks are loaded while the first set waits
    unhidden = rounds * (600 * passes(problem, launch) + first + (1200 if launch.splits > 1 else 0))
    return 2.0 + (unhidden + max(of_sm * (multiplying + keeping + 0.3 * staging), rounds * (waiting + keeping))) / 1.7e3


def candidates(
    problem: ThreadPerRowProblem, num_sms: int, *, limits: GpuLimits = HOPPER, most: int = MOST_CANDIDATES
) -> list[ThreadPerRowLaunch]:
    """The launches worth timing, best predicted first; the first few also with the other modes of dependent launch."""
    worth = [launch for launch in SPACE if possible(problem, launch, limits)]
    return best_first(worth, lambda launch: predicted_us(problem, launch, num_sms), most)


_POINTERS = ("x", "values", "indices", "pointers", "order", "bias", "y")
_STRIDES = ("row_stride", "input_stride")
_NUMBERS = ("vectors", "type", "bias_type", "m", "k", "groups", "block", "quads", "k_block_count")
_LAUNCH = ("sets", "warps", "splits", "k_blocks", "lane_units", "shared_bytes", "dependent_launch")


class Arguments(ctypes.Structure):
    """`thread_per_row::Arguments` of cuda/thread_per_row.cuh."""

    _fields_ = argument_fields(_POINTERS, _STRIDES, (*_NUMBERS, *_LAUNCH))


def launch_thread_per_row(
    kernel: str,
    x: Tensor,
    y: Tensor,
    packed: ThreadPerRowWeight,
    bias: Tensor | None,
    problem: ThreadPerRowProblem,
    launch: ThreadPerRowLaunch,
) -> None:
    """Compute Yᵀ = W · Xᵀ + bias on the current stream of x's device, which must be current.

    Args:
        kernel: name of the kernel and its library.
        x: [K, M], any strides.
        y: [N, M] contiguous; fully overwritten.
        bias: [N] contiguous, float16, bfloat16 or float32, or None.
    Raises:
        RuntimeError: the launch failed.
    """
    weight = {name: getattr(packed, name) for name in ("values", "indices", "pointers", "order")}
    arguments = Arguments(
        **{name: address(tensor) for name, tensor in {"x": x, **weight, "bias": bias, "y": y}.items()},
        **{name: getattr(problem, name) for name in ("m", "k", "groups", "block", "quads")},
        **{name: getattr(launch, name) for name in ("sets", "warps", "splits", "k_blocks", "lane_units")},
        row_stride=x.stride(1),
        input_stride=x.stride(0),
        vectors=vectors_of(x),
        type=TYPE_CODES[x.dtype],
        bias_type=0 if bias is None else TYPE_CODES[bias.dtype],
        k_block_count=packed.pointers.shape[1] - 1,
        shared_bytes=shared_bytes(problem, launch),
        dependent_launch=DEPENDENT_LAUNCH.index(launch.dependent_launch),
    )
    launch_with(kernel, arguments, x.device, launch)


def vectors_of(x: Tensor) -> int:
    """The dim of X [K, M] that can be read in aligned vectors of 16 bytes: 1 rows, 2 inputs, 0 neither."""
    unit = 16 // x.element_size()
    for code, along, across in ((1, 1, 0), (2, 0, 1)):
        whole = x.shape[along] % unit == 0 and x.stride(across) % unit == 0
        if x.stride(along) == 1 and whole and x.data_ptr() % 16 == 0:
            return code
    return 0


def thread_per_row_entry(
    family: str, *, kernel: str, version: int, pack: Callable[[Any], ThreadPerRowWeight]
) -> KernelEntry:
    """Create the kernel entry, for row-major and feature-major layouts; a row-major Y is a transposed view of the kernel's
    output.

    Args:
        kernel: name of the kernel, its op and its library.
        version: increment when a change of the kernel invalidates stored launches.
        pack: format → packed weight.
    """
    launches = TunedLaunches(
        kernel,
        version,
        ThreadPerRowLaunch,
        describe=lambda packed, problem: problem_of(packed, problem.m, problem.layout in X_FEATURE_MAJOR),
        worth_timing=candidates,
        limited=True,
    )

    def multiply(
        x: Tensor,
        y: Tensor,
        packed: ThreadPerRowWeight,
        epilogue: Epilogue,
        x_feature_major: bool,
        y_feature_major: bool,
    ) -> None:
        x, y = (x if x_feature_major else x.t()), (y if y_feature_major else y.t())
        problem = problem_of(packed, x.shape[1], x_feature_major)
        launch_thread_per_row(kernel, x, y, packed, epilogue.bias, problem, launches.launch_for(problem, x.device))

    def unsupported(stored: SparseFormat, problem: Problem) -> str | None:
        if problem.dtype not in TYPE_CODES:
            return f"takes float16, bfloat16 or float32, not {problem.dtype}"
        return library_unsupported_reason(problem, kernel)

    return kernel_entry(
        kernel,
        family,
        weight=ThreadPerRowWeight,
        multiply=multiply,
        transposed_y=True,
        pack=pack,
        unsupported=unsupported,
        layouts=("row_major", "feature_major"),
        tunable=launches,
        most_rows=lambda packed: MOST_ROW_BLOCKS * (SLOT_BYTES // packed.values.element_size()),
    )
