"""`gathered_quack`: 16-bit products with QuACK's grouped GEMM, which gathers A along K; feature-major; package quack-kernels.

`gemm(A, B, out, cu_seqlens_k, A_idx)`: out[g] = A[:, A_idx[group g]] · B[group g], where group g has the indices from
cu_seqlens_k[g] to cu_seqlens_k[g + 1]. A is [M, K] with M contiguous, B [all kept, N] with N contiguous, out [groups, M, N]
with M contiguous. Source: Dao et al., QuACK 0.6.5, `quack/gemm_interface.py`.
"""

import functools
import importlib
import importlib.util
from dataclasses import dataclass, replace
from types import ModuleType

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.device_support import cuda_unsupported_reason
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.format import GatheredFormat
from sparsefront_kernels.kernel_op import kernel_entry
from sparsefront_kernels.operands import aligned_by_input, check_operands, run_length
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.tuning import TunedLaunches

KERNEL = "gathered_quack"
VERSION = 1  # increment when a change of the kernel invalidates measurements
EXTRA = "quack"  # extra of sparsefront that installs it
CAPABILITY = (9, 0)
K_BLOCK = 64  # 16-bit inputs per k-block of its kernel: padding lists to a multiple is free
WIDTH_MULTIPLE = 8  # outputs of a tile: rows of B are 16-byte aligned
# (rows per block, pingpong, cluster): the first was the fastest for large products on an H200
_BLOCKS = ((256, False, 1), (256, False, 2), (128, True, 1), (128, True, 2), (128, False, 1), (192, True, 1))
_HALF_WIDTH_BLOCKS = ((128, True, 1), (256, False, 1))  # with half the outputs, for few blocks
_TILE_NS = (16, 32, 64, 128)
_FEW_BLOCKS = 4  # per SM, in blocks of 256 rows: with fewer, smaller blocks are tried


@dataclass(frozen=True, eq=False)
class QuackPackedWeight:
    """The weight as QuACK reads it.

    A narrower last tile is padded with columns of zeros. Each list is padded to a whole number of k-blocks by repeating its
    last
    input with zero weights: these are computed anyway, and no k-block is read partially.

    Args:
        n, k: outputs and inputs of the weight.
        panels: [all kept, width], row-major.
        kept: int32 [all kept].
        offsets: int32 [tiles + 1]; tile t has kept[offsets[t] : offsets[t + 1]].
        order: int32 [tiles], most kept inputs first; None if all keep equally many.
        outputs: int32 [stored outputs]; row i of the product, in tile order, is output outputs[i].
        rows: int32 [n]: row of output i in the product; tiles · width if it is not stored.
        consecutive: whether the first n rows of the product are the outputs in their own order.
    """

    n: int
    k: int
    panels: Tensor
    kept: Tensor
    offsets: Tensor
    order: Tensor | None
    outputs: Tensor
    rows: Tensor
    consecutive: bool


def tile_unsupported_reason(tile: int) -> str | None:
    """Why tiles with this many outputs cannot be groups, or None."""
    if tile % WIDTH_MULTIPLE == 0:
        return None
    return f"takes tiles whose outputs are a multiple of {WIDTH_MULTIPLE}, not {tile}"


def pack_for_quack(stored: GatheredFormat) -> QuackPackedWeight:
    """Pack the weight, on the format's device.

    Raises:
        ValueError: `tile_unsupported_reason` rejects the tiles.
    """
    reason = tile_unsupported_reason(stored.tile)
    if reason:
        raise ValueError(f"gathered: {reason}")
    (n, k), tile, device = stored.shape, stored.tile, stored.device
    panels, lists = [stored.values.new_empty(0, tile)], [stored.kept_inputs[:0]]
    for outputs, inputs, panel in stored.panels():
        more = -len(inputs) % K_BLOCK
        panels.append(pad(panel, (0, tile - len(outputs), 0, more)))
        lists += [inputs, inputs[-1:].expand(more)]
    counts = (stored.tile_offsets.diff() + K_BLOCK - 1) // K_BLOCK * K_BLOCK
    uneven = stored.tiles > 1 and int(counts.min()) != int(counts.max())
    rows = torch.full((n,), stored.tiles * tile, dtype=torch.int32, device=device)
    rows[stored.output_index.long()] = torch.arange(len(stored.output_index), dtype=torch.int32, device=device)
    return QuackPackedWeight(
        n=n,
        k=k,
        panels=torch.cat(panels),
        kept=torch.cat(lists),
        offsets=pad(counts.cumsum(0), (1, 0)).to(torch.int32),
        order=counts.argsort(descending=True, stable=True).to(torch.int32) if uneven else None,
        outputs=stored.output_index,
        rows=rows,
        consecutive=stored.consecutive,
    )


