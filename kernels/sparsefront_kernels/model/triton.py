"""Work of the Triton kernel: a program per piece of a tile, with the launch that `common.launch_shape` gives it."""

from math import ceil

from sparsefront_kernels.common.launch_shape import power_of_two_within, rows_of_block
from sparsefront_kernels.model.product import Product
from sparsefront_kernels.model.rates import DeviceRates
from sparsefront_kernels.model.work import Tiling, Work

STAGES, MOST_BLOCKS = 4, 4
SHARED_BYTES = 227 << 10
SECTOR = 32


def work(product: Product, rates: DeviceRates) -> Work:
    """A row-major X is gathered element by element, of which each costs a sector where its neighbours are not kept."""
    size = product.element_bytes
    block_n = power_of_two_within(max(1, product.granularity), lowest=16, highest=128)
    block_k = 16 if product.dtype == "fp32" else 64
    steps = max(1, ceil((1 - product.sparsity) * product.k / block_k))
    of_x = size if product.x_by_feature else min(SECTOR, size / max(1e-3, 1 - product.sparsity))
    pieces = ceil(product.n / max(1, product.granularity)) * ceil(max(1, product.granularity) / block_n)
    block_m = rows_of_block(product.m, pieces, rates.processors)
    step = block_k * (block_m + block_n) * size
    tiling = Tiling(
        blocks=pieces * ceil(product.m / block_m),
        at_once=rates.processors * max(1, min(MOST_BLOCKS, SHARED_BYTES // (STAGES * step))),
        steps=steps,
        flops=2 * block_k * block_m * block_n,
        step_bytes=block_k * (block_m * of_x + block_n * size),
        stored_bytes=block_m * block_n * size,
    )
    return Work(
        tilings=(tiling,),
        processors=rates.processors,
        tera=rates.tflops(product.dtype),
        memory_us=rates.memory_us(product.least_bytes),
        longest=product.longest,
        scattered=not product.x_by_feature,
    )
