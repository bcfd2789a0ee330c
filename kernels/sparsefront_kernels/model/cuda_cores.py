"""Work of the float32 kernel on CUDA cores: tiles of 32, 64 or 128 outputs, 8 × 8 or 8 × 16 results to a thread."""

from itertools import product as every
from math import ceil

from sparsefront_kernels.model.product import Product
from sparsefront_kernels.model.rates import DeviceRates
from sparsefront_kernels.model.work import Tiling, Work

WIDTHS = (128, 64, 32)  # outputs of a tile; narrower ones are united
THREADS, OUTPUTS = 128, 8  # of a block; of a thread
COLUMNS_AND_BLOCKS = ((16, 2), (8, 3))  # of a thread; to a multiprocessor
SLICES = (1, 2, 4)  # warps that share the inputs of one piece of Y
SPLITS = (1, 2, 3, 4, 6, 8)
STEP = 16


def work(product: Product, rates: DeviceRates) -> Work:
    """Every kept input of a tile is loaded for it alone."""
    size = product.element_bytes
    width = next((width for width in WIDTHS if product.granularity % width == 0), WIDTHS[-1])
    kept = product.kept_by_any(width) * product.k
    steps = max(1, ceil(kept / STEP))
    tilings = []
    for (columns, blocks_per_sm), slices, splits in every(COLUMNS_AND_BLOCKS, SLICES, SPLITS):
        block_m = THREADS * OUTPUTS * columns // (width * slices)
        tilings.append(
            Tiling(
                blocks=ceil(product.n / width) * ceil(product.m / block_m) * splits,
                at_once=rates.processors * blocks_per_sm,
                steps=ceil(steps / splits),
                flops=2 * STEP * width * block_m,
                step_bytes=STEP * (width + block_m) * size,
                stored_bytes=width * block_m * size * slices / splits,  # slices are added up first
                splits=splits,
            )
        )
    return product.work(rates, tilings, turns_x=not product.x_by_feature, turns_y=not product.y_by_feature)
