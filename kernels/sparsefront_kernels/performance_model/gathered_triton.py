"""Work of the Triton kernel: a program per part of a tile, with the launch of `common.launch_shape` or, in TF32, tuned."""

from math import ceil

from sparsefront_kernels.common.launch import power_of_two_within, rows_of_block
from sparsefront_kernels.performance_model.product import Product
from sparsefront_kernels.performance_model.rates import DeviceRates
from sparsefront_kernels.performance_model.work import Tiling, Work

STAGES, MOST_BLOCKS = 4, 4
SHARED_BYTES = 227 << 10
SECTOR = 32
TUNED_BLOCK_M = (32, 64, 128, 256)  # in TF32, where the kernel is tuned
K_BLOCKS = {"fp32": 16, "tf32": 32}  # inputs of a k-block; of the others 64


def work(product: Product, rates: DeviceRates) -> Work:
    """A row-major X is gathered element by element, of which each costs a sector where its neighbours are not kept."""
    block_n = power_of_two_within(max(1, product.granularity), lowest=16, highest=128)
    block_k = K_BLOCKS.get(product.dtype, 64)
    column_blocks = ceil(product.n / max(1, product.granularity)) * ceil(max(1, product.granularity) / block_n)
    chosen = (rows_of_block(product.m, column_blocks, rates.num_sms),)
    tilings = (
        _tiling(product, rates, block_m, block_n, block_k, column_blocks)
        for block_m in (TUNED_BLOCK_M if product.dtype == "tf32" else chosen)
    )
    return product.work(rates, tilings, scattered=not product.x_by_feature)


def _tiling(
    product: Product, rates: DeviceRates, block_m: int, block_n: int, block_k: int, column_blocks: int
) -> Tiling:
    size = product.element_bytes
    of_x = size if product.x_by_feature else min(SECTOR, size / max(1e-3, 1 - product.sparsity))
    k_block = block_k * (block_m + block_n) * size
    return Tiling(
        blocks=column_blocks * ceil(product.m / block_m),
        at_once=rates.num_sms * max(1, min(MOST_BLOCKS, SHARED_BYTES // (STAGES * k_block))),
        k_blocks=max(1, ceil((1 - product.sparsity) * product.k / block_k)),
        flops=2 * block_k * block_m * block_n,
        k_block_bytes=block_k * (block_m * of_x + block_n * size),
        stored_bytes=block_m * block_n * size,
    )
