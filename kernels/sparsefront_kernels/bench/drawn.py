"""A sparse weight that several kernels multiply by, stored once."""

from dataclasses import dataclass, replace

import torch

from sparsefront_kernels.bench.masks import MaskSource
from sparsefront_kernels.bench.reference import Reference
from sparsefront_kernels.bench.setting import Setting
from sparsefront_kernels.format import zero_where_pruned
from sparsefront_kernels.gathered.format import GatheredFormat


@dataclass(frozen=True)
class DrawnWeight:
    """A gathered weight of a setting's shape and dtype.

    Args:
        pattern, granularity, distribution, mask_settings: as they stand in the results.
        setting: the product with it; its n counts the stored outputs alone where the weight is compact.
        stored: the weight.
        reference: what a product with it must be.
        sparsity: fraction of zeros of the mask, as it is: pruned outputs and long tiles included.
    """

    pattern: str
    granularity: int
    distribution: str
    mask_settings: str
    setting: Setting
    stored: GatheredFormat
    reference: Reference
    sparsity: float


def drawn_weight(setting: Setting, source: MaskSource, *, granularity: int, distribution: str) -> DrawnWeight:
    """Draw a weight from a source of masks, in the setting's dtype."""
    shape = setting.shape
    drawn = source.draw(shape.n, shape.k, setting.sparsity, setting.device)
    weight = zero_where_pruned(drawn.weight.to(setting.dtype), drawn.mask)
    stored = GatheredFormat.from_dense(weight, drawn.mask, **drawn.storage)
    sparsity = 1 - stored.values.numel() / weight.numel()
    if drawn.compact:
        weight = weight[stored.output_index.long()]
        setting, stored = _compact(setting, stored)
    reference = setting.reference(weight)
    return DrawnWeight(source.pattern, granularity, distribution, source.settings, setting, stored, reference, sparsity)


def _compact(setting: Setting, stored: GatheredFormat) -> tuple[Setting, GatheredFormat]:
    """The same tiles, of a product that has the stored outputs alone, in the order in which they are stored."""
    outputs = len(stored.output_index)
    order = torch.arange(outputs, dtype=torch.int32, device=stored.device)
    smaller = replace(setting, shape=replace(setting.shape, n=outputs))
    return smaller, replace(stored, shape=(outputs, setting.shape.k), output_index=order)
