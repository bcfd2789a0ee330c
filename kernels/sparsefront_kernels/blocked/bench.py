"""Blocked weights in the operator benchmark."""

from functools import partial

import torch
from torch import Tensor

from sparsefront_kernels.bench.masks import FamilyMasks, RandomMasks, Storage
from sparsefront_kernels.bench.weights import RANDOM_TILES, random_blocks


def blocks(distribution: str, granularity: int, *, inputs: int | None = None) -> RandomMasks:
    """Rows of blocks that keep random blocks, as many as `weights.RANDOM_TILES` says.

    Args:
        granularity: outputs of a block.
        inputs: of a block; None: as many as outputs.
    """
    block = (granularity, inputs or granularity)
    settings = f"inputs={inputs}" if inputs else ""
    return RandomMasks("block_wise", partial(_mask, distribution, block), partial(_storage, block), settings)


def _mask(distribution: str, block: tuple[int, int], n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
    return random_blocks(n, k, block, sparsity, device, distribution=distribution)


def _storage(block: tuple[int, int], sparsity: float) -> Storage:
    """The outputs of a row of blocks keep the same inputs: a gathered tile."""
    return {"blocked": {"block": block}, "gathered": {"tile": block[0], "drop_empty_outputs": False}}


BENCH = FamilyMasks("blocked", tuple(RANDOM_TILES), granularity=128, source=blocks)
