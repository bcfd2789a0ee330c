"""`blocked_fp8_sm90`: blocked weights in e4m3 on the tensor cores of compute capability 9.0 (`csrc/blocked_fp8_sm90.cu`).

X is e4m3 with float32 scales, one per row or per row and 128 inputs; W is e4m3 with one scale per output. Y is 16-bit, or
quantized as the next product's X. `fp8_reference.py` computes the same in plain PyTorch.
"""

import ctypes
import functools
import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.blocked.pieces import Costs, PieceTables, estimated_end, piece_tables, shares
from sparsefront_kernels.cuda.host_tables import keep_for_graphs
from sparsefront_kernels.cuda.launch import (
    TYPE_CODES,
    address,
    argument_fields,
    clusters_at_once,
    launch_with,
    was_read_before,
)
from sparsefront_kernels.cuda.wgmma_layout import swizzled
from sparsefront_kernels.custom_op import custom_op
from sparsefront_kernels.epilogue import check_activation
from sparsefront_kernels.gathered.sm90_schedule import MOST_SCHEDULES, tables_on_device
from sparsefront_kernels.indices import partners_of
from sparsefront_kernels.operands import Epilogue, bias_for_kernel, check_epilogue, loadable
from sparsefront_kernels.quantized.quantize import quantize_weight

LIBRARY = "blocked_fp8_sm90"
E4M3 = torch.float8_e4m3fn
GROUP = 128  # inputs, or outputs, of a row that share a scale
HALF = 64  # outputs per half
OUTPUTS = 2 * HALF  # per CTA tile
K_BLOCK = 128  # inputs loaded together: a row of shared memory
NO_OUTPUTS = 0xFFFF  # marks a missing half
BOTH = 3  # k-block used by both halves; 1 is half 0, 2 half 1
ROWS = 64  # rows of X per warpgroup
OUT_TYPES = (torch.float16, torch.bfloat16)
E4M3_CODE = 4  # type of Y, besides TYPE_CODES


@dataclass(frozen=True, eq=False)
class BlockedFp8Weight:
    """The packed weight.

    64 outputs form a half, and two halves a CTA tile, as in `BlockedSm90Weight`. A k-block is 128 inputs kept by half 0, half 1
    or both; the k-blocks of a CTA tile are ordered along K.

    Args:
        n, k: outputs and inputs of the weight.
        panels: e4m3 [panels, 64, 128]: 64 outputs by the 128 inputs of a k-block, swizzled, in k-block order; if both halves
            use a k-block, half 0's panel comes first.
        scales: float32 [N], of each output.
        k_blocks: int32 [k_blocks, 2]: index of the 128 inputs; 4 * first panel + a bit mask of the halves that use it.
        outputs: first output / 64 of each half of each CTA tile, -1 if there is none.
        lengths: number of k-blocks of each CTA tile, descending.
        halves: whether any k-block is used by only one half.
    """

    n: int
    k: int
    panels: Tensor
    scales: Tensor
    k_blocks: Tensor
    outputs: tuple[int, ...]
    lengths: tuple[int, ...]
    halves: bool

    @property
    def has_adjacent_halves(self) -> bool:
        """Whether each CTA tile has 128 neighboring outputs, as required for a quantized Y."""
        pairs = zip(self.outputs[::2], self.outputs[1::2], strict=True)
        return all(first % 2 == 0 and second == first + 1 for first, second in pairs)


def weight_unsupported_reason(stored: BlockedFormat) -> str | None:
    """Why halves and k-blocks cannot be cut from this weight's blocks, or None."""
    (height, width), n, most = stored.block, stored.shape[0], HALF * NO_OUTPUTS
    if height % HALF or width % K_BLOCK:
        return (
            f"takes blocks of a multiple of {HALF} outputs by a multiple of {K_BLOCK} inputs, not {height}x{width}: "
            f"its operands lie in rows of {K_BLOCK} inputs, the bytes that shared memory gives at a time"
        )
    return None if n <= most else f"takes up to {most} outputs, not {n}: tiles have the number of a half in 16 bits"


