"""Gathered tiles with single weights beside them, in the operator benchmark."""

from functools import partial

import torch
from torch import Tensor

from sparsefront_kernels.bench.masks import FamilyMasks, RandomMasks, Storage
from sparsefront_kernels.bench.weights import RANDOM_TILES


def overlaid_tiles(distribution: str, granularity: int, *, overlay: float = 0.05) -> RandomMasks:
    """Random tiles, and a share of all weights wherever they are.

    Args:
        overlay: that share, which counts as kept.
    """
    return RandomMasks(
        "tile_wise",
        partial(_mask, distribution, granularity, overlay),
        partial(_storage, granularity),
        f"overlay={overlay:g}",
    )


def _mask(
    distribution: str, granularity: int, overlay: float, n: int, k: int, sparsity: float, device: torch.device
) -> Tensor:
    tiles = RANDOM_TILES[distribution](n, k, granularity, min(sparsity + overlay, 1.0), device)
    alone = overlay / min(sparsity + overlay, 1.0) if overlay else 0.0  # of what the tiles prune
    return tiles | (torch.rand(n, k, device=device) < alone)


def _storage(granularity: int, sparsity: float) -> Storage:
    return {"gathered_overlay": {"tile": granularity}}


BENCH = FamilyMasks("gathered_overlay", tuple(RANDOM_TILES), granularity=128, source=overlaid_tiles)
