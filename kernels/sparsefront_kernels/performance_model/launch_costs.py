"""What a launch of a gathered kernel costs, from what it counts: coarse, but enough to rank launches.

The levels are those of `work.py`, from a launch over rounds of blocks down to a k-block. The constants are another set: they
are of one launch each, where a fit of that formula knows the fastest launch only, and they need no rates of the device, since
a launch must be chosen on every GPU. All were fitted to measurements on an H200, in microseconds unless said.
"""

from collections.abc import Sequence
from typing import Any

# Of the Hopper kernel, by (columns of a block, blocks to a multiprocessor): of the launch, of a work tile beyond its
# k-blocks, of a k-block.
_CUDA = {
    (128, 1): (2.5, 1.6, 0.43),
    (128, 2): (3.3, 2.3, 0.84),
    (64, 1): (2.1, 1.0, 0.33),
    (64, 2): (1.2, 1.5, 0.66),
}
# Of blocks that share a work tile's k-blocks, for 128 columns: they wait for one another, and send their sums.
_CUDA_SPLITS = {1: 0.0, 2: 3.0, 3: 4.0, 4: 6.0}
_REACHED_BY_CLUSTERS = 0.85  # of the SMs, by clusters of three blocks and more
_PREFETCH_GAIN, _PREFETCH_COST = 0.3, 0.06  # of the launch; of every further k-block of a block
# Of the Hopper kernel for many rows: of the launch; cycles where the tensor cores are busy; cycles of a work tile, of a
# column of it (stores), of a k-block, of a column of a k-block.
_MANY_ROWS, _CYCLES_PER_US = 2.7, 1700
_TILE, _TILE_COLUMN, _K_BLOCK, _K_BLOCK_COLUMN = 900, 13.0, 520, 3.4
# Where blocks share k-blocks, by the columns of the widest tile: cycles of a tile, of a column of it, of a k-block, of a column
# of a k-block. Then of sums that go through memory: of the kernel that adds them up, and of a column of a part.
_SHARED = {128: (500, 4.0, 380, 3.5), 256: (500, 4.0, 565, 3.7)}
_SUMS = {128: (1500, 0.6), 256: (3400, 0.39)}

# Of the float32 kernel: of the launch; of a block beyond its products, by columns of a thread; of a further block that
# shares a work tile.
_SIMT, _SIMT_TAIL, _SIMT_SPLIT = 3.0, {16: 3.0, 8: 2.0}, 0.7
# Factors on the time of products: shorter rows of X come slower; clusters of more than two blocks leave SMs idle
_WARP_SPLIT_K = {1: 1.0, 2: 1.04, 4: 1.13}
_LARGE_CLUSTER = 1.25
# Products a microsecond on one multiprocessor by its number of blocks, by columns of a thread
_SIMT_RATE = {16: (150e3, 200e3), 8: (110e3, 165e3, 175e3)}

# Of the kernel for few rows (weights of 1024² to 5120 × 20480, M of 1 to 64), within some 12 %: of a launch; of what takes
# 1 µs to stream; of what takes 1 µs to gather from L2; of a turn of a ring; of a further wave of blocks; of a cluster, and of
# each of its further blocks; of 10 000 sums that an SM adds up; of eight rows of X.
_SMALL_M = {
    "lanes": (3.2, 1.16, 0.80, 0.18, 3.2, 0.16, 0.074, 0.32, 0.20),
    "shared": (3.1, 1.10, 1.31, 0.10, 3.5, 0.38, 0.060, 0.14, 0.33),
}
_STREAMED, _GATHERED = 4.25e6, 5.5e6  # bytes a microsecond
_FEWEST_BLOCKS = 60  # that stream at the full rate


