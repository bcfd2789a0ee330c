"""Work of the kernel for few rows: row tiles of up to 128 outputs, whose weights stream past chunks of 16 gathered inputs."""

from itertools import product as every
from math import ceil

from sparsefront_kernels.performance_model.product import Product
from sparsefront_kernels.performance_model.rates import DeviceRates
from sparsefront_kernels.performance_model.work import Tiling, Work

WIDTHS = (128, 64, 32, 16)  # outputs of a row tile; narrower tiles are united
CHUNK, FRAGMENT = 16, 16
SECTOR = 32  # bytes: the least that a gathered row of X costs
FRAGMENTS, SPLITS = (1, 2, 4, 8), (1, 2, 3, 4, 6, 8)
BLOCKS_PER_SM = 4
MOST_ROWS = 64
GATHERED_ROWS = 8  # up to which X is gathered from any layout; more rows are brought side by side first
WARPS = 8  # of a block, which share its inputs and add up in the end


def work(product: Product, rates: DeviceRates) -> Work | None:
    """The weight is read once; X is gathered again by each CTA of a row tile. None beyond the rows that it takes."""
    if product.m > MOST_ROWS:
        return None
    size = product.element_bytes
    width = next((width for width in WIDTHS if product.granularity % width == 0), WIDTHS[-1])
    chunks = max(1, ceil(product.kept_by_any(width) * product.k / CHUNK))
    apart = not product.x_by_feature and product.m <= GATHERED_ROWS  # a sector for two inputs of a row, as they lie
    row = SECTOR * product.m / 2 if apart else max(SECTOR, product.m * size)
    tilings = []
    for fragments, splits in every(FRAGMENTS, SPLITS):
        if width % (fragments * FRAGMENT) == 0:
            outputs = fragments * FRAGMENT
            tilings.append(
                Tiling(
                    blocks=ceil(product.n / outputs) * splits,
                    at_once=rates.num_sms * BLOCKS_PER_SM,
                    k_blocks=chunks / splits,
                    flops=2 * CHUNK * outputs * max(8, product.m),
                    k_block_bytes=CHUNK * (outputs * size + row),
                    stored_bytes=WARPS * outputs * max(8, product.m) * 4,
                    splits=splits,
                )
            )
    return product.work(rates, tilings, turns_x=not (product.x_by_feature or apart))
