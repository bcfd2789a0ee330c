"""Kernels of a family on a weight that leaves out more than the family can: they multiply by its zeros."""

from dataclasses import replace
from functools import partial
from typing import Any

from sparsefront_kernels.kernel_entry import KernelEntry


def filled_entry(entry: KernelEntry, family: str) -> KernelEntry:
    """The kernel of another family for weights of this one.

    Args:
        entry: of another family; what decides whether it supports a weight (the tile, the block, the shape) has the same name in
            both formats.
        family: whose formats have `filled()`, which gives the weight as the other family stores it.
    """
    name = f"{family}_filled_{entry.name.removeprefix(entry.family + '_')}"
    return replace(entry, name=name, family=family, pack=partial(_pack, entry))


def _pack(entry: KernelEntry, stored: Any) -> Any:
    return entry.pack(stored.filled())
