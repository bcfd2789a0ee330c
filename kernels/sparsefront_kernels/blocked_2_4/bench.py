"""Blocks that are 2:4 sparse themselves in the operator benchmark."""

from functools import partial

import torch
from torch import Tensor

from sparsefront_kernels.bench.masks import FamilyMasks, RandomMasks, Storage
from sparsefront_kernels.bench.weights import random_blocks, random_groups


def halved_blocks(distribution: str, granularity: int) -> RandomMasks:
    """Random square blocks, equally many in each row of blocks, and two random inputs of every four in them."""
    block = (granularity, granularity)
    return RandomMasks("block_2_4", partial(_mask, block), partial(_storage, block))


def _mask(block: tuple[int, int], n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
    if sparsity < 0.5:
        raise ValueError(f"block_2_4: 2:4 prunes a half, so that a sparsity of {sparsity} cannot be had")
    return random_blocks(n, k, block, 2 * sparsity - 1, device) & random_groups(n, k, 2, 4, device)


def _storage(block: tuple[int, int], sparsity: float) -> Storage:
    return {
        "blocked_2_4": {"block": block},
        "blocked": {"block": block, "fill": True},
        "gathered": {"tile": block[0], "drop_empty_outputs": False, "fill": True},
    }


BENCH = FamilyMasks("blocked_2_4", ("equal",), granularity=128, source=halved_blocks)
