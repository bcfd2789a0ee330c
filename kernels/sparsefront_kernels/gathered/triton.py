"""`gathered_triton` and `gathered_triton_tf32`: products on any GPU from compute capability 8.0 on (`triton_spmm.py`).

The second multiplies float32 operands in TF32, with tuned launches.
"""

import itertools
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.cuda.launch import LaunchShape, power_of_two_within
from sparsefront_kernels.device_support import triton_unsupported_reason
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.format import GatheredFormat, in_rows
from sparsefront_kernels.kernel_op import kernel_entry
from sparsefront_kernels.operands import Epilogue, aligned_by_input
from sparsefront_kernels.problem import LAYOUTS, Problem
from sparsefront_kernels.tuning import TunedLaunches

KERNEL = "gathered_triton"
KERNEL_TF32 = "gathered_triton_tf32"
VERSION_TF32 = 1  # increment when a change of the kernel invalidates measurements
MOST_CANDIDATES = 18
SMALLEST_SHARED_BYTES = 101_376  # per block on compute capability 8.9: the limit of an untuned launch
SHARED_BYTES = 232_448  # per block on compute capability 9.0
# Rows of X from which a row-major X is transposed first: gathering single elements then takes longer, on an H200 1.5 times at
# 16 rows x 1024 inputs and 3 times at 256 x 4096 (half of them kept), and with a single row about as long.
TRANSPOSED_FROM = 16


@dataclass(frozen=True, eq=False)
class TritonPackedWeight:
    """The packed weight.

    Dropped outputs form additional tiles at the end without inputs, so that one program writes each element of Y. The last
    stored panel is padded to a whole tile: with one row length for all panels, the compiler can prove the alignment of wide
    loads.

    Args:
        n, k: outputs and inputs of the weight.
        values: [sum of kept inputs, tile], row-major.
        kept_inputs: int32 [sum of kept inputs].
        tile_offsets: int64 [tiles + 1], including the tiles of dropped outputs.
        order: int32 [tiles], most kept inputs first, so that long tiles do not start last.
        outputs: int32 [tiles, tile], padded with -1.
        consecutive: whether `outputs` counts up to n, so that stores are contiguous.
    """

    n: int
    k: int
    values: Tensor
    kept_inputs: Tensor
    tile_offsets: Tensor
    order: Tensor
    outputs: Tensor
    consecutive: bool


def pack_for_triton(stored: GatheredFormat) -> TritonPackedWeight:
    """Pack the weight, on the format's device; a narrow last tile costs a copy of the values."""
    (n, k), tile, total = stored.shape, stored.tile, stored.kept_inputs.numel()
    panels = stored.panels()
    values = stored.values
    if values.numel() != total * tile:
        *_, (outputs, _, last) = panels
        full = values[: values.numel() - last.numel()]
        values = torch.cat([full, pad(last, (0, tile - outputs.numel())).flatten()])
    dropped = in_rows(stored.dropped_outputs, tile)
    offsets = torch.cat([stored.tile_offsets, stored.tile_offsets[-1:].expand(len(dropped))])
    return TritonPackedWeight(
        n=n,
        k=k,
        values=values.view(total, tile),
        kept_inputs=stored.kept_inputs,
        tile_offsets=offsets,
        order=offsets.diff().argsort(descending=True, stable=True).to(torch.int32),
        outputs=torch.cat([in_rows(stored.output_index, tile), dropped]),
        consecutive=stored.consecutive,
    )


def dense_weight(packed: TritonPackedWeight) -> Tensor:
    """Unpack W [N, K] without synchronizing."""
    values, kept_inputs = packed.values, packed.kept_inputs
    rank = torch.arange(kept_inputs.shape[0], device=values.device)
    tile = torch.searchsorted(packed.tile_offsets, rank, right=True) - 1
    dense = values.new_zeros(packed.n + 1, packed.k)  # the last row takes padding (output -1)
    dense[packed.outputs.long()[tile], kept_inputs.long()[:, None]] = values
    return dense[: packed.n]


