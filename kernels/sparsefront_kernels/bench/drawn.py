"""A sparse weight that several kernels multiply by, stored once."""

from dataclasses import dataclass

from sparsefront_kernels.bench.expected import Expected
from sparsefront_kernels.bench.masks import MaskSource
from sparsefront_kernels.bench.setting import Setting
from sparsefront_kernels.format import zero_where_pruned
from sparsefront_kernels.gathered.format import GatheredFormat


@dataclass(frozen=True)
class DrawnWeight:
    """A gathered weight of a setting's shape and dtype.

    Args:
        pattern, granularity, distribution, mask_settings: as they stand in the results.
        stored: the weight.
        expected: what a product with it must be.
    """

    pattern: str
    granularity: int
    distribution: str
    mask_settings: str
    stored: GatheredFormat
    expected: Expected

    @property
    def sparsity(self) -> float:
        """Fraction of zeros of the mask, as it is: pruned outputs and long tiles included."""
        n, k = self.stored.shape
        return 1 - self.stored.values.numel() / (n * k)


def drawn_weight(setting: Setting, source: MaskSource, *, granularity: int, distribution: str) -> DrawnWeight:
    """Draw a weight from a source of masks, in the setting's dtype."""
    shape = setting.shape
    drawn = source.draw(shape.n, shape.k, setting.sparsity, setting.device)
    weight = zero_where_pruned(drawn.weight.to(setting.dtype), drawn.mask)
    stored = GatheredFormat.from_dense(weight, drawn.mask, **drawn.storage)
    return DrawnWeight(source.pattern, granularity, distribution, source.settings, stored, setting.expected(weight))
