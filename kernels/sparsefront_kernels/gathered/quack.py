"""`gathered_quack`: 16-bit products by QuACK's grouped GEMM, which gathers A along K; feature-major; package quack-kernels.

`gemm(A, B, out, cu_seqlens_k, A_idx)`: out[g] = A[:, A_idx[g's]] · B[g's], where group g's are the indices from
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

from sparsefront_kernels.common.device_support import cuda_unsupported_reason
from sparsefront_kernels.common.operands import aligned_by_input, check_operands, run_length
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.format import GatheredFormat
from sparsefront_kernels.kernel_op import kernel_entry
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.tuning import TunedLaunches

KERNEL = "gathered_quack"
VERSION = 1  # raised when a change of the kernel makes old measurements useless
EXTRA = "quack"  # of sparsefront: what installs it
CAPABILITY = (9, 0)
K_BLOCK = 64  # inputs of a k-block of its kernel in 16 bits: longer lists cost nothing up to the next multiple
WIDTH_MULTIPLE = 8  # outputs of a tile: rows of B begin at 16 bytes
# (rows of a block, pingpong, cluster): the first was the fastest of large products on an H200
_BLOCKS = ((256, False, 1), (256, False, 2), (128, True, 1), (128, True, 2), (128, False, 1), (192, True, 1))
_HALF_WIDTH_BLOCKS = ((128, True, 1), (256, False, 1))  # of half the outputs, where blocks are few
_TILE_NS = (16, 32, 64, 128)
_FEW_BLOCKS = 4  # to a processor, counted in blocks of 256 rows: fewer leave room for smaller ones


@dataclass(frozen=True, eq=False)
class QuackPackedWeight:
    """What QuACK reads.

    The narrow last tile has columns of zeros up to the full width. A tile's list is repeated at its last input, with zeros
    for weights, up to a whole number of k-blocks: these are computed anyhow, and no k-block is then read in part.

    Args:
        n, k: outputs and inputs of the weight.
        panels: [all kept, width], row-major.
        kept: int32 [all kept].
        offsets: int32 [tiles + 1]; tile t's are kept[offsets[t] : offsets[t + 1]].
        order: int32 [tiles], most kept inputs first; None where all keep equally many.
        outputs: int32 [stored outputs]; row i of the product, tile by tile, is output outputs[i].
        rows: int32 [n]: where output i is found among the rows of the product; tiles · width where it is not stored.
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
    """Why tiles of this many outputs cannot be groups, or None."""
    if tile % WIDTH_MULTIPLE == 0:
        return None
    return f"takes tiles whose outputs are a multiple of {WIDTH_MULTIPLE}, not {tile}"


def pack_for_quack(stored: GatheredFormat) -> QuackPackedWeight:
    """Lay the weight out on the format's device.

    Raises:
        ValueError: tiles that `tile_unsupported_reason` rejects.
    """
    if reason := tile_unsupported_reason(stored.tile):
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
    """W [N, K], without a look at the weight's contents from the host."""
    panels, kept, offsets = packed.panels, packed.kept, packed.offsets
    tiles, width = len(offsets) - 1, panels.shape[1]
    rank = torch.arange(len(kept), device=panels.device)
    tile = torch.searchsorted(offsets.long(), rank, right=True) - 1
    row = tile[:, None] * width + torch.arange(width, device=panels.device)
    dense = panels.new_zeros(tiles * width + 1, packed.k)  # what is not stored is found in the last row
    # a list repeats its last input at weights of zero: added up, these leave the weight as it is
    dense = dense.index_put((row, kept.long()[:, None]), panels, accumulate=True)
    return dense[packed.rows.long()]


@dataclass(frozen=True, order=True)
class QuackLaunch:
    """What of QuACK's configuration matters where A is gathered: the cluster is 1 along N, and the scheduler static.

    Args:
        tile_m, tile_n: of a block: rows of X, and outputs.
        pingpong: two warpgroups take turns with tiles, instead of sharing one.
        cluster_m: blocks, 1 or 2, that share the weights.
        longest_first: whether groups with many inputs begin first.
    """

    tile_m: int
    tile_n: int
    pingpong: bool
    cluster_m: int = 1
    longest_first: bool = True


def gathered_quack(x: Tensor, packed: QuackPackedWeight, bias: Tensor | None) -> Tensor:
    """Y = W · X + bias.

    Args:
        x: [K, M]; float16 or bfloat16 as the weight, any strides. An M that is no multiple of 8 and unaligned rows cost a
            copy of X, and the former one of Y.
        bias: [N], any float dtype, or None; PyTorch adds it in x's dtype, after the product was rounded.
    Returns:
        [N, M], contiguous, in x's dtype; added up in float32. Where outputs are dropped or permuted Y is copied into its
        own order: QuACK writes tiles one after the other.
    Raises:
        ValueError: operands that do not fit together.
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
            tiled[-1].zero_()  # what outputs that are not stored are
            y = tiled.index_select(0, packed.rows)[:, :m].contiguous()
        return y if bias is None else y + bias.to(y.dtype)[:, None]


def tiled_product(x: Tensor, packed: QuackPackedWeight, launch: QuackLaunch, *, more: int = 0) -> Tensor:
    """W · X with the outputs of W as they are stored, tile by tile, where the narrow last tile is filled up.

    Args:
        x: [K, M], aligned as `aligned_by_input` gives it.
        more: rows that are added, not set.
    Returns:
        [tiles · width + more, M] of x's dtype; tiles without inputs give zeros.
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
    """Write out on the current stream; the first call of a launch compiles for seconds.

    Args:
        a: [M, K], M contiguous and a multiple of 8, 16-byte aligned in every column.
        b: [all kept, N], contiguous; N a multiple of 8.
        out: [groups, M, N], M contiguous; of one dtype with a and b.
        offsets: int32 [groups + 1].
        kept: int32 [all kept], columns of a.
        order: int32 [groups], in which they begin; None: as they are.
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
        blocks += [(tile_m, width // 2, pingpong, cluster) for tile_m, pingpong, cluster in _HALF_WIDTH_BLOCKS]
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


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    return tile_unsupported_reason(stored.tile) or problem_unsupported_reason(problem)


def problem_unsupported_reason(problem: Problem) -> str | None:
    """Why QuACK does not support a problem's dtype and device, or None."""
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return f"takes float16 or bfloat16, not {problem.dtype}"
    if reason := cuda_unsupported_reason(problem, minimum_capability=CAPABILITY):
        return reason
    if (capability := torch.cuda.get_device_capability(problem.device)) != CAPABILITY:
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
    except Exception as error:  # of packages that do not fit together, in all the ways in which that shows
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
