"""PyTorch's Triton kernel for block-sparse rows (BSR), with a search over launch parameters.

PyTorch ships parameters for the A100 only, and its tuner takes minutes per shape; the settings here include those it tends to
choose.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.sparse._triton_ops import bsr_dense_addmm

from sparsefront_kernels.bench.families import random_blocks
from sparsefront_kernels.bench.masks import DrawnWeight
from sparsefront_kernels.bench.problems import Setting
from sparsefront_kernels.bench.provider import Call, Provider, numbered, provider_of
from sparsefront_kernels.blocked.format import BlockedFormat

SIDES = (64, 128)
WIDTHS = (64, 128, 256)  # columns of X per thread block
STAGES_AND_WARPS = ((3, 4), (3, 8))
SMALL_SIDE = 32  # block side up to which more stages hide the loads, and fewer warps share a block
STAGES_AND_WARPS_OF_SMALL = ((3, 4), (5, 4), (3, 2), (5, 2))
LARGEST_IN_FP32 = 64  # side and width: PyTorch accumulates float32 in float64, which uses many registers
LAYOUT = "feature_major"

SAME_MASK_KERNEL = "triton_bsr_same_mask"
FAMILY = "blocked"  # storage of the weight

Launch = dict[str, int]


def unsupported_reason(dtype_name: str, sparsity: float) -> str | None:
    """Why it is unsupported for any shape, or None."""
    return "PyTorch's kernel takes no TF32" if dtype_name == "tf32" else None


def providers(setting: Setting) -> list[Provider]:
    """Every block side that divides the weight, with every launch setting that divides M.

    X is padded beforehand to an M that some width divides; padding is not timed.
    """
    shape = setting.shape
    variants = []
    for side in SIDES:
        if shape.n % side or shape.k % side or (setting.dtype_name == "fp32" and side > LARGEST_IN_FP32):
            continue
        blocks = random_blocks(shape.n, shape.k, (side, side), setting.sparsity, setting.device)
        weight = setting.weight() * blocks
        reference = setting.reference(weight)
        copies = numbered(weight.to_sparse_bsr((side, side)))
        own = {"family": "blocked", "kernel": "triton_bsr", "pattern": "block_wise", "distribution": "equal"}
        own |= {"granularity": side, "weight_bytes": _stored_bytes(copies(0)), "reference": reference}
        own |= {"sparsity": 1 - copies(0).values().numel() / (shape.n * shape.k), "layout": LAYOUT}
        variants += [provider_of(setting, make=make, **own) for make in _makers(setting, copies, side)]
    return variants


def same_mask_providers(setting: Setting, drawn: DrawnWeight) -> list[Provider]:
    """With the same weight as our kernels, whatever its blocks: every launch worth timing.

    X is padded beforehand to a supported M; padding is not timed.
    """
    stored = drawn.stored[FAMILY]
    assert isinstance(stored, BlockedFormat)
    # 64-bit indices, as PyTorch's own conversion produces
    pointers, columns = stored.row_pointers.long(), stored.block_columns.long()
    copies = numbered(torch.sparse_bsr_tensor(pointers, columns, stored.values, stored.shape))
    own = {"family": FAMILY, "kernel": SAME_MASK_KERNEL, "weight_bytes": _stored_bytes(copies(0)), **drawn.columns}
    return [provider_of(setting, layout=LAYOUT, make=make, **own) for make in _makers(setting, copies, stored.block[0])]


def _makers(setting: Setting, copies: Callable[[int], Tensor], side: int) -> Iterator[Callable[[int], Call]]:
    """Functions that make the calls of a provider, one per launch worth timing.

    Args:
        copies: index of a copy -> the weight as torch.sparse_bsr.
        side: outputs per block.
    """
    m = setting.shape.m
    largest = LARGEST_IN_FP32 if setting.dtype_name == "fp32" else max(WIDTHS)
    widths = [width for width in WIDTHS if m % width == 0 and width <= largest] or [width_of(m)]
    rows = -(-m // widths[0]) * widths[0]
    for width in widths:
        for stages, warps in STAGES_AND_WARPS_OF_SMALL if side <= SMALL_SIDE else STAGES_AND_WARPS:
            launch = {"GROUP_SIZE_ROW": 4, "SPLIT_N": rows // width, "num_stages": stages, "num_warps": warps}
            yield _maker(setting, copies, rows, launch)


def _stored_bytes(stored: Tensor) -> int:
    """Bytes of a torch.sparse_bsr, counting 32-bit indices."""
    return stored.values().nbytes + 4 * stored.col_indices().numel() + 4 * stored.crow_indices().numel()


def width_of(m: int) -> int:
    """For an M that none of `WIDTHS` divides: the smallest sufficient power of two, from the minimum of tl.dot."""
    return max(16, min(min(WIDTHS), 1 << (m - 1).bit_length()))


def _maker(setting: Setting, copies: Callable[[int], Tensor], rows: int, launch: Launch) -> Callable[[int], Call]:
    shape = setting.shape

    def make(copy: int) -> Call:
        x, w = setting.x_in(LAYOUT, copy, rows=rows), copies(copy)
        unused = x.new_zeros(shape.n, rows)
        return lambda: bsr_dense_addmm(unused, w, x, beta=0, meta=launch)[:, : shape.m]

    return make
