"""Gathered weights in the operator benchmark."""

from functools import partial

import torch
from torch import Tensor

from sparsefront_kernels.bench.masks import FamilyMasks, RandomMasks, Storage
from sparsefront_kernels.bench.weights import RANDOM_TILES

PATTERNS = {"equal": "vector_wise", "uneven": "tile_wise"}


def random_tiles(distribution: str, granularity: int) -> RandomMasks:
    """Tiles keep random inputs, as many as `weights.RANDOM_TILES` says, and all outputs."""
    return RandomMasks(
        PATTERNS[distribution],
        partial(_mask, distribution, granularity),
        partial(_storage, granularity),
    )


def _mask(distribution: str, granularity: int, n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
    return RANDOM_TILES[distribution](n, k, granularity, sparsity, device)


def _storage(granularity: int, sparsity: float) -> Storage:
    return {"gathered": {"tile": granularity, "drop_empty_outputs": False}}


BENCH = FamilyMasks("gathered", tuple(RANDOM_TILES), granularity=128, source=random_tiles)
