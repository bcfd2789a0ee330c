"""Times of products: equal ones share theirs, nearly equal ones only time the kernels that were fast in one of them.

Under a time budget they are stored, so that no later search times a product again, in later processes on such a GPU too.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sparsefront_kernels import Problem, SparseFormat, labeled
from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.blocked_2_4.format import Blocked24Format
from sparsefront_kernels.gathered.format import GatheredFormat
from sparsefront_kernels.gathered_2_4.format import Gathered24Format
from torch import Tensor

from sparsefront.inference.choice import DENSE, is_dense, is_low
from sparsefront.inference.fusion.prepared_block import ProductSpec
from sparsefront.inference.fusion.sites import stored_parameters
from sparsefront.measure.search_cache import SearchCache
from sparsefront.progress import counted

SHORT = 16  # kept inputs: tiles that differ by at most this, or by at most a block, count as equal
TOLERANCE = 0.05  # relative, of a tile's length and of their sum: up to this, work counts as equal
NEARLY = 0.25  # relative, of outputs, inputs and kept weights: up to this, the same kernels are fast
# Times the fastest sparse kernel: slower ones are not timed in nearly equal products, and cut short in others.
SLOWER = 1.5
MOST_LAUNCHES = 2  # of a product to try in nearly equal ones, if the second was about as fast


def work_grain(stored: SparseFormat | None) -> int:
    """Difference in kept inputs at which two tiles still count as equal: at least a whole block."""
    return max(SHORT, stored.block[1]) if isinstance(stored, BlockedFormat | Blocked24Format) else SHORT


def tile_lengths(stored: SparseFormat) -> list[int]:
    """Work per tile, descending: kept inputs of each tile or row of blocks; for other formats the number of values."""
    counts: Tensor
    if isinstance(stored, GatheredFormat):
        counts = stored.tile_offsets.diff()
    elif isinstance(stored, Gathered24Format):
        counts = stored.tile_offsets.diff() * 4
    elif isinstance(stored, BlockedFormat | Blocked24Format):
        counts = stored.row_pointers.diff() * stored.block[1]
    else:
        other: Any = stored  # other formats have `values`
        return [other.values.numel()]
    return counts.sort(descending=True).values.tolist()


@dataclass(frozen=True)
class Work:
    """The properties of a product that determine the speed of its kernels.

    Args:
        name: of the product.
        place: rows, dtype, layout, epilogue, precision and storage, the same for nearly equal products.
        lengths: kept inputs of its tiles, descending; empty where it is dense.
        grain: see `work_grain`.
    """

    name: str
    problem: Problem
    place: tuple
    lengths: Sequence[int]
    grain: int

    @classmethod
    def of(cls, spec: ProductSpec, problem: Problem, precision: str = "none") -> "Work":
        stored = spec.weight.stored
        held = None if stored is None else repr(stored_parameters(stored))
        epilogue = (spec.activation, spec.residual, spec.weight.bias is not None)
        place = (replace(problem, n=1, k=1), *epilogue, precision, held)
        lengths = [] if stored is None else tile_lengths(stored)
        return cls("+".join(spec.weight.layers), problem, place, lengths, work_grain(stored))

    @property
    def dense(self) -> tuple:
        """Key of products with the same time when dense."""
        return self.problem, self.place[:-1]

    def is_equal_to(self, other: "Work") -> bool:
        return (self.problem, self.place) == (other.problem, other.place) and equal_work(
            self.lengths, other.lengths, self.grain
        )

    def size_ratio(self, other: "Work") -> float:
        """Largest ratio, at least 1, between outputs, inputs or kept weights; infinite for another place or dense work."""
        if self.place != other.place or not (self.lengths and other.lengths):
            return float("inf")
        pairs = [(self.problem.n, other.problem.n), (self.problem.k, other.problem.k)]
        pairs.append((max(1, sum(self.lengths)), max(1, sum(other.lengths))))
        return max(max(one, two) / min(one, two) for one, two in pairs)


@dataclass(frozen=True)
class TimedProduct:
    """Times of one distinct product.

    Args:
        latencies_us: kernel -> microseconds.
        launches: kernel -> its launch parameters, the fastest first.
        unsupported: kernel -> why it cannot be used, or was not tried.
        like: the nearly equal product whose slow kernels were not timed again; None: all kernels were timed.
    """

    work: Work
    latencies_us: Mapping[str, float]
    launches: Mapping[str, Sequence[Any]]
    unsupported: Mapping[str, str]
    like: str | None = None

    @property
    def name(self) -> str:
        return self.work.name

    def to_json(self) -> dict[str, Any]:
        content = {name: getattr(self, name) for name in ("latencies_us", "unsupported", "like")}
        launches = {name: [asdict(launch) for launch in few] for name, few in self.launches.items()}
        problem, lengths = self.work.problem, list(self.work.lengths)
        return {"name": self.name, "n": problem.n, "k": problem.k, "lengths": lengths, "launches": launches} | content

    @classmethod
    def from_json(cls, content: dict[str, Any], other: Work) -> "TimedProduct":
        """From a product in the same place as `other`."""
        problem = replace(other.problem, n=content["n"], k=content["k"])
        work = replace(other, name=content["name"], problem=problem, lengths=content["lengths"])
        launches = {name: _launches(name, few) for name, few in content["launches"].items()}
        return cls(work, content["latencies_us"], launches, content["unsupported"], content["like"])

    def fastest(self, *, dense_allowed: bool, low: bool = False) -> str | None:
        """The fastest allowed kernel; with `low` the fastest low-precision one, if there is any."""
        allowed = [name for name in self.latencies_us if dense_allowed or not is_dense(name)]
        allowed = [name for name in allowed if low and is_low(name)] or allowed
        return min(allowed or self.latencies_us, key=self.latencies_us.__getitem__, default=None)

    def why_not(self, kernel: str) -> str | None:
        """Why a nearly equal product need not time this kernel, or None."""
        sparse = [time for name, time in self.latencies_us.items() if not is_dense(name)]
        if not sparse:
            return None
        if kernel not in self.latencies_us:
            return f"not tried: it was none of the kernels that ran {self.name}, which is nearly equal"
        ratio = self.latencies_us[kernel] / min(sparse)
        if ratio <= SLOWER:
            return None
        return f"not tried: it took {ratio:.1f} times as long as the fastest in {self.name}, which is nearly equal"


def _launches(label: str, parameters: Sequence[Mapping[str, Any]]) -> Sequence[Any]:
    kernel, layout = labeled(label)
    launch_type = getattr(kernel.tunable_in(layout or kernel.layouts[0]), "launch_type", None)
    return () if launch_type is None else tuple(launch_type(**one) for one in parameters)


known_products = SearchCache("products", ("sparsefront.inference.fusion.product_choice",))


@dataclass
class TimedProducts:
    """All products that one swap timed, and those of earlier searches.

    Args:
        stored_as: which kernels were allowed, under which times are stored; None: they are not.
        timings: number of timings of a product with a kernel.
    """

    stored_as: str | None = None
    products: list[TimedProduct] = field(default_factory=list)
    timings: int = 0
    _dense_us: dict[tuple, float] = field(default_factory=dict)
    _of_place: dict[tuple, list[TimedProduct]] = field(default_factory=dict)

    def equal(self, work: Work) -> TimedProduct | None:
        """The product whose times also hold for this one, if any."""
        self._load(work)
        return next((known for known in self.products if work.is_equal_to(known.work)), None)

    def nearly_equal(self, work: Work) -> TimedProduct | None:
        """The most similar product among those timed with all their kernels, if it is nearly equal."""
        whole = [known for known in self.products if known.like is None]
        nearest = min(whole, key=lambda known: work.size_ratio(known.work), default=None)
        return nearest if nearest is not None and work.size_ratio(nearest.work) <= 1 + NEARLY else None

    def dense_us(self, work: Work) -> float | None:
        """Dense time of another product with this shape and epilogue: zeros do not change a dense kernel's time."""
        self._load(work)
        return self._dense_us.get(work.dense)

    def add(self, timed: TimedProduct) -> TimedProduct:
        self._load(timed.work)
        self._of_place[timed.work.place].append(timed)
        self._note(timed)
        if self.stored_as is not None:
            content = {"products": [one.to_json() for one in self._of_place[timed.work.place]]}
            known_products.keep(self._key(timed.work), content, timed.work.problem.device)
        return timed

    def _load(self, work: Work) -> None:
        """Add the stored products of this place, once."""
        if work.place in self._of_place:
            return
        stored = None if self.stored_as is None else known_products.get(self._key(work), work.problem.device)
        loaded = self._of_place[work.place] = []
        with suppress(LookupError, TypeError, ValueError):  # a file that was edited by hand
            loaded += [TimedProduct.from_json(one, work) for one in (stored or {"products": []})["products"]]
        for timed in loaded:
            self._note(timed)

    def _note(self, timed: TimedProduct) -> None:
        self.products.append(timed)
        if DENSE in timed.latencies_us:
            self._dense_us[timed.work.dense] = timed.latencies_us[DENSE]

    def _key(self, work: Work) -> str:
        return repr((self.stored_as, work.place, work.grain))

    def summary(self) -> str:
        narrowed = sum(known.like is not None for known in self.products)
        return (
            f"{counted(len(self.products), 'product')} timed, {narrowed} only with the kernels that were fast in a nearly equal "
            f"one; {self.timings} times of a product with a kernel"
        )


def equal_work(one: Sequence[int], other: Sequence[int], grain: int) -> bool:
    """Whether tile lengths, both descending, agree within the tolerance, each one and in sum."""
    if len(one) != len(other) or abs(sum(one) - sum(other)) > max(grain, TOLERANCE * max(sum(one), sum(other))):
        return False
    return all(abs(a - b) <= max(grain, TOLERANCE * max(a, b)) for a, b in zip(one, other, strict=True))
