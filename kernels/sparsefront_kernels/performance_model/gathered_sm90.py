"""Work of the tensor-core kernel for Hopper (gathered/README.md): CTA tiles of 128 outputs, k-blocks of 64 inputs."""

from itertools import product as every
from math import ceil

from sparsefront_kernels.performance_model.product import Product
from sparsefront_kernels.performance_model.rates import DeviceRates
from sparsefront_kernels.performance_model.work import Tiling, Work

HALF, CTA_TILE, K_BLOCK, MMA_TILE = 64, 128, 64, 16
BLOCK_M, SPLITS = (64, 128, 256), (1, 2, 4)


def work(product: Product, rates: DeviceRates) -> Work:
    """An input that both halves keep is loaded once; a half multiplies what one of its tiles keeps."""
    size = product.element_bytes
    half = product.kept_by_any(HALF) * product.k
    shared = product.granularity >= CTA_TILE
    rows = half if shared else product.kept_by_any(CTA_TILE) * product.k
    rows += (1 if shared else 3) * MMA_TILE / 2  # inputs of one kind fill MMA tiles: the last one is half empty
    k_blocks = max(1, ceil(rows / K_BLOCK))
    tilings = [
        Tiling(
            blocks=ceil(product.n / CTA_TILE) * ceil(product.m / block_m) * splits,
            at_once=rates.num_sms,
            k_blocks=ceil(k_blocks / splits),
            flops=2 * (2 * half * HALF) * block_m / k_blocks,
            k_block_bytes=(K_BLOCK * block_m + 2 * half * HALF / k_blocks) * size,
            stored_bytes=CTA_TILE * block_m * size / splits,
            splits=splits,
        )
        for block_m, splits in every(BLOCK_M, SPLITS)
    ]
    return product.work(rates, tilings, turns_x=not product.x_by_feature, turns_y=not product.y_by_feature)
