"""Tiles that are 2:4 sparse inside in the operator benchmark."""

from functools import partial

import torch
from torch import Tensor

from sparsefront_kernels.bench.masks import FamilyMasks, RandomMasks, Storage
from sparsefront_kernels.common.indices import GROUP


def halved_tiles(distribution: str, granularity: int) -> RandomMasks:
    """Tiles keep equally many random inputs, and each output two random ones of every four of its tile's."""
    return RandomMasks("tile_2_4", partial(_mask, granularity), partial(_storage, granularity))


def _mask(granularity: int, n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
    if sparsity < 0.5:
        raise ValueError(f"tile_2_4: 2:4 prunes a half, so that a sparsity of {sparsity} cannot be had")
    windows = max(1, min(k // GROUP, round(2 * (1 - sparsity) * k / GROUP)))
    drawn = torch.rand(-(-n // granularity), k, device=device).argsort(dim=1)[:, : windows * GROUP]
    inputs = drawn.sort(dim=1).values.repeat_interleave(granularity, dim=0)[:n]
    kept = torch.rand(n, windows, GROUP, device=device).argsort(dim=2).argsort(dim=2) < 2
    return torch.zeros(n, k, dtype=torch.bool, device=device).scatter_(1, inputs, kept.flatten(1))


def _storage(granularity: int, sparsity: float) -> Storage:
    return {
        "gathered_2_4": {"tile": granularity},
        "gathered": {"tile": granularity, "drop_empty_outputs": True, "fill": True},
    }


BENCH = FamilyMasks("gathered_2_4", ("equal",), granularity=128, source=halved_tiles)