def pack_for_blocked_fp8_sm90(stored: BlockedFormat, *, adjacent_halves: bool = False) -> BlockedFp8Weight:
    """Quantize the weight with a scale per output and pack it, on the format's device.

    Args:
        stored: values of any float dtype.
        adjacent_halves: True pairs neighboring halves, as `blocked_fp8_quantized` requires; False pairs those that share
            most blocks.
    Raises:
        ValueError: `weight_unsupported_reason` rejects the weight, or a half has no neighbor.
    """
    reason = weight_unsupported_reason(stored)
    if reason:
        raise ValueError(f"blocked: {reason}")
    n, k = stored.shape
    if adjacent_halves and n % OUTPUTS:
        raise ValueError(f"blocked: adjacent halves need outputs in multiples of {OUTPUTS}, not {n}")
    outputs, keeps = _cta_tiles(stored, adjacent=adjacent_halves)  # [CTA tiles, 2], bool [CTA tiles, 2, K / 128]
    of_tiles = keeps.any(dim=1)
    count = of_tiles.sum(dim=1)
    order = count.argsort(descending=True, stable=True)
    outputs, keeps, count = outputs[order], keeps[order], count[order]
    tile, column = of_tiles[order].nonzero(as_tuple=True)
    of_halves = keeps[tile, :, column]  # bool [k_blocks, 2]
    used = of_halves.sum(dim=1)
    uses = of_halves[:, 0] + 2 * of_halves[:, 1].long()
    owner, half = of_halves.nonzero(as_tuple=True)  # k-block by k-block, half 0 first
    weight, scales = quantize_weight(stored.to_dense(), "fp8")
    return BlockedFp8Weight(
        n=n,
        k=k,
        panels=_panels(weight, outputs[tile[owner], half] * HALF, column[owner] * K_BLOCK),
        scales=scales[:, 0].contiguous(),
        k_blocks=torch.stack([column, 4 * (used.cumsum(0) - used) + uses], dim=1).to(torch.int32),
        outputs=tuple(outputs.flatten().tolist()),
        lengths=tuple(count.tolist()),
        halves=bool((uses != BOTH).any()),
    )


