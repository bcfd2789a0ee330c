"""Which products were timed: equal ones share their times, nearly equal ones only time what was fast in one of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparsefront_kernels import Problem

from sparsefront.counted import counted
from sparsefront.inference.fusion.candidates import DENSE, tile_lengths, work_grain
from sparsefront.inference.fusion.prepared_block import ProductSpec
from sparsefront.inference.fusion.product_weight import stored_parameters

TOLERANCE = 0.05  # of a tile's length, and of all together, within which products count as equal work
NEARLY = 0.25  # of outputs, inputs and kept weights, within which the same kernels are fast
SLOWER = 1.5  # times the fastest sparse kernel: not timed in nearly equal products, and soon given up in the others
MOST_LAUNCHES = 2  # of a product that are tried in nearly equal ones, where the second was about as fast


@dataclass(frozen=True)
class Work:
    """What decides how fast the kernels of a product are.

    Args:
        name: of the product.
        place: its rows, type, layout, epilogue and kind of storage: what nearly equal products have in common.
        lengths: kept inputs of its tiles, descending; none where it is dense.
        grain: kept inputs by which two tiles may differ however short they are.
    """

    name: str
    problem: Problem
    place: tuple
    lengths: Sequence[int]
    grain: int

    @classmethod
    def of(cls, spec: ProductSpec, problem: Problem) -> "Work":
        stored = spec.weight.stored
        held = None if stored is None else repr(stored_parameters(stored))
        epilogue = (spec.activation, spec.residual, spec.weight.bias is not None)
        place = (replace(problem, n=1, k=1), *epilogue, held)
        lengths = [] if stored is None else tile_lengths(stored)
        return cls("+".join(spec.weight.layers), problem, place, lengths, work_grain(stored))

    @property
    def dense(self) -> tuple:
        """What products have in common that take equally long when dense."""
        return self.problem, self.place[:-1]

    def is_equal_to(self, other: "Work") -> bool:
        return (self.problem, self.place) == (other.problem, other.place) and equal_work(
            self.lengths, other.lengths, self.grain
        )

    def apart_from(self, other: "Work") -> float:
        """By which factor, at least 1, the less alike of outputs, inputs and kept weights differ; infinite elsewhere."""
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
        like: the nearly equal product in which the others of its kernels were slow; None: it was timed with all of them.
    """

    work: Work
    latencies_us: Mapping[str, float]
    launches: Mapping[str, Sequence[Any]]
    unsupported: Mapping[str, str]
    like: str | None = None

    @property
    def name(self) -> str:
        return self.work.name

    def fastest(self, *, dense_allowed: bool) -> str | None:
        allowed = [name for name in self.latencies_us if name != DENSE or dense_allowed]
        return min(allowed or self.latencies_us, key=self.latencies_us.__getitem__, default=None)

    def why_not(self, kernel: str) -> str | None:
        """Why a nearly equal product need not time this kernel, or None."""
        sparse = [time for name, time in self.latencies_us.items() if name != DENSE]
        if not sparse:
            return None
        if kernel not in self.latencies_us:
            return f"not tried: it was none of the kernels that ran {self.name}, which is nearly equal"
        ratio = self.latencies_us[kernel] / min(sparse)
        if ratio <= SLOWER:
            return None
        return f"not tried: it took {ratio:.1f} times as long as the fastest in {self.name}, which is nearly equal"


@dataclass
class TimedProducts:
    """All products that one swap timed.

    Args:
        timings: how many times a product was timed with a kernel.
    """

    products: list[TimedProduct] = field(default_factory=list)
    timings: int = 0
    _dense_us: dict[tuple, float] = field(default_factory=dict)

    def equal(self, work: Work) -> TimedProduct | None:
        """The product whose times are those of this one too."""
        return next((known for known in self.products if work.is_equal_to(known.work)), None)

    def nearly_equal(self, work: Work) -> TimedProduct | None:
        """The most alike of the products that were timed with all of their kernels, if any is nearly equal."""
        whole = [known for known in self.products if known.like is None]
        nearest = min(whole, key=lambda known: work.apart_from(known.work), default=None)
        return nearest if nearest is not None and work.apart_from(nearest.work) <= 1 + NEARLY else None

    def dense_us(self, work: Work) -> float | None:
        """Of another product of this shape and epilogue: zeros among its weights change nothing for a dense kernel."""
        return self._dense_us.get(work.dense)

    def add(self, timed: TimedProduct) -> TimedProduct:
        self.products.append(timed)
        if DENSE in timed.latencies_us:
            self._dense_us[timed.work.dense] = timed.latencies_us[DENSE]
        return timed

    def summary(self) -> str:
        narrowed = sum(known.like is not None for known in self.products)
        return (
            f"{counted(len(self.products), 'product')} timed, {narrowed} only with the kernels that were fast in a nearly equal "
            f"one; {self.timings} times of a product with a kernel"
        )


def only(wanted: str | None) -> Callable[[str], str | None]:
    """The `why_not` of all kernels but one."""
    return lambda kernel: None if kernel == wanted else f"not tried: {wanted} was faster in an equal product"


def equal_work(one: Sequence[int], other: Sequence[int], grain: int) -> bool:
    """Whether tile lengths, both descending, agree within the tolerance, each and all together."""
    if len(one) != len(other) or abs(sum(one) - sum(other)) > max(grain, TOLERANCE * max(sum(one), sum(other))):
        return False
    return all(abs(a - b) <= max(grain, TOLERANCE * max(a, b)) for a, b in zip(one, other, strict=True))
