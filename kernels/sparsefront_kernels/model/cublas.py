"""Work of a dense product: tiles of the sizes that libraries choose from."""

from math import ceil

from sparsefront_kernels.model.product import Product
from sparsefront_kernels.model.rates import DeviceRates
from sparsefront_kernels.model.work import Tiling, Work

TILES = ((256, 128), (128, 256), (128, 128), (64, 256), (256, 64), (64, 128), (128, 64), (64, 64), (16, 64), (16, 128))
SPLITS = (1, 2, 3, 4, 6, 8)
STEP = 64


def work(product: Product, rates: DeviceRates) -> Work:
    """Every layout of X, W and Y alike: the library reads each of them as it lies."""
    size = product.element_bytes
    steps = ceil(product.k / STEP)
    tilings = [
        Tiling(
            blocks=ceil(product.m / block_m) * ceil(product.n / block_n) * splits,
            at_once=rates.processors,
            steps=ceil(steps / splits),
            flops=2 * STEP * block_m * block_n,
            step_bytes=STEP * (block_m + block_n) * size,
            stored_bytes=block_m * block_n * size,
            splits=splits,
        )
        for block_m, block_n in TILES
        for splits in SPLITS
    ]
    return product.work(rates, tilings)
