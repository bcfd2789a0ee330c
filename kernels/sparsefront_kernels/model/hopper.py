"""Work of the tensor-core kernel for Hopper (gathered/README.md): pairs of half tiles of 64 outputs, steps of 64 inputs."""

from itertools import product as every
from math import ceil

from sparsefront_kernels.model.product import Product
from sparsefront_kernels.model.rates import DeviceRates
from sparsefront_kernels.model.work import Tiling, Work

HALF, PAIR, STEP, GRANULE = 64, 128, 64, 16
BLOCK_M, SPLITS = (64, 128, 256), (1, 2, 4)


def work(product: Product, rates: DeviceRates) -> Work:
    """An input that both halves keep is loaded once; a half multiplies what one of its tiles keeps."""
    size = product.element_bytes
    half = product.kept_by_any(HALF) * product.k
    shared = product.granularity >= PAIR
    rows = half if shared else product.kept_by_any(PAIR) * product.k
    rows += (1 if shared else 3) * GRANULE / 2  # inputs of one kind fill granules: the last one is half empty
    steps = max(1, ceil(rows / STEP))
    tilings = [
        Tiling(
            blocks=ceil(product.n / PAIR) * ceil(product.m / block_m) * splits,
            at_once=rates.processors,
            steps=ceil(steps / splits),
            flops=2 * (2 * half * HALF) * block_m / steps,
            step_bytes=(STEP * block_m + 2 * half * HALF / steps) * size,
            stored_bytes=PAIR * block_m * size / splits,
            splits=splits,
        )
        for block_m, splits in every(BLOCK_M, SPLITS)
    ]
    return product.work(rates, tilings, turns_x=not product.x_by_feature, turns_y=not product.y_by_feature)
