"""Single weights in the operator benchmark."""

import torch
from torch import Tensor

from sparsefront_kernels.bench.masks import FamilyMasks, RandomMasks


def single_weights(distribution: str, granularity: int) -> RandomMasks:
    """Every weight is kept with the same chance."""
    return RandomMasks("element_wise", _mask, lambda sparsity: {"csr": {}})


def _mask(n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
    return torch.rand(n, k, device=device) >= sparsity


BENCH = FamilyMasks("csr", ("free",), granularity=1, source=single_weights)