def dense_weight(packed: BlockedFp8Weight) -> Tensor:
    """Dequantized W, float64 [N, K]."""
    device = packed.panels.device
    values = _swizzled(packed.panels).double()
    first_panel, uses = (packed.k_blocks[:, 1] >> 2).long(), packed.k_blocks[:, 1] & 3
    tile = torch.repeat_interleave(
        torch.arange(len(packed.lengths), device=device), torch.tensor(packed.lengths, device=device)
    )
    outputs = torch.tensor(packed.outputs, device=device).view(-1, 2)
    dense = values.new_zeros(packed.n // HALF, packed.k // K_BLOCK, HALF, K_BLOCK)
    for half in range(2):
        mine = (uses >> half & 1).bool()
        panel = first_panel[mine] + half * (uses[mine] == BOTH)
        dense[outputs[tile[mine], half], packed.k_blocks[mine, 0].long()] = values[panel]
    return dense.transpose(1, 2).reshape(packed.n, packed.k) * packed.scales.double()[:, None]


def _cta_tiles(stored: BlockedFormat, *, adjacent: bool) -> tuple[Tensor, Tensor]:
    """The halves of each CTA tile: first outputs / 64, int64 [CTA tiles, 2], and kept k-blocks, bool [CTA tiles, 2, K / 128]."""
    (n, k), (height, width), device = stored.shape, stored.block, stored.device
    keeps = torch.zeros(n // height, k // width, dtype=torch.bool, device=device)
    keeps[stored.block_rows(), stored.block_columns.long()] = True
    keeps = keeps.repeat_interleave(height // HALF, dim=0).repeat_interleave(width // K_BLOCK, dim=1)
    outputs = torch.arange(n // HALF, device=device)
    if height % OUTPUTS and not adjacent:
        order = partners_of(keeps)
        outputs, keeps = outputs[order], keeps[order]
    missing = len(outputs) % 2
    return pad(outputs, (0, missing), value=-1).view(-1, 2), pad(keeps, (0, 0, 0, missing)).view(-1, 2, k // K_BLOCK)


def _panels(weight: Tensor, first_outputs: Tensor, first_inputs: Tensor) -> Tensor:
    """e4m3 [panels, 64, 128], swizzled."""
    rows = first_outputs[:, None, None] + torch.arange(HALF, device=weight.device)[:, None]
    columns = first_inputs[:, None, None] + torch.arange(K_BLOCK, device=weight.device)
    return _swizzled(weight.view(torch.uint8)[rows, columns].view(E4M3))


def _swizzled(panels: Tensor) -> Tensor:
    """Swizzle rows of 128 bytes for the tensor cores; its own inverse."""
    return swizzled(panels.view(torch.int16)).view(E4M3)


def blocked_fp8(
    x: Tensor,
    x_scales: Tensor,
    packed: BlockedFp8Weight,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    activation: str = "none",
    out_dtype: torch.dtype = torch.float16,
) -> Tensor:
    """Y = activation(X · Wᵀ + bias) + residual, rounded once.

    Args:
        x: e4m3 [M, K].
        x_scales: float32 [M, 1], or [M, K / 128] per 128 inputs.
        packed: the weight.
        bias: [N], any float dtype, or None.
        residual: [M, N] in `out_dtype`, or None; unaligned rows cost a copy.
        activation: a name of `epilogue.ACTIVATIONS`.
        out_dtype: float16 or bfloat16.
    Returns:
        [M, N], contiguous. Tensor cores accumulate 128 inputs; these sums are added in float32.
    Raises:
        ValueError: incompatible operands, or an unknown activation or dtype.
    """
    if out_dtype not in OUT_TYPES:
        raise ValueError(f"blocked_fp8: out_dtype must be float16 or bfloat16, not {out_dtype}")
    return _op(x, x_scales, *_parts(packed), bias, residual, activation, out_dtype == torch.bfloat16)


def blocked_fp8_quantized(
    x: Tensor, x_scales: Tensor, packed: BlockedFp8Weight, bias: Tensor | None = None, *, activation: str = "none"
) -> tuple[Tensor, Tensor]:
    """Y = activation(X · Wᵀ + bias), quantized for the next product as in `quantized.quantize` with groups of 128.

    Args:
        packed: with `adjacent_halves`, or with blocks of multiples of 128 outputs.
        others: as in `blocked_fp8`.
    Returns:
        e4m3 [M, N] and float32 scales [M, N / 128].
    Raises:
        ValueError: as in `blocked_fp8`, or halves are not neighbors.
    """
    if not packed.has_adjacent_halves:
        raise ValueError("blocked_fp8_quantized: the weight must be packed with adjacent_halves=True")
    return _quantized_op(x, x_scales, *_parts(packed), bias, activation)


_PARTS = tuple(field.name for field in fields(BlockedFp8Weight))


def _parts(packed: BlockedFp8Weight) -> tuple:
    return tuple(getattr(packed, part) for part in _PARTS)


_WEIGHT = "SymInt n, SymInt k, Tensor panels, Tensor scales, Tensor k_blocks, int[] outputs, int[] lengths, bool halves"


@custom_op(
    LIBRARY,
    f"(Tensor x, Tensor x_scales, {_WEIGHT}, Tensor? bias, Tensor? residual, str activation, bool bfloat16) -> Tensor",
)
def _op(x, x_scales, n, k, panels, scales, k_blocks, outputs, lengths, halves, bias, residual, activation, bfloat16):  # type: ignore[no-untyped-def]
    packed = BlockedFp8Weight(n, k, panels, scales, k_blocks, tuple(outputs), tuple(lengths), halves)
    _check(x, x_scales, packed, bias)
    y = x.new_empty((len(x), n), dtype=OUT_TYPES[bfloat16])
    check_epilogue(y, activation, residual)
    if y.numel():
        launch_blocked_fp8(x, x_scales, y, packed, bias=bias, residual=residual, activation=activation)
    return y


@_op.register_fake
def _(x, x_scales, n, k, panels, scales, k_blocks, outputs, lengths, halves, bias, residual, activation, bfloat16):  # type: ignore[no-untyped-def]
    return x.new_empty((x.shape[0], n), dtype=OUT_TYPES[bfloat16])


@custom_op(
    f"{LIBRARY}_quantized", f"(Tensor x, Tensor x_scales, {_WEIGHT}, Tensor? bias, str activation) -> (Tensor, Tensor)"
)
def _quantized_op(x, x_scales, n, k, panels, scales, k_blocks, outputs, lengths, halves, bias, activation):  # type: ignore[no-untyped-def]
    packed = BlockedFp8Weight(n, k, panels, scales, k_blocks, tuple(outputs), tuple(lengths), halves)
    _check(x, x_scales, packed, bias)
    check_activation(activation)
    y, y_scales = x.new_empty((len(x), n)), x_scales.new_empty((len(x), n // GROUP))
    if y.numel():
        launch_blocked_fp8(x, x_scales, y, packed, y_scales=y_scales, bias=bias, activation=activation)
    return y, y_scales


@_quantized_op.register_fake
def _(x, x_scales, n, k, panels, scales, k_blocks, outputs, lengths, halves, bias, activation):  # type: ignore[no-untyped-def]
    return x.new_empty((x.shape[0], n)), x_scales.new_empty((x.shape[0], n // GROUP))


def _check(x: Tensor, x_scales: Tensor, packed: BlockedFp8Weight, bias: Tensor | None) -> None:
    """Raise ValueError unless the operands are compatible: the kernel would read out of bounds."""
    if x.ndim != 2 or x.shape[1] != packed.k or x.dtype != E4M3:
        raise ValueError(f"x must be float8_e4m3fn [M, K] with K = {packed.k}, not {x.dtype} {list(x.shape)}")
    groups = packed.k // GROUP
    if x_scales.shape not in ((len(x), 1), (len(x), groups)) or x_scales.dtype != torch.float32:
        actual = f"{x_scales.dtype} {list(x_scales.shape)}"
        raise ValueError(f"x_scales must be float32 [{len(x)}, 1] or [{len(x)}, {groups}], not {actual}")
    if bias is not None and (bias.shape != (packed.n,) or not bias.is_floating_point()):
        raise ValueError(f"bias must be a float [{packed.n}], not {bias.dtype} {list(bias.shape)}")
    for name, operand in (("x_scales", x_scales), ("the weight", packed.panels), ("bias", bias)):
        if operand is not None and operand.device != x.device:
            raise ValueError(f"{name} is on {operand.device}, x on {x.device}")


@dataclass(frozen=True, order=True)
class BlockedFp8Launch:
    """Launch parameters.

    Args:
        warpgroups: consumer warpgroups per block, 2 or 3; each has 64 rows of X.
        cluster: 1, 2 or 4 blocks that compute the same outputs for different rows of X; each multicasts an equal part of the
            weights.
        splits: 0, or 1 to 8 blocks that share the k-blocks of a tile of 64 rows and reduce through distributed shared memory;
            their two warpgroups share k-blocks too. Requires cluster 1.
        cut: whether tiles may be cut into pieces to balance the blocks; see `pieces`. Requires splits 0.
        pdl: programmatic dependent launch, as in `sm90.BlockedLaunch`.
    """

    warpgroups: int = 2
    cluster: int = 1
    splits: int = 0
    cut: bool = False
    pdl: bool = True

    @property
    def rows(self) -> int:
        """Rows of X per cluster work tile."""
        return ROWS if self.splits else ROWS * self.warpgroups * self.cluster

    @property
    def blocks(self) -> int:
        """Number of blocks per cluster."""
        return max(self.cluster, self.splits)


SPACE = (
    *(BlockedFp8Launch(warpgroups, cluster) for warpgroups in (2, 3) for cluster in (1, 2)),
    *(BlockedFp8Launch(splits=splits) for splits in (1, 2, 4, 8)),
    *(BlockedFp8Launch(warpgroups, cluster, cut=True) for warpgroups in (2, 3) for cluster in (1, 2, 4)),
)
# Microseconds on an H200: for a launch; for a tile (mostly its epilogue); for a k-block used by one half, or both, by
# warpgroups; and for blocks that share a tile. Measured, except for three warpgroups, which are estimated from L2 bandwidth.
_START, _TILE, _ONE_BOTH = 3.8, 1.2, {2: (0.33, 0.42), 3: (0.44, 0.54)}
# For a piece; for the reduction kernel; and per megabyte of sums.
_PIECE, _ADD_UP, _SUM_MEGABYTE = 1.2, 1.5, 0.25
_MOST_CUT = 6  # tiles per cluster up to which cutting is tried; more tiles balance without it
_SPLIT_START, _SPLIT_TILE, _SPLIT_BOTH, _SPLIT_ONE = 3.0, 3.7, 0.34, 0.27
_ROW_GROUP_BYTES = 24 << 20  # how much of X stays in L2 while all CTA tiles use it
_LARGE_X_BYTES = 24 << 20  # size of X beyond L2, where sharing weights in clusters is faster


def choose_launch(packed: BlockedFp8Weight, m: int, clusters_at_once: Callable[[int], int]) -> BlockedFp8Launch:
    """The launch with the lowest predicted latency.

    Args:
        clusters_at_once: blocks per cluster -> number of concurrent clusters.
    """
    together = tuple(clusters_at_once(launch.blocks) for launch in SPACE)
    return _choose_launch(packed.lengths, len(packed.panels), m, packed.k, together)


@functools.lru_cache(maxsize=MOST_SCHEDULES)
def _choose_launch(
    lengths: tuple[int, ...], panels: int, m: int, k: int, together: tuple[int, ...]
) -> BlockedFp8Launch:
    shared = _share_of_both(panels, lengths)
    predicted = {
        launch: _predicted_us(lengths, shared, m, k, launch, clusters)
        for launch, clusters in zip(SPACE, together, strict=True)
        if _is_considered(launch, len(lengths), m, k, clusters)
    }
    return min(predicted, key=predicted.__getitem__)


def _is_considered(launch: BlockedFp8Launch, tiles: int, m: int, k: int, clusters: int) -> bool:
    if launch.cut:
        columns = -(-m // launch.rows)
        return columns * tiles <= _MOST_CUT * clusters and columns * launch.rows - m < ROWS * launch.warpgroups
    return launch.splits > 0 or launch.cluster == 1 + (m * k > _LARGE_X_BYTES)


def _costs(launch: BlockedFp8Launch, shared: float) -> Costs:
    """Costs of a tile that may be cut, in microseconds. shared: fraction of k-blocks used by both halves."""
    one, both = _ONE_BOTH[launch.warpgroups]
    adding = _ADD_UP, _SUM_MEGABYTE * launch.rows * OUTPUTS * 4 / 1e6
    return Costs(_TILE, _PIECE, one + shared * (both - one), adding)


def _predicted_us(
    lengths: tuple[int, ...], shared: float, m: int, k: int, launch: BlockedFp8Launch, clusters: int
) -> float:
    if launch.splits:
        per_block = _SPLIT_ONE + shared * (_SPLIT_BOTH - _SPLIT_ONE)
        costs = [_SPLIT_TILE + -(-length // launch.splits) * per_block for length in lengths]
        dealt = _deal(costs, m, k, launch.rows, clusters)
        # a cluster's end lets the next one begin, which pays the full start-up
        return max(_SPLIT_START * len(own) + sum(costs[tile] for tile, _ in own) for own in dealt)
    if launch.cut:
        return _START + estimated_end(lengths, -(-m // launch.rows), clusters, _costs(launch, shared))
    one, both = _ONE_BOTH[launch.warpgroups]
    costs = [_TILE + length * (one + shared * (both - one)) for length in lengths]
    dealt = _deal(costs, m, k, launch.rows, clusters)
    return _START + max(sum(costs[tile] for tile, _ in own) for own in dealt)


def _deal(costs: Sequence[float], m: int, k: int, height: int, clusters: int) -> list[list[tuple[int, int]]]:
    """Assign work tiles (CTA tile, first row of X) to clusters: each to the one that is free first, longest lists first.

    Groups of rows are processed in order, so that X stays in L2. Every cluster gets at least one tile.

    Args:
        costs: of a work tile of each CTA tile.
        height: rows of X per work tile.
    """
    group = max(1, _ROW_GROUP_BYTES // (height * k)) * height
    tiles = [
        (tile, row)
        for begin in range(0, m, group)
        for tile in range(len(costs))
        for row in range(begin, min(begin + group, m), height)
    ]
    free = [(0.0, at) for at in range(min(clusters, len(tiles)))]
    dealt: list[list[tuple[int, int]]] = [[] for _ in free]
    for tile, row in tiles:
        busy, at = free[0]
        heapq.heapreplace(free, (busy + costs[tile], at))
        dealt[at].append((tile, row))
    return dealt


def work_tensors(
    packed: BlockedFp8Weight, m: int, launch: BlockedFp8Launch, clusters: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Work tiles of every cluster, for a launch without cutting.

    Args:
        clusters: number of concurrent ones.
    Returns:
        work, int32 [tiles, 4]: outputs / 64 of half 0, with those of half 1 in the upper 16 bits; first k-block; number of
        k-blocks; first row of X. begins, int32 [clusters + 1]. firsts, int32 [clusters, 4]: a copy of each cluster's first
        tile, read without an indirection.
    """
    return _work_tensors(packed.lengths, packed.outputs, m, packed.k, launch, clusters, device)


@functools.lru_cache(maxsize=MOST_SCHEDULES)
def _work_tensors(
    lengths: tuple[int, ...],
    outputs: tuple[int, ...],
    m: int,
    k: int,
    launch: BlockedFp8Launch,
    clusters: int,
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor]:
    if launch.splits:
        dealt = [[(tile, row)] for tile in range(len(lengths)) for row in range(0, m, ROWS)]
    else:
        _, both = _ONE_BOTH[launch.warpgroups]
        dealt = _deal([_TILE + length * both for length in lengths], m, k, launch.rows, clusters)
    starts, halves = [0, *itertools.accumulate(lengths)], _words_of_halves(outputs)
    work = [(halves[tile], starts[tile], lengths[tile], row) for tile, row in itertools.chain.from_iterable(dealt)]
    with torch.device("cpu"):  # regardless of the default device
        begins = torch.tensor([0, *itertools.accumulate(map(len, dealt))], dtype=torch.int32)
        words = torch.tensor(work, dtype=torch.int32).view(-1, 4)
    return tables_on_device(words, begins, device)


@functools.lru_cache(maxsize=MOST_SCHEDULES)
def cut_tensors(
    lengths: tuple[int, ...],
    outputs: tuple[int, ...],
    panels: int,
    m: int,
    launch: BlockedFp8Launch,
    clusters: int,
    device: torch.device,
) -> PieceTables:
    """Pieces of every cluster, for a launch with cutting, with `work` as in `work_tensors`.

    Args:
        panels: total number of panels.
    """
    rows = range(0, m, launch.rows)
    work_shares = shares(lengths, len(rows), clusters, _costs(launch, _share_of_both(panels, lengths)))
    return piece_tables(work_shares, lengths, _words_of_halves(outputs), rows, launch.rows, device)


def _share_of_both(panels: int, lengths: tuple[int, ...]) -> float:
    """Fraction of the k-blocks used by both halves."""
    return panels / max(1, sum(lengths)) - 1


def _words_of_halves(outputs: tuple[int, ...]) -> list[int]:
    """One int32 per CTA tile: outputs / 64 of half 0, with those of half 1 in the upper 16 bits."""
    mask = NO_OUTPUTS
    pairs = zip(outputs[::2], outputs[1::2], strict=True)
    words = [first & mask | (second & mask) << 16 for first, second in pairs]
    return [word - (word >> 31 << 32) for word in words]


class _Arguments(ctypes.Structure):
    """Arguments of the library function, in order."""

    _fields_ = argument_fields(
        (
            *("x", "x_scales", "panels", "k_blocks", "work", "work_begin", "first_work"),
            *("w_scales", "bias", "residual", "y", "y_scales", "units", "cut_tiles", "sums"),
        ),
        ("x_stride", "residual_stride", "y_stride"),
        (
            *("bias_type", "activation", "y_type", "x_groups", "halves", "m", "n", "k"),
            *("warpgroups", "cluster", "splits", "clusters", "cut_tile_count", "piece_units", "pdl"),
        ),
    )


def launch_blocked_fp8(
    x: Tensor,
    x_scales: Tensor,
    y: Tensor,
    packed: BlockedFp8Weight,
    *,
    y_scales: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str = "none",
    launch: BlockedFp8Launch | None = None,
) -> None:
    """Compute Y on the current stream of x's device.

    Args:
        y: [M, N], contiguous, float16 or bfloat16; or e4m3 with `y_scales` [M, N / 128]. Fully overwritten.
        launch: None selects one.
        others: as in `blocked_fp8`, validated.
    Raises:
        RuntimeError: the launch failed.
    """
    m = len(x)
    x, x_scales = loadable(x), x_scales.contiguous()
    epilogue = Epilogue(bias_for_kernel(bias), activation, residual).with_residual(loadable)
    with torch.cuda.device_of(x):
        chosen = launch or choose_launch(packed, m, partial(clusters_at_once, LIBRARY, device=x.device))
        clusters = clusters_at_once(LIBRARY, chosen.blocks, x.device)
        units = cut = sums = None
        if chosen.cut:
            parts = (packed.lengths, packed.outputs, len(packed.panels))
            pieces = keep_for_graphs(packed.k_blocks, cut_tensors(*parts, m, chosen, clusters, x.device))
            work, begins, firsts = pieces.work, pieces.begins, pieces.firsts
            if len(pieces.cut):
                units, cut = pieces.units, pieces.cut
                sums = x_scales.new_empty(pieces.units_in_all * ROWS * OUTPUTS)
        else:
            whole = work_tensors(packed, m, chosen, clusters, x.device)
            work, begins, firsts = keep_for_graphs(packed.k_blocks, whole)
        operands = (x, x_scales, packed.panels, packed.k_blocks, work, begins, firsts, packed.scales)
        results = (epilogue.bias, epilogue.residual, y, y_scales, units, cut, sums)
        arguments = _Arguments(
            *map(address, operands + results),
            x.stride(0),
            epilogue.residual_stride,
            y.stride(0),
            *epilogue.codes,
            TYPE_CODES.get(y.dtype, E4M3_CODE),
            x_scales.shape[1],
            int(packed.halves),
            m,
            packed.n,
            packed.k,
            chosen.warpgroups,
            chosen.cluster,
            chosen.splits,
            len(begins) - 1,
            0 if cut is None else len(cut),
            chosen.rows // ROWS,
            int(chosen.pdl and was_read_before(packed.k_blocks)),
        )
        launch_with(LIBRARY, arguments, x.device)
