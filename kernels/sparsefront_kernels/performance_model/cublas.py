"""Work of a dense product: tiles of the sizes that libraries choose from."""

from math import ceil

from sparsefront_kernels.performance_model.product import Product
from sparsefront_kernels.performance_model.rates import DeviceRates
from sparsefront_kernels.performance_model.work import Tiling, Work

TILES = ((256, 128), (128, 256), (128, 128), (64, 256), (256, 64), (64, 128), (128, 64), (64, 64), (16, 64), (16, 128))
SPLITS = (1, 2, 3, 4, 6, 8)
K_BLOCK = 64


def work(product: Product, rates: DeviceRates) -> Work:
    """Every layout of X, W and Y alike: the library reads each of them as it lies."""
    size = product.element_bytes
    k_blocks = ceil(product.k / K_BLOCK)
    tilings = [
        Tiling(
            blocks=ceil(product.m / block_m) * ceil(product.n / block_n) * splits,
            at_once=rates.num_sms,
            k_blocks=ceil(k_blocks / splits),
            flops=2 * K_BLOCK * block_m * block_n,
            k_block_bytes=K_BLOCK * (block_m + block_n) * size,
            stored_bytes=block_m * block_n * size,
            splits=splits,
        )
        for block_m, block_n in TILES
        for splits in SPLITS
    ]
    return product.work(rates, tilings)
