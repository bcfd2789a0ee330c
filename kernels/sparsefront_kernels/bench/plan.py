"""What a run should measure: products, masks, and our kernels."""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from sparsefront_kernels.bench.masks import Masks, MaskSource
from sparsefront_kernels.bench.problems import Shape
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.registry import entries


@dataclass(frozen=True, eq=False)
class Kind:
    """Granularity, distribution and source of a mask."""

    granularity: int
    distribution: str
    source: MaskSource

    def holds(self, row: dict[str, str]) -> bool:
        """Whether a result row (as text) has such a mask."""
        own = (self.source.pattern, str(self.granularity), self.distribution, self.source.settings)
        return own == (row["pattern"], row["granularity"], row["distribution"], row["mask_settings"])


@dataclass(frozen=True)
class Chosen:
    """The requested kernels of ours.

    Args:
        kernels: labels as in the results (with the layout appended if it is not row-major), or patterns with * and ?; empty
            for all.
        layouts: of X and Y.
        families: of storage; random masks are of the first.
    Raises:
        ValueError: no kernel of the families has such a name.
    """

    kernels: tuple[str, ...]
    layouts: tuple[str, ...]
    families: tuple[str, ...] = ("gathered",)

    def __post_init__(self) -> None:
        labels = [entry.label(layout) for entry, layout in self._of_families()]
        for asked in self.kernels:
            if not any(fnmatchcase(label, asked) for label in labels):
                family = " or ".join(self.families)
                raise ValueError(f"no kernel of {family} is called {asked}; there are {', '.join(labels)}")

    def entries(self, dtype_name: str) -> list[tuple[KernelEntry, str]]:
        """GPU kernels of the families that support this dtype, with each of these layouts, regardless of the problem."""
        return [
            (entry, layout)
            for entry, layout in self._of_families()
            if layout in self.layouts and entry.computes_in(dtype_name)
            if not self.kernels or any(fnmatchcase(entry.label(layout), pattern) for pattern in self.kernels)
        ]

    def _of_families(self) -> list[tuple[KernelEntry, str]]:
        ours = [entry for entry in entries() if entry.family in self.families and entry.requires_cuda]
        return [(entry, layout) for entry in ours for layout in entry.layouts]


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Args:
        shapes: the products.
        dtypes: names of `correctness.DTYPES`.
        sparsities: fractions of zeros.
        granularities, distributions: of the masks.
        peers: names of `peers.PEERS`.
        chosen: the requested kernels, families and layouts of ours.
        tune: tune kernels before timing them.
        samples: graph replays per measurement.
        masks: sources of masks.
        peer_shapes: peer -> name patterns of the only shapes that it runs on.
    """

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    sparsities: tuple[float, ...]
    granularities: tuple[int, ...]
    distributions: tuple[str, ...]
    peers: tuple[str, ...]
    chosen: Chosen
    tune: bool
    samples: int
    masks: Masks
    peer_shapes: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def kinds(self) -> list[Kind]:
        """All combinations of granularity and distribution."""
        return [
            Kind(granularity, distribution, self.masks.source(distribution, granularity))
            for granularity in self.granularities
            for distribution in self.distributions
        ]

    def peers_of(self, shape: Shape) -> list[str]:
        """The peers that run on a shape."""
        return [
            name
            for name in self.peers
            if any(fnmatchcase(shape.name, pattern) for pattern in self.peer_shapes.get(name, ("*",)))
        ]
