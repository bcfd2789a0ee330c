"""PyTorch's Triton kernel for block-sparse rows (BSR), with a search over its launch parameters.

PyTorch ships parameters tuned for the A100 alone. Its own tuner takes minutes for a shape; these settings hold those it
tends to choose.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.sparse._triton_ops import bsr_dense_addmm

from sparsefront_kernels.bench.correctness import Reference
from sparsefront_kernels.bench.families import random_blocks
from sparsefront_kernels.bench.masks import DrawnWeight
from sparsefront_kernels.bench.problems import Setting
from sparsefront_kernels.bench.provider import Call, Provider, numbered
from sparsefront_kernels.blocked.format import BlockedFormat

SIDES = (64, 128)
WIDTHS = (64, 128, 256)  # columns of X to a block of the grid
STAGES_AND_WARPS = ((3, 4), (3, 8))
SMALL_SIDE = 32  # up to here more stages hide the loads, and fewer warps share a block
STAGES_AND_WARPS_OF_SMALL = ((3, 4), (5, 4), (3, 2), (5, 2))
LARGEST_IN_FP32 = 64  # side and width: PyTorch adds float32 up in float64, which fills the registers
LAYOUT = "feature_major"

SAME_MASK_KERNEL = "triton_bsr_same_mask"
FAMILY = "blocked"  # what it multiplies by

Launch = dict[str, int]


def unsupported_reason(dtype_name: str, sparsity: float) -> str | None:
    """Why it does not run, whatever the shape, or None."""
    return "PyTorch's kernel takes no TF32" if dtype_name == "tf32" else None


def providers(setting: Setting) -> list[Provider]:
    """Every block side that divides the weight, at every launch setting that divides M.

    X is padded beforehand to an M that some width divides; the padding is not in its time.
    """
    shape = setting.shape
    found = []
    for side in SIDES:
        if shape.n % side or shape.k % side or (setting.dtype_name == "fp32" and side > LARGEST_IN_FP32):
            continue
        blocks = random_blocks(shape.n, shape.k, (side, side), setting.sparsity, setting.device)
        weight = setting.weight() * blocks
        reference = setting.reference(weight)
        copies = numbered(weight.to_sparse_bsr((side, side)))
        found += [_provider(setting, side, copies, reference, make) for make in _makers(setting, copies, side)]
    return found


def same_mask_providers(setting: Setting, drawn: DrawnWeight) -> list[Provider]:
    """On the weight that our kernels multiply by, whatever its blocks and rows: every launch worth timing.

    X is padded beforehand to an M that it takes; the padding is not in its time.
    """
    stored = drawn.stored[FAMILY]
    assert isinstance(stored, BlockedFormat)
    # 64-bit indices, as PyTorch's own conversion makes them
    pointers, columns = stored.row_pointers.long(), stored.block_columns.long()
    copies = numbered(torch.sparse_bsr_tensor(pointers, columns, stored.values, stored.shape))
    weight_bytes = _stored_bytes(copies(0))
    return [
        Provider(
            family=FAMILY,
            kernel=SAME_MASK_KERNEL,
            pattern=drawn.pattern,
            granularity=drawn.granularity,
            distribution=drawn.distribution,
            mask_settings=drawn.mask_settings,
            dtype_name=setting.dtype_name,
            layout=LAYOUT,
            sparsity=drawn.sparsity,
            operand_bytes=weight_bytes + setting.activation_bytes,
            weight_bytes=weight_bytes,
            make=make,
            reference=drawn.reference,
        )
        for make in _makers(setting, copies, stored.block[0])
    ]


def _makers(setting: Setting, copies: Callable[[int], Tensor], side: int) -> Iterator[Callable[[int], Call]]:
    """What makes the calls of a provider, for every launch worth timing.

    Args:
        copies: number of a copy -> the weight as torch.sparse_bsr.
        side: outputs of a block.
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
    """Of a torch.sparse_bsr, as if its indices had 32 bits."""
    return stored.values().nbytes + 4 * stored.col_indices().numel() + 4 * stored.crow_indices().numel()


def width_of(m: int) -> int:
    """For an M that none of `WIDTHS` divides: the power of two that holds it, from what tl.dot takes up to the least."""
    return max(16, min(min(WIDTHS), 1 << (m - 1).bit_length()))


def _maker(setting: Setting, copies: Callable[[int], Tensor], rows: int, launch: Launch) -> Callable[[int], Call]:
    shape = setting.shape

    def make(copy: int) -> Call:
        x, w = setting.x_in(LAYOUT, copy, rows=rows), copies(copy)
        unused = x.new_zeros(shape.n, rows)
        return lambda: bsr_dense_addmm(unused, w, x, beta=0, meta=launch)[:, : shape.m]

    return make


def _provider(
    setting: Setting,
    side: int,
    copies: Callable[[int], Tensor],
    reference: Reference,
    make: Callable[[int], Call],
) -> Provider:
    shape, stored = setting.shape, copies(0)
    weight_bytes = _stored_bytes(stored)
    return Provider(
        family="blocked",
        kernel="triton_bsr",
        pattern="block_wise",
        granularity=side,
        distribution="equal",
        dtype_name=setting.dtype_name,
        layout=LAYOUT,
        sparsity=1 - stored.values().numel() / (shape.n * shape.k),
        operand_bytes=weight_bytes + setting.activation_bytes,
        weight_bytes=weight_bytes,
        make=make,
        reference=reference,
    )
