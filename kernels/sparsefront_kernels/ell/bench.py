"""Uniform weights in the operator benchmark."""

from functools import partial

import torch
from torch import Tensor

from sparsefront_kernels.bench.masks import FamilyMasks, RandomMasks, Storage
from sparsefront_kernels.bench.weights import random_blocks


def uniform_rows(distribution: str, granularity: int) -> RandomMasks:
    """Every row of blocks keeps equally many random blocks.

    Args:
        granularity: side of a block: 1, 2 or 4.
    """
    return RandomMasks("uniform", partial(_mask, granularity), partial(_storage, granularity))


def _mask(side: int, n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
    return random_blocks(n, k, (side, side), sparsity, device)


def _storage(side: int, sparsity: float) -> Storage:
    return {"ell": {"block": side}, "blocked": {"block": (side, side)}} | ({"csr": {}} if side == 1 else {})


BENCH = FamilyMasks("ell", ("equal",), granularity=1, source=uniform_rows)
