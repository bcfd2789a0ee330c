"""Which blocks of the grid compute which work tiles, as the kernel reads it."""

import functools
import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from sparsefront_kernels.blocked.cuda.parameters import COLUMNS_OF_SPLIT, BlockedLaunch
from sparsefront_kernels.gathered.sm90_schedule import MOST_SCHEDULES, schedule_tensors


def work_tensors(
    lengths: tuple[int, ...],
    m: int,
    launch: BlockedLaunch,
    clusters_at_once: Callable[[int], int],
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor]:
    """The tiles of every cluster of blocks.

    Args:
        lengths: k-blocks of each CTA tile, which lie one after the other, most first.
        m: rows of X.
        clusters_at_once: blocks of a cluster → how many clusters run at the same time.
    Returns:
        work, int32 [tiles, 4]: CTA tile, its first k-block, its number of k-blocks, and the first row of X over the blocks
        that share the weights, with a block's number of rows / 64 - 1 in the upper four bits; begins, int32 [clusters + 1];
        firsts, int32 [clusters, 4]: the first tile of each cluster once more, which it finds without looking where it begins.
    """
    if launch.splits > 1:
        return _split_tensors(lengths, m, device)
    # a cluster's rows of X lie side by side: to the schedule it is a block that has a share of them
    rows = -(-m // launch.cluster)
    return _tensors(lengths, rows, clusters_at_once(launch.cluster), launch.raster_swizzle, device)


@functools.lru_cache(maxsize=MOST_SCHEDULES)
def _tensors(
    lengths: tuple[int, ...], rows: int, clusters: int, raster_swizzle: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    work, begins = schedule_tensors(lengths, rows, clusters, raster_swizzle, device)
    return work, begins, work[begins[:-1].long()]


@functools.lru_cache(maxsize=MOST_SCHEDULES)
def _split_tensors(lengths: tuple[int, ...], m: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """One tile for each cluster, longest lists first."""
    firsts = [0, *itertools.accumulate(lengths)]
    work = [
        (cta_tile, firsts[cta_tile], length, row)
        for cta_tile, length in enumerate(lengths)
        for row in range(0, m, COLUMNS_OF_SPLIT)
    ]
    tiles = torch.tensor(work, dtype=torch.int32).view(-1, 4).to(device)
    return tiles, torch.arange(len(work) + 1, dtype=torch.int32).to(device), tiles
