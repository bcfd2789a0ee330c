"""2:4 weights in the operator benchmark."""

from sparsefront_kernels.bench.masks import FamilyMasks, RandomMasks
from sparsefront_kernels.bench.weights import random_groups


def halves(distribution: str, granularity: int) -> RandomMasks:
    """Two random inputs of every four, whatever sparsity is asked for."""
    if granularity != 4:
        raise ValueError(f"--granularity {granularity}: 2:4 has groups of 4")
    storage = {"semi_structured": {}, "n_m": {"n": 2, "m": 4}}
    return RandomMasks(
        "n_m", lambda n, k, sparsity, device: random_groups(n, k, 2, 4, device), lambda sparsity: storage
    )


BENCH = FamilyMasks("semi_structured", ("balanced",), granularity=4, source=halves)
