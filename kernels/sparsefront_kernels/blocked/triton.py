"""`blocked_triton`: the product in Triton, for any GPU from compute capability 8.0 on (device code: `triton_spmm.py`)."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.cuda.launch import LaunchShape, power_of_two_within, rows_of_block
from sparsefront_kernels.device_support import triton_unsupported_reason
from sparsefront_kernels.kernel_op import kernel_entry
from sparsefront_kernels.operands import Epilogue
from sparsefront_kernels.tuning import TunedLaunches

KERNEL = "blocked_triton"
VERSION = 1  # increment when a change of the kernel invalidates measurements
MOST_CANDIDATES = 16
SHARED_BYTES = 101_376  # per block on compute capability 8.9, the minimum of supported GPUs


@dataclass(frozen=True, eq=False)
class BlockedTritonWeight:
    """The tensors of `BlockedFormat`, which the kernel reads directly.

    Args:
        n, k: outputs and inputs of the weight.
    """

    n: int
    k: int
    values: Tensor
    row_pointers: Tensor
    block_columns: Tensor


def pack_for_triton(stored: BlockedFormat) -> BlockedTritonWeight:
    """Copies nothing."""
    return BlockedTritonWeight(*stored.shape, stored.values, stored.row_pointers, stored.block_columns)


def multiply_blocked_triton(
    x: Tensor, y: Tensor, packed: BlockedTritonWeight, epilogue: Epilogue, x_feature_major: bool, y_feature_major: bool
) -> None:
    """`multiply` of `kernel_entry`, for row-major X and Y; of the epilogue only the bias."""
    # late: Triton may be missing if only references run
    from sparsefront_kernels.blocked.triton_spmm import launch_blocked_triton

    launch_blocked_triton(x, y, packed, epilogue.bias, LAUNCHES.launch_for(problem_of(packed, x.shape[0]), x.device))


@dataclass(frozen=True)
class BlockedTritonProblem:
    """The properties of a problem that determine the speed of launch parameters.

    Args:
        m, k, n: of the product.
        height, width: outputs and inputs of a block.
        blocks: number of kept blocks.
        itemsize: bytes per element of X.
    """

    m: int
    k: int
    n: int
    height: int
    width: int
    blocks: int
    itemsize: int

    @property
    def shape(self) -> str:
        block = f"block={self.height}x{self.width}"
        return f"m={self.m} k={self.k} n={self.n} {block} bytes={self.itemsize} blocks="

    @property
    def amount(self) -> float:
        """Blocks per row of blocks."""
        return self.blocks * self.height / self.n

    @property
    def block_n(self) -> int:
        return power_of_two_within(self.height, lowest=16, highest=128)

    @property
    def column_blocks(self) -> int:
        return self.n // self.height * -(-self.height // self.block_n)


def untuned(problem: BlockedTritonProblem, num_sms: int) -> LaunchShape:
    """A reasonable launch for every shape."""
    block_m = rows_of_block(problem.m, problem.column_blocks, num_sms)
    # float32 uses the CUDA cores, where a longer k-block only costs registers
    block_k = power_of_two_within(problem.width, lowest=16, highest=16 if problem.itemsize > 2 else 64)
    num_warps = 8 if block_m * problem.block_n >= 128 * 128 else 4
    return LaunchShape(block_m, problem.block_n, block_k, num_warps, num_stages=4)


def candidates(problem: BlockedTritonProblem, num_sms: int) -> Sequence[LaunchShape]:
    """The launches worth timing: the untuned one, then others by distance from it."""
    first = untuned(problem, num_sms)
    widest_k = power_of_two_within(problem.width, lowest=16, highest=32 if problem.itemsize > 2 else 128)
    space = [
        LaunchShape(block_m, problem.block_n, block_k, num_warps, num_stages)
        for block_k, num_stages, num_warps, block_m in itertools.product(
            dict.fromkeys((first.block_k, widest_k, max(16, first.block_k // 2))),
            (4, 3, 5),
            (4, 8),
            dict.fromkeys((first.block_m, 2 * first.block_m, max(16, first.block_m // 2))),
        )
        if block_m <= 256 and block_m < 2 * max(problem.m, 16)
        if num_warps == 4 or block_m * problem.block_n >= 128 * 64
    ]
    fitting = [launch for launch in space if _shared_bytes(problem, launch) <= SHARED_BYTES]
    return list(dict.fromkeys((first, *fitting)))[:MOST_CANDIDATES]


def _shared_bytes(problem: BlockedTritonProblem, launch: LaunchShape) -> int:
    """Shared memory of operands in flight: at most one buffer per stage."""
    return problem.itemsize * (launch.block_m + launch.block_n) * launch.block_k * launch.num_stages


def problem_of(packed: BlockedTritonWeight, m: int) -> BlockedTritonProblem:
    """The problem for m rows of X."""
    blocks, height, width = packed.values.shape
    return BlockedTritonProblem(m, packed.k, packed.n, height, width, blocks, packed.values.element_size())


LAUNCHES = TunedLaunches(
    KERNEL,
    VERSION,
    LaunchShape,
    describe=lambda packed, problem: problem_of(packed, problem.m),
    worth_timing=candidates,
    untuned=untuned,
)
ENTRY = kernel_entry(
    KERNEL,
    "blocked",
    weight=BlockedTritonWeight,
    multiply=multiply_blocked_triton,
    pack=pack_for_triton,
    unsupported=triton_unsupported_reason,
    tunable=LAUNCHES,
)