def cuda_us(launch: Any, lengths: Sequence[int], columns: int, num_sms: int) -> float:
    """Rounds of blocks, each a start, its k-blocks and its stores; a round lasts as long as its longest tile.

    Args:
        launch: a `Sm90Launch` of `gathered_sm90`, which imports this module.
        lengths: k-blocks of each CTA tile, most first.
        columns: work tiles of a CTA tile; `launch.splits` blocks share one.
    """
    start, tail, k_block = _CUDA[launch.block_m, launch.blocks_per_sm]
    reached = _REACHED_BY_CLUSTERS if launch.splits > 2 else 1.0
    at_once = max(1, int(num_sms * reached * launch.blocks_per_sm) // launch.splits)
    group = launch.raster_swizzle  # of CTA tiles: the longest of those that a round takes from is the group's first
    firsts = [lengths[tile // (group * columns) * group] for tile in range(0, len(lengths) * columns, at_once)]
    k_blocks = sum(-(-first // launch.splits) for first in firsts)
    predicted = start + len(firsts) * (tail + _CUDA_SPLITS[launch.splits] * launch.block_m / 128) + k_blocks * k_block
    if launch.prefetch:
        predicted += _PREFETCH_COST * max(0.0, k_blocks - launch.stages) - _PREFETCH_GAIN
    return predicted


def cuda_many_rows_us(cycles: float) -> float:
    """From the cycles of the block that ends last, sums of `cuda_tile_cycles`."""
    return _MANY_ROWS + cycles / _CYCLES_PER_US


def cuda_tile_cycles(k_blocks: int, columns: int) -> float:
    """Cycles of one work tile of the kernel for many rows."""
    return _TILE + _TILE_COLUMN * columns + k_blocks * (_K_BLOCK + _K_BLOCK_COLUMN * columns)


def shared_tile_cycles(k_blocks: int, columns: int, widest: int) -> float:
    """Cycles of one work tile, or of a part of its k-blocks, in the kernel for tiles of up to `widest` columns."""
    tile, column, _, _ = _SHARED[widest]
    return tile + column * columns + k_blocks * shared_k_block_cycles(columns, widest)


def shared_k_block_cycles(columns: int, widest: int) -> float:
    """Of those, of one k-block."""
    _, _, k_block, column = _SHARED[widest]
    return k_block + column * columns


def sums_cycles(parts: int, widest: int) -> float:
    """Cycles for the sums of so many parts of shared tiles."""
    launch, column = _SUMS[widest]
    return launch + column * parts * widest


def simt_us(launch: Any, blocks: int, products: float, num_sms: int) -> float:
    """Full rounds of blocks of a `SimtLaunch`, with so many products each, then one in which SMs have fewer blocks."""
    products *= _WARP_SPLIT_K[launch.warp_split_k] * (_LARGE_CLUSTER if launch.splits > 2 else 1.0)
    tail, rates = _SIMT_TAIL[launch.columns], _SIMT_RATE[launch.columns]
    rounds, rest = divmod(blocks, num_sms * launch.blocks_per_sm)
    most = -(-rest // num_sms)  # blocks of an SM in the last round

    def round_us(share: int) -> float:
        return tail + share * products / rates[share - 1] if share else 0.0

    return _SIMT + rounds * round_us(launch.blocks_per_sm) + round_us(most) + _SIMT_SPLIT * (launch.splits - 1)


def small_m_us(
    gather: str,
    *,
    blocks: int,
    streamed_bytes: int,
    gathered_bytes: int,
    turns: int,
    waves: int,
    splits: int,
    sums: int,
    rows: int,
) -> float:
    """In a stream of such kernels.

    Args:
        streamed_bytes, gathered_bytes: of the weight from memory and of X from L2, of all blocks.
        turns: of a block's ring.
        sums: that an SM adds up.
        rows: of X, in units of eight.
    """
    stream_us = streamed_bytes / _STREAMED * max(1, _FEWEST_BLOCKS / blocks)
    gather_us = gathered_bytes / _GATHERED
    terms = (1, stream_us, gather_us, turns * waves, waves - 1, splits > 1, splits - 1, sums / 1e4, rows)
    return sum(cost * term for cost, term in zip(_SMALL_M[gather], terms, strict=True))
