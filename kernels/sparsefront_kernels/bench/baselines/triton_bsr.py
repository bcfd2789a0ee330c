"""PyTorch's Triton kernel for block-sparse rows (BSR), with a small search over its launch parameters.

PyTorch ships parameters tuned for the A100 alone. Its own tuner takes minutes for a shape; these settings hold those it
tends to choose for 64 and 128 blocks.
"""

from torch import Tensor
from torch.sparse._triton_ops import bsr_dense_addmm

from sparsefront_kernels.bench.contender import Contender
from sparsefront_kernels.bench.setting import Setting
from sparsefront_kernels.bench.weights import square_blocks

SIDES = (64, 128)
WIDTHS = (64, 128, 256)  # columns of X to a block of the grid
STAGES_AND_WARPS = ((3, 4), (3, 8))


def contenders(setting: Setting) -> list[Contender]:
    """Every block side that divides the weight, at every launch setting that divides M."""
    shape = setting.shape
    found = []
    for side in SIDES:
        if shape.n % side or shape.k % side:
            continue
        weight = setting.weight() * square_blocks(shape.n, shape.k, side, setting.sparsity, setting.device)
        expected = setting.expected(weight)
        stored = weight.to_sparse_bsr((side, side))
        for width in WIDTHS:
            if shape.m % width:
                continue
            for stages, warps in STAGES_AND_WARPS:
                launch = {
                    "GROUP_SIZE_ROW": 4,
                    "SPLIT_N": shape.m // width,
                    "num_stages": stages,
                    "num_warps": warps,
                }
                found.append(_contender(setting, side, stored, expected, launch))
    return found


def _contender(setting: Setting, side: int, stored: Tensor, expected: Tensor, launch: dict[str, int]) -> Contender:
    shape = setting.shape
    weight_bytes = stored.values().nbytes + 4 * stored.col_indices().numel() + 4 * stored.crow_indices().numel()

    def make():
        x, w = setting.x_in("feature_major"), stored.clone()
        unused = x.new_zeros(shape.n, shape.m)
        return lambda: bsr_dense_addmm(unused, w, x, beta=0, meta=launch)

    return Contender(
        family="blocked",
        kernel="triton_bsr",
        pattern="block_wise",
        granularity=side,
        distribution="equal",
        layout="feature_major",
        sparsity=1 - stored.values().numel() / (shape.n * shape.k),
        operand_bytes=weight_bytes + setting.activation_bytes,
        weight_bytes=weight_bytes,
        make=make,
        as_rows=lambda y: y.t(),
        expected=expected,
    )
