"""A sparse weight that several kernels multiply by, stored once in each family that is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from sparsefront_kernels.bench.masks import MaskSource
from sparsefront_kernels.bench.reference import Reference
from sparsefront_kernels.bench.setting import Setting
from sparsefront_kernels.format import SparseFormat, zero_where_pruned
from sparsefront_kernels.gathered.format import GatheredFormat
from sparsefront_kernels.packing import FORMATS


@dataclass(frozen=True)
class DrawnWeight:
    """A weight of a setting's shape and dtype.

    Args:
        pattern, granularity, distribution, mask_settings: as they stand in the results.
        setting: the product with it; its n counts the stored outputs alone where the weight is compact.
        stored: family -> the weight.
        reference: what a product with it must be.
        sparsity: fraction of zeros of the mask, as it is: pruned outputs and long tiles included.
    """

    pattern: str
    granularity: int
    distribution: str
    mask_settings: str
    setting: Setting
    stored: dict[str, SparseFormat]
    reference: Reference
    sparsity: float


def drawn_weight(
    setting: Setting, source: MaskSource, *, granularity: int, distribution: str, families: Sequence[str]
) -> DrawnWeight:
    """Draw a weight from a source of masks, in the setting's dtype.

    Args:
        families: that it is stored in, as far as they can hold it.
    Raises:
        ValueError: none of the families can, or a mask that cannot be made or stored.
    """
    shape = setting.shape
    drawn = source.draw(shape.n, shape.k, setting.sparsity, setting.device)
    held = {family: parameters for family, parameters in drawn.storage.items() if family in families}
    if not held:
        raise ValueError(f"{source.pattern} is stored as {', '.join(drawn.storage)}, not as {', '.join(families)}")
    weight = zero_where_pruned(drawn.weight.to(setting.dtype), drawn.mask)
    stored: dict[str, SparseFormat] = {
        family: FORMATS[family].from_dense(weight, drawn.mask, **parameters) for family, parameters in held.items()
    }
    sparsity = 1 - int(drawn.mask.sum()) / weight.numel()
    if drawn.compact:
        tiles = stored.get(GatheredFormat.family)
        if not isinstance(tiles, GatheredFormat) or len(stored) > 1:
            raise ValueError(f"compact products are of gathered weights alone, not of {', '.join(stored)}")
        weight = weight[tiles.output_index.long()]
        setting, tiles = _compact(setting, tiles)
        stored = {GatheredFormat.family: tiles}
    reference = setting.reference(weight)
    return DrawnWeight(source.pattern, granularity, distribution, source.settings, setting, stored, reference, sparsity)


def _compact(setting: Setting, stored: GatheredFormat) -> tuple[Setting, GatheredFormat]:
    """The same tiles, of a product that has the stored outputs alone, in the order in which they are stored."""
    outputs = len(stored.output_index)
    order = torch.arange(outputs, dtype=torch.int32, device=stored.device)
    smaller = replace(setting, shape=replace(setting.shape, n=outputs))
    return smaller, replace(stored, shape=(outputs, setting.shape.k), output_index=order)
