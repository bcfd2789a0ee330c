"""What a run is asked to measure."""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from sparsefront_kernels.bench.kind import Kind
from sparsefront_kernels.bench.masks import Masks
from sparsefront_kernels.bench.ours import Chosen
from sparsefront_kernels.bench.shapes import Shape


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Args:
        shapes: the products.
        dtypes: names of `precision.DTYPES`.
        sparsities: fractions of zeros.
        granularities, distributions: of the masks.
        peers: names of `baselines.PEERS`.
        chosen: which of our kernels, of which families, in which layouts.
        tune: whether kernels are tuned before they are timed.
        samples: graph replays per measurement.
        masks: where the masks come from.
        peer_shapes: peer -> patterns of names of the only shapes that it runs on.
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
        """Every granularity in every distribution."""
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
