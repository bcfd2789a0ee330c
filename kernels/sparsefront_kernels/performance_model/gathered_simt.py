"""Work of the float32 kernel on CUDA cores: tiles of 32, 64 or 128 outputs, 8 × 8 or 8 × 16 results to a thread."""

from itertools import product as every
from math import ceil

from sparsefront_kernels.performance_model.product import Product
from sparsefront_kernels.performance_model.rates import DeviceRates
from sparsefront_kernels.performance_model.work import Tiling, Work

WIDTHS = (128, 64, 32)  # outputs of a tile; narrower ones are united
THREADS, OUTPUTS = 128, 8  # of a block; of a thread
COLUMNS_AND_BLOCKS = ((16, 2), (8, 3))  # of a thread; to a multiprocessor
WARP_SPLIT_K = (1, 2, 4)  # warps that share the inputs of one work tile
SPLITS = (1, 2, 3, 4, 6, 8)
K_BLOCK = 16


def work(product: Product, rates: DeviceRates) -> Work:
    """Every kept input of a tile is loaded for it alone."""
    size = product.element_bytes
    width = next((width for width in WIDTHS if product.granularity % width == 0), WIDTHS[-1])
    kept = product.kept_by_any(width) * product.k
    k_blocks = max(1, ceil(kept / K_BLOCK))
    tilings = []
    for (columns, blocks_per_sm), warp_split_k, splits in every(COLUMNS_AND_BLOCKS, WARP_SPLIT_K, SPLITS):
        block_m = THREADS * OUTPUTS * columns // (width * warp_split_k)
        tilings.append(
            Tiling(
                blocks=ceil(product.n / width) * ceil(product.m / block_m) * splits,
                at_once=rates.num_sms * blocks_per_sm,
                k_blocks=ceil(k_blocks / splits),
                flops=2 * K_BLOCK * width * block_m,
                k_block_bytes=K_BLOCK * (width + block_m) * size,
                stored_bytes=width * block_m * size * warp_split_k / splits,  # k-slices are added up first
                splits=splits,
            )
        )
    return product.work(rates, tilings, turns_x=not product.x_by_feature, turns_y=not product.y_by_feature)