def dense_weight(packed: QuackPackedWeight) -> Tensor:
    """Unpack W [N, K] without synchronizing."""
    panels, inputs, offsets = packed.panels, packed.kept, packed.offsets
    tiles, width = len(offsets) - 1, panels.shape[1]
    rank = torch.arange(len(inputs), device=panels.device)
    tile = torch.searchsorted(offsets.long(), rank, right=True) - 1
    row = tile[:, None] * width + torch.arange(width, device=panels.device)
    dense = panels.new_zeros(tiles * width + 1, packed.k)  # the last row is for outputs that are not stored
    # accumulate, because lists repeat their last input with zero weights
    dense = dense.index_put((row, inputs.long()[:, None]), panels, accumulate=True)
    return dense[packed.rows.long()]


@dataclass(frozen=True, order=True)
class QuackLaunch:
    """The part of QuACK's configuration that matters for gathered A: cluster size 1 along N, and a static scheduler.

    Args:
        tile_m, tile_n: rows of X and outputs per block.
        pingpong: two warpgroups alternate between tiles, instead of sharing one.
        cluster_m: blocks, 1 or 2, that share the weights.
        longest_first: process groups with many inputs first.
    """

    tile_m: int
    tile_n: int
    pingpong: bool
    cluster_m: int = 1
    longest_first: bool = True


def gathered_quack(x: Tensor, packed: QuackPackedWeight, bias: Tensor | None) -> Tensor:
    """Y = W · X + bias.

    Args:
        x: [K, M]; float16 or bfloat16 like the weight, any strides. An M that is not a multiple of 8 or unaligned rows cost a
            copy of X, and the former one of Y.
        bias: [N], any float dtype, or None; added by PyTorch in x's dtype after the product was rounded.
    Returns:
        [N, M], contiguous, in x's dtype; accumulated in float32. If outputs are dropped or permuted, Y is copied to its own
        order, because QuACK writes tiles consecutively.
    Raises:
        ValueError: incompatible operands.
    """
    check_operands(x, packed.panels, bias, k=packed.k, n=packed.n, feature_major=True)
    m = x.shape[1]
    if m == 0:
        return x.new_empty(packed.n, 0)
    with torch.cuda.device_of(x):
        by_input = aligned_by_input(x, feature_major=True)
        launch = LAUNCHES.launch_for(QuackProblem.of(packed, by_input.shape[1]), x.device)
        if packed.consecutive:
            y = tiled_product(by_input, packed, launch)[: packed.n, :m].contiguous()
        else:
            tiled = tiled_product(by_input, packed, launch, more=1)
            tiled[-1].zero_()  # for outputs that are not stored
            y = tiled.index_select(0, packed.rows)[:, :m].contiguous()
        return y if bias is None else y + bias.to(y.dtype)[:, None]


def tiled_product(x: Tensor, packed: QuackPackedWeight, launch: QuackLaunch, *, more: int = 0) -> Tensor:
    """W · X with outputs in storage order, tile by tile, and the last tile padded.

    Args:
        x: [K, M], from `aligned_by_input`.
        more: additional uninitialized rows.
    Returns:
        [tiles · width + more, M] in x's dtype; zeros for tiles without inputs.
    """
    tiles, width, m = len(packed.offsets) - 1, packed.panels.shape[1], x.shape[1]
    y = x.new_empty(tiles * width + more, m)
    stored = y[: tiles * width]
    if len(packed.kept) == 0 or m == 0:
        stored.zero_()
        return y
    groups = stored.view(tiles, width, m).transpose(1, 2)
    order = packed.order if launch.longest_first else None
    grouped_gemm(x.t(), packed.panels, groups, offsets=packed.offsets, kept=packed.kept, order=order, launch=launch)
    return y


