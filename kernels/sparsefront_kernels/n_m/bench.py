"""n:m weights in the operator benchmark."""

from functools import partial

import torch
from torch import Tensor

from sparsefront_kernels.bench.masks import FamilyMasks, RandomMasks, Storage
from sparsefront_kernels.bench.weights import random_groups


def groups(distribution: str, granularity: int) -> RandomMasks:
    """n random inputs of every m.

    Args:
        granularity: m; n follows from the sparsity.
    """
    return RandomMasks("n_m", partial(_mask, granularity), partial(_storage, granularity))


def _kept(m: int, sparsity: float) -> int:
    return max(1, round((1 - sparsity) * m))


def _mask(m: int, n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
    return random_groups(n, k, _kept(m, sparsity), m, device)


def _storage(m: int, sparsity: float) -> Storage:
    kept = _kept(m, sparsity)
    two_of_four: Storage = {"semi_structured": {}} if (kept, m) == (2, 4) else {}
    return {"n_m": {"n": kept, "m": m}} | two_of_four


BENCH = FamilyMasks("n_m", ("balanced",), granularity=32, source=groups)
