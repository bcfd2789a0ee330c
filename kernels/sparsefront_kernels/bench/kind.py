"""What a sparse weight of a run is, before it is drawn: the part of a measurement's key that names its mask."""

from dataclasses import dataclass

from sparsefront_kernels.bench.masks import MaskSource


@dataclass(frozen=True, eq=False)
class Kind:
    """Granularity and distribution of a mask, and what makes it."""

    granularity: int
    distribution: str
    source: MaskSource

    def holds(self, row: dict[str, str]) -> bool:
        """Whether a row of the results, as text, is of such a mask."""
        own = (self.source.pattern, str(self.granularity), self.distribution, self.source.settings)
        return own == (row["pattern"], row["granularity"], row["distribution"], row["mask_settings"])
