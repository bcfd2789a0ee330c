"""The storage families as the benchmark knows them: each says in its folder's `bench.py` which masks it is timed on."""

import importlib

from sparsefront_kernels.bench.masks import FamilyMasks
from sparsefront_kernels.packing import FORMATS

FAMILIES = tuple(family for family in FORMATS if family != "dense")  # dense products are what all are compared with


def family_masks(family: str) -> FamilyMasks:
    """What a family of `FAMILIES` gives to the benchmark; its module is imported."""
    return importlib.import_module(f"sparsefront_kernels.{family}.bench").BENCH
