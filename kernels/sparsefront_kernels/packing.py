"""Compress a masked weight into a given storage format or the one that fits the mask.

A storage family is a folder with a `SparseFormat` in `format.py`. Independent of the kernel registry, so that storing
a weight does not depend on any kernel.
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsefront_kernels.format import SparseFormat, check_weight_and_mask


def _format_of(family: str) -> type[SparseFormat]:
    """The class in a family's `format.py`."""
    classes = vars(import_module(f"sparsefront_kernels.{family}.format")).values()
    return next(one for one in classes if isinstance(one, type) and getattr(one, "family", None) == family)


FORMATS = {path.parent.name: _format_of(path.parent.name) for path in sorted(Path(__file__).parent.glob("*/format.py"))}
# blocks to try, outputs x inputs; fp8 kernels need 128 inputs
BLOCKS = ((128, 128), (64, 128), (64, 64), (32, 32), (16, 16))
NARROWEST_TILE = 4
WINDOWS = (4, 8, 16, 32, 64)  # m of n:m


def pack(
    weight: Tensor, mask: Tensor, tile: int = 128, *, family: str | None = None, **parameters: Any
) -> SparseFormat:
    """Compress the kept weights.

    Args:
        weight: [N, K], any float dtype and device.
        mask: bool [N, K], True = keep.
        tile: outputs that share their inputs in gathered storage.
        family: name of a storage family; None = `mask_structure`.
        parameters: of the family's `from_dense`, such as `block=[64, 64]` or `n=2, m=4`.
    Returns:
        the compressed weight, on the weight's device.
    Raises:
        ValueError: no such family, or the mask does not have its structure; says where.
    """
    mask = mask.to(weight.device)
    check_weight_and_mask(weight, mask)
    if family is None:
        family, parameters = mask_structure(mask, tile)
    elif family not in FORMATS:
        raise ValueError(f"family={family!r} is not one of {', '.join(FORMATS)}")
    elif family in ("gathered", "gathered_overlay") and "tile" not in parameters:
        parameters = {"tile": tile, **parameters}
    return FORMATS[family].from_dense(weight.detach(), mask, **parameters)


def mask_structure(mask: Tensor, tile: int = 128) -> tuple[str, dict[str, Any]]:
    """The storage family that fits the structure of a mask, and the parameters of its `from_dense`.

    Tried in this order: dense (nothing pruned), blocks, tiles of outputs that share their inputs (this wide, then
    narrower), 2:4, n:m, csr (unstructured).

    Args:
        mask: bool [N, K], True = keep.
        tile: the widest tile to look for.
    """
    if bool(mask.all()):
        return "dense", {}
    probe = torch.ones(mask.shape, dtype=torch.float16, device=mask.device)
    for family, parameters in _candidates(mask, tile):
        try:
            FORMATS[family].from_dense(probe, mask, **parameters)
        except ValueError:  # the mask does not have this format's structure
            continue
        return family, parameters
    return "csr", {}


def _candidates(mask: Tensor, tile: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Families and parameters that may fit, most regular first; ruling one out costs a few reductions."""
    n, k = mask.shape
    for block in BLOCKS:
        if n % block[0] == 0 and k % block[1] == 0 and _in_blocks(mask, *block):
            yield "blocked", {"block": list(block)}
    width = tile
    while width >= NARROWEST_TILE:
        yield "gathered", {"tile": width, "drop_empty_outputs": True}
        width //= 2
    for m in WINDOWS:
        kept_count = _kept_per_window(mask, m)
        if kept_count is not None and 0 < kept_count < m:
            yield ("semi_structured", {}) if (kept_count, m) == (2, 4) else ("n_m", {"n": kept_count, "m": m})


def _in_blocks(mask: Tensor, outputs: int, inputs: int) -> bool:
    """Whether each block is kept or pruned as a whole."""
    n, k = mask.shape
    blocks = mask.reshape(n // outputs, outputs, k // inputs, inputs)
    whole = blocks.all(dim=3).all(dim=1)
    return bool((whole == blocks.any(dim=3).any(dim=1)).all())


def _kept_per_window(mask: Tensor, m: int) -> int | None:
    """Weights kept in every window of m consecutive inputs; None if the windows differ or m does not divide K."""
    n, k = mask.shape
    if k % m:
        return None
    counts = mask.reshape(n, k // m, m).sum(dim=2)
    first = int(counts[0, 0])
    return first if bool((counts == first).all()) else None
