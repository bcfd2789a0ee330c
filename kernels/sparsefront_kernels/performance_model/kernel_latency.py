"""A kernel's predicted latency: how it divides a product into blocks, and what a block computes, loads and stores.

`work.py` converts that to microseconds. Kernels are identified by name, without layout and number format.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product as every
from math import ceil

from sparsefront_kernels.cuda.launch import power_of_two_within, rows_of_block
from sparsefront_kernels.performance_model.product import Product
from sparsefront_kernels.performance_model.rates import DeviceRates, rates_for
from sparsefront_kernels.performance_model.work import Tiling, Work, time_us

_SPLITS = (1, 2, 3, 4, 6, 8)  # blocks that share the inputs of one work tile
_SECTOR = 32  # minimum bytes per gathered row of X

# cuBLAS: typical tile sizes of libraries
_LARGE = ((256, 128), (128, 256), (128, 128), (64, 256), (256, 64), (64, 128), (128, 64))
_DENSE_TILES = (*_LARGE, (64, 64), (16, 64), (16, 128))
_DENSE_K_BLOCK = 64


def _cublas(product: Product, rates: DeviceRates) -> Work:
    """Equal for all layouts of X, W and Y, which the library reads directly."""
    size = product.element_bytes
    k_blocks = ceil(product.k / _DENSE_K_BLOCK)
    tilings = [
        Tiling(
            blocks=ceil(product.m / block_m) * ceil(product.n / block_n) * splits,
            at_once=rates.num_sms,
            k_blocks=ceil(k_blocks / splits),
            flops=2 * _DENSE_K_BLOCK * block_m * block_n,
            k_block_bytes=_DENSE_K_BLOCK * (block_m + block_n) * size,
            stored_bytes=block_m * block_n * size,
            splits=splits,
        )
        for block_m, block_n in _DENSE_TILES
        for splits in _SPLITS
    ]
    return product.work(rates, tilings)


# the tensor-core kernel for Hopper (gathered/README.md): CTA tiles of 128 outputs, k-blocks of 64 inputs
_HALF, _CTA_TILE, _SM90_K_BLOCK, _MMA_TILE = 64, 128, 64, 16
_SM90_BLOCK_M, _SM90_SPLITS = (64, 128, 256), (1, 2, 4)


def _gathered_sm90(product: Product, rates: DeviceRates) -> Work:
    """An input kept by both halves is loaded once; a half multiplies the inputs that any of its tiles keeps."""
    size = product.element_bytes
    half = product.kept_by_any(_HALF) * product.k
    shared = product.granularity >= _CTA_TILE
    rows = half if shared else product.kept_by_any(_CTA_TILE) * product.k
    rows += (1 if shared else 3) * _MMA_TILE / 2  # of each kind of inputs the last MMA tile is half empty
    k_blocks = max(1, ceil(rows / _SM90_K_BLOCK))
    tilings = [
        Tiling(
            blocks=ceil(product.n / _CTA_TILE) * ceil(product.m / block_m) * splits,
            at_once=rates.num_sms,
            k_blocks=ceil(k_blocks / splits),
            flops=2 * (2 * half * _HALF) * block_m / k_blocks,
            k_block_bytes=(_SM90_K_BLOCK * block_m + 2 * half * _HALF / k_blocks) * size,
            stored_bytes=_CTA_TILE * block_m * size / splits,
            splits=splits,
        )
        for block_m, splits in every(_SM90_BLOCK_M, _SM90_SPLITS)
    ]
    return product.work(rates, tilings, turns_x=not product.x_by_feature, turns_y=not product.y_by_feature)


# the float32 kernel on CUDA cores: tiles of 32, 64 or 128 outputs, 8 × 8 or 8 × 16 results to a thread
_SIMT_WIDTHS = (128, 64, 32)  # outputs per tile; narrower ones are merged
_THREADS, _OUTPUTS = 128, 8  # per block; per thread
_COLUMNS_AND_BLOCKS = ((16, 2), (8, 3))  # per thread; per SM
_WARP_SPLIT_K = (1, 2, 4)  # warps that share the inputs of one work tile
_SIMT_K_BLOCK = 16


def _gathered_simt(product: Product, rates: DeviceRates) -> Work:
    """Each tile loads its kept inputs separately."""
    size = product.element_bytes
    width = next((width for width in _SIMT_WIDTHS if product.granularity % width == 0), _SIMT_WIDTHS[-1])
    kept_inputs = product.kept_by_any(width) * product.k
    k_blocks = max(1, ceil(kept_inputs / _SIMT_K_BLOCK))
    tilings = []
    for (columns, blocks_per_sm), warp_split_k, splits in every(_COLUMNS_AND_BLOCKS, _WARP_SPLIT_K, _SPLITS):
        block_m = _THREADS * _OUTPUTS * columns // (width * warp_split_k)
        tilings.append(
            Tiling(
                blocks=ceil(product.n / width) * ceil(product.m / block_m) * splits,
                at_once=rates.num_sms * blocks_per_sm,
                k_blocks=ceil(k_blocks / splits),
                flops=2 * _SIMT_K_BLOCK * width * block_m,
                k_block_bytes=_SIMT_K_BLOCK * (width + block_m) * size,
                stored_bytes=width * block_m * size * warp_split_k / splits,  # warps reduce their sums first
                splits=splits,
            )
        )
    return product.work(rates, tilings, turns_x=not product.x_by_feature, turns_y=not product.y_by_feature)


# the kernel for few rows: row tiles of up to 128 outputs, chunks of 16 gathered inputs
_SMALL_M_WIDTHS = (128, 64, 32, 16)  # outputs per row tile; narrower tiles are merged
_CHUNK, _FRAGMENT = 16, 16
_FRAGMENTS = (1, 2, 4, 8)
_BLOCKS_PER_SM = 4
_MOST_ROWS = 64
_GATHERED_ROWS = 8  # up to which X is gathered from any layout; otherwise rows are first made contiguous
_WARPS = 8  # per block, which share its inputs and reduce at the end


def _gathered_small_m(product: Product, rates: DeviceRates) -> Work | None:
    """The weight is read once; each CTA of a row tile gathers X. None for too many rows."""
    if product.m > _MOST_ROWS:
        return None
    size = product.element_bytes
    width = next((width for width in _SMALL_M_WIDTHS if product.granularity % width == 0), _SMALL_M_WIDTHS[-1])
    chunks = max(1, ceil(product.kept_by_any(width) * product.k / _CHUNK))
    apart = not product.x_by_feature and product.m <= _GATHERED_ROWS  # a sector for two inputs of a row
    row = _SECTOR * product.m / 2 if apart else max(_SECTOR, product.m * size)
    tilings = []
    for fragments, splits in every(_FRAGMENTS, _SPLITS):
        if width % (fragments * _FRAGMENT) == 0:
            outputs = fragments * _FRAGMENT
            tilings.append(
                Tiling(
                    blocks=ceil(product.n / outputs) * splits,
                    at_once=rates.num_sms * _BLOCKS_PER_SM,
                    k_blocks=chunks / splits,
                    flops=2 * _CHUNK * outputs * max(8, product.m),
                    k_block_bytes=_CHUNK * (outputs * size + row),
                    stored_bytes=_WARPS * outputs * max(8, product.m) * 4,
                    splits=splits,
                )
            )
    return product.work(rates, tilings, turns_x=not (product.x_by_feature or apart))


# the Triton kernel: a program per part of a tile, with the launch of `cuda/launch.py` or, in TF32, a tuned one
_STAGES, _MOST_BLOCKS = 4, 4
_SHARED_BYTES = 227 << 10
_TUNED_BLOCK_M = (32, 64, 128, 256)  # in TF32, which is tuned
_TRITON_K_BLOCKS = {"fp32": 16, "tf32": 32}  # inputs per k-block; otherwise 64


def _gathered_triton(product: Product, rates: DeviceRates) -> Work:
    """A row-major X is gathered element by element; each costs a sector if its neighbors are not kept."""
    block_n = power_of_two_within(max(1, product.granularity), lowest=16, highest=128)
    block_k = _TRITON_K_BLOCKS.get(product.dtype, 64)
    column_blocks = ceil(product.n / max(1, product.granularity)) * ceil(max(1, product.granularity) / block_n)
    chosen = (rows_of_block(product.m, column_blocks, rates.num_sms),)
    tilings = (
        _triton_tiling(product, rates, block_m, block_n, block_k, column_blocks)
        for block_m in (_TUNED_BLOCK_M if product.dtype == "tf32" else chosen)
    )
    return product.work(rates, tilings, scattered=not product.x_by_feature)


def _triton_tiling(
    product: Product, rates: DeviceRates, block_m: int, block_n: int, block_k: int, column_blocks: int
) -> Tiling:
    size = product.element_bytes
    of_x = size if product.x_by_feature else min(_SECTOR, size / max(1e-3, 1 - product.sparsity))
    k_block = block_k * (block_m + block_n) * size
    return Tiling(
        blocks=column_blocks * ceil(product.m / block_m),
        at_once=rates.num_sms * max(1, min(_MOST_BLOCKS, _SHARED_BYTES // (_STAGES * k_block))),
        k_blocks=max(1, ceil((1 - product.sparsity) * product.k / block_k)),
        flops=2 * block_k * block_m * block_n,
        k_block_bytes=block_k * (block_m * of_x + block_n * size),
        stored_bytes=block_m * block_n * size,
    )


# kernel -> (product, rates) -> work, or None if the kernel does not support the product
FAMILIES: dict[str, Callable[[Product, DeviceRates], Work | None]] = {
    "gathered_sm90": _gathered_sm90,
    "gathered_simt": _gathered_simt,
    "gathered_small_m": _gathered_small_m,
    "gathered_triton": _gathered_triton,
    "cublas": _cublas,
}
_ALIKE = {"bf16": "fp16"}  # number formats with the same rates


@dataclass(frozen=True)
class Prediction:
    """A kernel's predicted latency.

    Args:
        latency_us: predicted microseconds.
        error: 90th percentile of the relative error for (K, N) that were not fitted. Infinite if the fit saw only one (K, N):
            constants fit a handful of rows in any case.
    """

    latency_us: float
    error: float


def predict(product: Product, kernel: str, gpu: str) -> Prediction | None:
    """Latency of a kernel on a GPU model or the one that stands in for it.

    None for an unknown kernel or GPU, an unsupported product, or if a constant that affects the time was never fitted, such as
    for a layout that was not measured.
    """
    rates = rates_for(gpu)
    return None if rates is None else predict_with(product, kernel, rates)


def predict_with(product: Product, kernel: str, rates: DeviceRates) -> Prediction | None:
    """Like `predict`, with these rates."""
    key = constants_key(kernel, product.dtype)
    constants = rates.constants.get(key)
    if constants is None or product.m < 1 or (work := FAMILIES[family_of(kernel)](product, rates)) is None:
        return None
    if not work.constants <= constants.keys():
        return None
    return Prediction(time_us(work, constants), rates.errors.get(key, {}).get("held_out_p90", float("inf")))


def family_of(kernel: str) -> str | None:
    """The kernel of `FAMILIES` whose name is a prefix of this one, or None."""
    return next((name for name in FAMILIES if kernel.startswith(name)), None)


def constants_key(kernel: str, dtype: str) -> str | None:
    """Key of a kernel's constants, such as "gathered_sm90 fp16"; None for an unknown kernel."""
    family = family_of(kernel)
    if family == "cublas" and dtype == "tf32":
        family = kernel  # TF32 tensor cores support one order of operands: each layout is another kernel
    return family and f"{family} {_ALIKE.get(dtype, dtype)}"
