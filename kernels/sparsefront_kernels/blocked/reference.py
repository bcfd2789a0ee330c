"""The blocked product in plain PyTorch: the reference for tests, and the CPU implementation."""

from itertools import pairwise

import torch
from torch import Tensor

from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.epilogue import accumulation_dtype


def blocked_reference(x: Tensor, stored: BlockedFormat, bias: Tensor | None = None) -> Tensor:
    """Y[M, N] = X[M, K] · W[N, K]ᵀ + bias, block row by block row over its kept blocks.

    Args:
        x: [M, K], any float dtype; 16-bit inputs are accumulated in float32 and rounded once.
        stored: the weight, on x's device.
        bias: [N] or None.
    Returns:
        [M, N] in x's dtype. Blocks of X without a kept block are not read.
    """
    precision = accumulation_dtype(x.dtype)
    height, width = stored.block
    blocks_of_x = x.to(precision).reshape(-1, stored.shape[1] // width, width)  # [M, K / bk, bk]
    panels = stored.values.to(precision).transpose(1, 2)  # [blocks, bk, bn]
    bounds = stored.row_pointers.tolist()
    products = [
        blocks_of_x.index_select(1, stored.block_columns[start:stop]).flatten(1)
        @ panels[start:stop].reshape(-1, height)
        for start, stop in pairwise(bounds)
    ]
    y = torch.cat(products, dim=1)
    if bias is not None:
        y = y + bias.to(precision)
    return y.to(x.dtype)