def multiply_triton(
    x: Tensor,
    y: Tensor,
    packed: TritonPackedWeight,
    epilogue: Epilogue,
    x_feature_major: bool,
    y_feature_major: bool,
    *,
    tf32: bool = False,
) -> None:
    """`multiply` of `kernel_entry`; row-major X is copied from `TRANSPOSED_FROM` rows on.

    Args:
        tf32: True rounds float32 operands to TF32 before they are multiplied.
    """
    # late: Triton may be missing if only references run
    from sparsefront_kernels.gathered.triton_spmm import launch_gathered_triton

    launch = None
    if tf32:
        launch = LAUNCHES.launch_for(Tf32Problem.of(packed, x.shape[1 if x_feature_major else 0]), x.device)
    rows = x.t() if x_feature_major else _as_runs(x)
    if y_feature_major:
        y, epilogue = y.t(), epilogue.with_residual(Tensor.t)
    launch_gathered_triton(rows, y, packed, epilogue, launch)


def _as_runs(x: Tensor) -> Tensor:
    """X [M, K] with contiguous inputs, unless there are so few rows that the copy costs more than it saves."""
    m = x.shape[0]
    return x if m < TRANSPOSED_FROM else aligned_by_input(x, feature_major=False)[:, :m].t()


@dataclass(frozen=True)
class Tf32Problem:
    """The properties of a problem that determine the speed of launch parameters.

    Args:
        m, k, n: of the product.
        tile: outputs per tile.
        tiles, kept: number of tiles, and their total number of kept inputs.
    """

    m: int
    k: int
    n: int
    tile: int
    tiles: int
    kept: int

    @classmethod
    def of(cls, packed: TritonPackedWeight, m: int) -> "Tf32Problem":
        """The problem of a packed weight and m rows of X."""
        tiles, tile = packed.outputs.shape
        return cls(m, packed.k, packed.n, tile, tiles, len(packed.kept_inputs))

    @property
    def shape(self) -> str:
        return f"m={self.m} k={self.k} n={self.n} tile={self.tile} kept="

    @property
    def amount(self) -> float:
        """Kept inputs per tile."""
        return self.kept / max(1, self.tiles)

    @property
    def block_n(self) -> int:
        return power_of_two_within(self.tile, lowest=16, highest=128)


def shared_bytes(launch: LaunchShape) -> int:
    """Shared memory of operands in flight: at most one buffer per stage."""
    return 4 * (launch.block_m + launch.block_n) * launch.block_k * launch.num_stages


def candidates(problem: Tf32Problem, *, shared_limit: int = SHARED_BYTES) -> list[LaunchShape]:
    """The launches worth timing, most promising first.

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
    KERNEL_TF32,
    VERSION_TF32,
    LaunchShape,
    describe=lambda packed, problem: Tf32Problem.of(packed, problem.m),
    worth_timing=lambda problem, _: candidates(problem),
    untuned=lambda problem, _: candidates(problem, shared_limit=SMALLEST_SHARED_BYTES)[0],
)


def _tf32_unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    """Why the kernel is unsupported: like PyTorch's own products, it rounds float32 only if the user allows it."""
    if problem.dtype != torch.float32:
        return f"takes float32, not {problem.dtype}"
    if torch.backends.cuda.matmul.fp32_precision != "tf32":
        return 'rounds products to TF32, which torch.backends.cuda.matmul.fp32_precision = "tf32" has to allow'
    return triton_unsupported_reason(stored, problem)


ENTRY = kernel_entry(
    KERNEL,
    "gathered",
    weight=TritonPackedWeight,
    multiply=multiply_triton,
    dense=dense_weight,
    pack=pack_for_triton,
    unsupported=triton_unsupported_reason,
    layouts=LAYOUTS,
    fuses_epilogue=True,
)
TF32_ENTRY = kernel_entry(
    KERNEL_TF32,
    "gathered",
    weight=TritonPackedWeight,
    multiply=partial(multiply_triton, tf32=True),
    dense=dense_weight,
    pack=pack_for_triton,
    unsupported=_tf32_unsupported,
    layouts=LAYOUTS,
    dtype_name="tf32",
    fuses_epilogue=True,
    tunable=LAUNCHES,
)