def grouped_gemm(
    a: Tensor, b: Tensor, out: Tensor, *, offsets: Tensor, kept: Tensor, order: Tensor | None, launch: QuackLaunch
) -> None:
    """Run the grouped GEMM on the current stream; the first call of a launch compiles for seconds.

    Args:
        a: [M, K], M contiguous and a multiple of 8, every column 16-byte aligned.
        b: [all kept, N], contiguous; N a multiple of 8.
        out: [groups, M, N], M contiguous; same dtype as a and b.
        offsets: int32 [groups + 1].
        kept: int32 [all kept], columns of a.
        order: int32 [groups], processing order; None: as stored.
    """
    gemm, config = _modules()
    chosen = config.GemmConfig(
        tile_m=launch.tile_m,
        tile_n=launch.tile_n,
        pingpong=launch.pingpong,
        is_dynamic_persistent=False,
        cluster_m=launch.cluster_m,
        cluster_n=1,
    )
    gemm.gemm_tuned.fn(a, b, out, cu_seqlens_k=offsets, A_idx=kept, batch_idx_permute=order, config=chosen)


def _modules() -> tuple[ModuleType, ModuleType]:
    return importlib.import_module("quack.gemm_interface"), importlib.import_module("quack.gemm_config")


@dataclass(frozen=True)
class QuackProblem:
    """The properties of a problem that determine the speed of launch parameters.

    Args:
        m, k, n: of the product; m after padding.
        width: outputs per tile.
        tiles, kept: number of tiles, and their total number of kept inputs.
        uneven: whether tiles keep different numbers.
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
        """The problem of a packed weight and m rows of X (padded)."""
        run = run_length(packed.panels.dtype)
        total, width = packed.panels.shape
        tiles = len(packed.offsets) - 1
        return cls(-(-m // run) * run, packed.k, packed.n, width, tiles, total, packed.order is not None)

    @property
    def shape(self) -> str:
        return f"m={self.m} k={self.k} n={self.n} width={self.width} uneven={int(self.uneven)} kept="

    @property
    def amount(self) -> float:
        """Kept inputs per tile."""
        return self.kept / max(1, self.tiles)


def candidates(problem: QuackProblem, num_sms: int) -> list[QuackLaunch]:
    """The launches worth timing, the one that is fastest most often first."""
    width = next((size for size in _TILE_NS if size >= problem.width), _TILE_NS[-1])
    blocks = [(tile_m, width, pingpong, cluster) for tile_m, pingpong, cluster in _BLOCKS]
    if problem.tiles * -(-problem.m // 256) < _FEW_BLOCKS * num_sms and width > _TILE_NS[0]:
        blocks += [(tile_m, width // 2, pingpong, cluster) for tile_m, pingpong, cluster in _HALF_WIDTH_BLOCKS]
    launches = [QuackLaunch(*block, longest_first=problem.uneven) for block in blocks]
    return launches + [replace(launches[0], longest_first=False)] if problem.uneven else launches


LAUNCHES = TunedLaunches(
    KERNEL,
    VERSION,
    QuackLaunch,
    describe=lambda packed, problem: QuackProblem.of(packed, problem.m),
    worth_timing=candidates,
)


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    return tile_unsupported_reason(stored.tile) or problem_unsupported_reason(problem)


def problem_unsupported_reason(problem: Problem) -> str | None:
    """Why QuACK does not support a problem's dtype and device, or None."""
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return f"takes float16 or bfloat16, not {problem.dtype}"
    reason = cuda_unsupported_reason(problem, minimum_capability=CAPABILITY)
    if reason:
        return reason
    capability = torch.cuda.get_device_capability(problem.device)
    if capability != CAPABILITY:
        return "was tried on compute capability 9.0 alone, this GPU has {}.{}".format(*capability)
    return package_unavailable_reason()


def package_unavailable_reason() -> str | None:
    """Why QuACK cannot be imported, or None."""
    for module, package in (("quack", "quack-kernels"), ("cutlass", "nvidia-cutlass-dsl")):
        if importlib.util.find_spec(module) is None:
            return f"{package} is not installed: it comes with sparsefront's extra `{EXTRA}`"
    return _import_error()


@functools.cache
def _import_error() -> str | None:
    try:
        _modules()
    except Exception as error:  # incompatible packages fail in many ways
        return f"quack-kernels cannot be imported: {(str(error).splitlines() or [type(error).__name__])[0]}"
    return None


ENTRY = kernel_entry(
    KERNEL,
    "gathered",
    weight=QuackPackedWeight,
    run=gathered_quack,
    dense=dense_weight,
    pack=pack_for_quack,
    unsupported=_unsupported,
    layouts=("feature_major",),
    tunable=LAUNCHES,
)
