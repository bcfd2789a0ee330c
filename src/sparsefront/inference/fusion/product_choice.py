"""Choose a correct kernel for each product, on a GPU the fastest at its real shape and layouts.

Equal products share their times, nearly equal ones only time the kernels that were fast in one of them. Under a time budget the
times are stored, so that no later search times a product again, in later processes on such a GPU too.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch
from sparsefront_kernels import Problem, SparseFormat, labeled
from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.blocked_2_4.format import Blocked24Format
from sparsefront_kernels.gathered.format import GatheredFormat
from sparsefront_kernels.gathered_2_4.format import Gathered24Format
from sparsefront_kernels.norm.rows import rows_unsupported_reason
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Y_FEATURE_MAJOR
from sparsefront_kernels.quantized.quantize import LARGEST
from torch import Tensor

from sparsefront.gpu import exclusive, yield_gpu
from sparsefront.inference.autotune import Candidate, Trial, rank_untimed, try_all
from sparsefront.inference.choice import DENSE, KernelChoice, is_dense, is_low
from sparsefront.inference.fusion.calls import Unfusable
from sparsefront.inference.fusion.fused_product import (
    FusedCorrectnessCheck,
    FusedProduct,
    activated_candidates,
    dense_candidate,
    in_layout,
    layout_name,
    low_dense_products,
    sparse_candidates,
    try_only,
)
from sparsefront.inference.fusion.plan import ProductReport
from sparsefront.inference.fusion.prepared_block import ProductSpec
from sparsefront.inference.fusion.sites import describe_format
from sparsefront.inference.precision import IN_16_BITS, Precision
from sparsefront.measure.memory import count_bytes
from sparsefront.measure.search_time import LAYER, SearchCache, time_work, too_late
from sparsefront.measure.timers import (
    KernelTime,
    assume_launch,
    forget_launch,
    launch_in_use,
    launch_of,
    time_layer,
    time_on_any_device,
)
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
        held = None if stored is None else repr(describe_format(stored))
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


class ProductTuning:
    """Builds and checks the candidates of one product.

    Attributes:
        unsupported: kernel -> why it cannot be used, or was not tried.
        launches: kernel -> launches that were fast for a similar product; the first is used until others are timed.
    """

    def __init__(self, spec: ProductSpec, m: int, feature_major: bool, precision: Precision = IN_16_BITS) -> None:
        (n, k), like = spec.weight.weight.shape, spec.weight.weight
        layout = layout_name(
            x_feature_major=feature_major and spec.x_stream, y_feature_major=feature_major and spec.y_stream
        )
        self.spec, self.name = spec, "+".join(spec.weight.layers)
        self.problem = Problem(m, k, n, like.dtype, like.device, layout)
        self.precision = precision
        reason = precision.explain_16_bits(spec.weight.layers, (n, k), like.dtype)
        self.x_scale = None if reason is not None else precision.x_scale(spec.weight.layers)
        amax = None if self.x_scale is None else self.x_scale * LARGEST["fp8"]
        self.check = FusedCorrectnessCheck(spec, m, feature_major=feature_major, amax=amax)
        self.unsupported: dict[str, str] = {}
        self.launches: Mapping[str, Sequence[Any]] = {}
        self.trial = Trial(DENSE)
        self._made: FusedProduct | None = None

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """Operands for timing, with all rows; on a CPU the check uses only the first of them."""
        few = self.check.operands
        repeats = -(-self.problem.m // len(few[0]))
        if repeats == 1:
            return few
        return tuple(self._lay_out_like(operand, operand.repeat(repeats, 1)[: self.problem.m]) for operand in few)

    @staticmethod
    def _lay_out_like(few: Tensor, rows: Tensor) -> Tensor:
        return in_layout(rows, feature_major=few.stride(0) == 1 and few.stride(1) != 1)

    def product(self, candidate: Candidate) -> FusedProduct | None:
        """The product with this kernel; None where it fails or is wrong."""
        name, trial = candidate.label, self.trial
        if name not in trial.modules and name not in trial.unsupported:
            yield_gpu(self.problem.device)
            if not trial.check(name, partial(self._make, candidate), self.check.evaluate) and self._made is not None:
                forget_launch(self._made, self.problem)
        if name in trial.unsupported:
            self.unsupported[name] = trial.unsupported[name]
        return trial.modules.get(name)  # type: ignore[return-value]  # all of them are

    def _make(self, candidate: Candidate) -> FusedProduct:
        self._made = None
        self._made = FusedProduct(
            candidate.entry,
            candidate.format,
            self.spec.weight.bias,
            kernel_layout=candidate.layout,
            activation=self.spec.activation,
            x_feature_major=self.problem.layout in X_FEATURE_MAJOR,
            y_feature_major=self.problem.layout in Y_FEATURE_MAJOR,
            x_scale=self.x_scale if candidate.entry.precision != "none" else None,
        )
        launches = self.launches.get(candidate.label, ())
        if launches:
            assume_launch(self._made, self.problem, launches[0])
        return self._made

    def time(self, product: FusedProduct, timer: Callable[[], KernelTime]) -> KernelTime | None:
        """Time a product; None where that fails."""
        timed = self.trial.time(product.kernel_name, timer)
        if timed is None:
            self.unsupported[product.kernel_name] = self.trial.unsupported[product.kernel_name]
        return timed

    def report(self, product: FusedProduct, times: TimedProduct | None) -> ProductReport:
        spec, problem = self.spec, self.problem
        latencies = {} if times is None else dict(times.latencies_us)
        return ProductReport(
            layers=spec.weight.layers,
            kernel=product.kernel_name,
            family=product.format.family,
            m=problem.m,
            k=problem.k,
            n=problem.n,
            density=spec.density,
            layout=problem.layout,
            activation=spec.activation,
            residual=spec.residual,
            weight_bytes=count_bytes(product),
            vanished_inputs=spec.vanished_inputs,
            vanished_outputs=spec.vanished_outputs,
            latency_us=latencies.get(product.kernel_name),
            candidates=latencies,
            unsupported=self.unsupported,
            launch=launch_in_use(product, problem),
            relative_error=self.trial.errors[product.kernel_name],
            quantization_error=self.check.quantization_error(product),
            timed_as=None if times is None or times.name == self.name else times.name,
            timed_like=None if times is None else times.like,
        )


@dataclass(frozen=True)
class ChosenProduct:
    """A product with its kernel.

    Args:
        report: of the choice.
        norm_adds_residual: whether the norm after it adds the residual, and `norm_bias` if the product does not add the bias.
    """

    product: FusedProduct
    report: ProductReport
    norm_adds_residual: bool = False
    norm_bias: Tensor | None = None


@dataclass
class ProductChooser:
    """Chooses and checks a kernel for one product at a time.

    Products of equal work are timed once; nearly equal ones only time the kernels and launches that were fast in the first.

    Args:
        choice: which kernels may run.
        dense: True for the baseline with every product dense.
        on_cpu: whether to time references without a GPU, for a latency search on any device.
        timed: products timed so far.
        precision: of low-precision kernels to try next to 16-bit ones, in row-major blocks.
    """

    choice: KernelChoice
    dense: bool = False
    on_cpu: bool = False
    timed: TimedProducts = field(default_factory=TimedProducts)
    precision: Precision = IN_16_BITS

    def choose(
        self, spec: ProductSpec, m: int, *, feature_major: bool, kernel: str | None = None, low: bool = False
    ) -> ChosenProduct:
        """Choose the kernel of a product; the norm after it adds a residual that the kernel cannot fuse.

        Args:
            m: rows of X.
            feature_major: layout of the residual stream.
            kernel: chosen before; nothing is timed.
            low: prefer a low-precision kernel even if a 16-bit one is faster on its own: inside a block quantization may cost
                less than between 16-bit tensors.
        Raises:
            Unfusable: no allowed kernel is correct, or not the one that was chosen before.
        """
        chosen = self._fastest(spec, m, feature_major, kernel, low)
        name = chosen.report.kernel
        can_add = spec.norm == "layer_norm" if feature_major else spec.norm is not None and _row_norm_adds(spec)
        if not can_add or labeled(name)[0].fuses_epilogue:
            return chosen
        # cuBLAS adds a bias to row-major outputs only, other kernels before they store
        with_bias = not feature_major or name != DENSE
        alone = self._fastest(spec.without_residual(with_bias=with_bias), m, feature_major, name, low)
        report = replace(chosen.report, residual=False, relative_error=alone.report.relative_error)
        return ChosenProduct(alone.product, report, True, None if with_bias else spec.weight.bias)

    def _fastest(self, spec: ProductSpec, m: int, feature_major: bool, kernel: str | None, low: bool) -> ChosenProduct:
        """The fastest correct kernel, or the one that was chosen before."""
        tuning = ProductTuning(spec, m, feature_major, self.precision)
        if kernel is not None or not self.times_on(tuning.problem.device):
            return self._first_right(tuning, self._candidates(tuning, kernel), None, low)
        work = Work.of(spec, tuning.problem, self.precision.name)
        equal, nearly = self.timed.equal(work), self.timed.nearly_equal(work)
        if equal is None and not self.dense and (late := too_late(tuning.name, LAYER)) is not None:
            return self._choose_untimed(tuning, nearly, late, low)
        if equal is not None:
            fastest = equal.fastest(dense_allowed=self.choice.dense_allowed, low=low)
            candidates = self._candidates(tuning, None, try_only(fastest))
            tuning.launches, tuning.unsupported = equal.launches, dict(equal.unsupported)
            with suppress(Unfusable):
                return self._first_right(tuning, candidates, equal, low)
        elif nearly is not None:
            candidates = self._candidates(tuning, None, nearly.why_not)
            tuning.launches = nearly.launches
            with suppress(Unfusable):
                return self._first_right(tuning, candidates, self._times(tuning, candidates, work, nearly), low)
        candidates = self._candidates(tuning, None)
        with time_work(LAYER):
            times = equal or self._times(tuning, candidates, work, None)
        return self._first_right(tuning, candidates, times, low)

    def _choose_untimed(
        self, tuning: ProductTuning, nearly: TimedProduct | None, late: str, low: bool
    ) -> ChosenProduct:
        """The fastest kernel of a nearly equal product, else the one that was faster than dense in most measurements, else dense
        if that is allowed; `late` is why none is timed.

        Raises:
            Unfusable: none is correct.
        """
        if nearly is not None:
            tuning.launches = nearly.launches
            return self._first_right(tuning, self._candidates(tuning, None, nearly.why_not), nearly, low)
        candidates = self._candidates(tuning, None)
        candidates.sort(key=partial(rank_untimed, density=tuning.spec.density))
        tuning.unsupported |= {candidate.label: late for candidate in candidates[1:]}
        return self._first_right(tuning, candidates, None, low)

    def _first_right(
        self, tuning: ProductTuning, candidates: list[Candidate], times: TimedProduct | None, low: bool
    ) -> ChosenProduct:
        """The fastest correct candidate, or the first without times; with `low` low-precision ones first.

        Raises:
            Unfusable: none is correct.
        """
        latencies = {} if times is None else times.latencies_us
        # untimed candidates last: they failed in the timed product (without times the order stays)
        ordered = sorted(candidates, key=lambda candidate: latencies.get(candidate.label, math.inf))
        if low:
            ordered.sort(key=lambda candidate: candidate.entry.precision == "none")
        for candidate in ordered:
            product = tuning.product(candidate)
            if product is not None:
                return ChosenProduct(product, tuning.report(product, times))
        reasons = "; ".join(f"{name}: {why}" for name, why in tuning.unsupported.items()) or "none may run"
        raise Unfusable(f"has no kernel for {tuning.name}: {reasons}")

    def times_on(self, device: torch.device) -> bool:
        """Whether kernels are timed on this device."""
        return self.on_cpu or (device.type == "cuda" and self.choice.mode != "reference")

    def _candidates(
        self, tuning: ProductTuning, kernel: str | None, why_not: Callable[[str], str | None] = try_all
    ) -> list[Candidate]:
        """Allowed candidates; `why_not` gives the reason not to try a kernel, or None."""
        weight, problem = tuning.spec.weight, tuning.problem
        low = low_dense_products(weight, problem, self.choice, self.precision)
        dense, unsupported = [*low.usable, dense_candidate(weight)], low.unsupported
        if not self.choice.runs_plain(problem.device):
            activated = activated_candidates(tuning.spec, problem)
            dense, unsupported = [*dense, *activated.usable], unsupported | activated.unsupported
        if self.dense or weight.stored is None or (kernel is not None and is_dense(kernel)):
            tuning.unsupported = unsupported
            planned = [candidate for candidate in dense if candidate.label == kernel]
            return planned or (dense if kernel is None else [dense_candidate(weight)])
        if kernel is not None:
            planned_one = sparse_candidates(weight, problem, self.choice, try_only(kernel), self.precision)
            tuning.unsupported = {label: why for label, why in planned_one.unsupported.items() if label == kernel}
            return planned_one.usable
        every = sparse_candidates(weight, problem, self.choice, why_not, self.precision)
        sparse, tuning.unsupported = every.usable, every.unsupported
        if not (self.choice.dense_allowed and self.times_on(problem.device)):
            # if no kernel can run, dense does; if they were only not tried, the caller asks again
            return sparse if sparse or why_not is not try_all else dense
        tuning.unsupported |= unsupported
        reasons = {candidate.label: why_not(candidate.label) for candidate in dense}
        tuning.unsupported |= {label: reason for label, reason in reasons.items() if reason is not None}
        allowed = [candidate for candidate in dense if reasons[candidate.label] is None]
        if not (sparse or allowed) and why_not is try_all:
            return dense
        return [*sparse, *allowed]

    def _times(
        self, tuning: ProductTuning, candidates: list[Candidate], work: Work, nearly: TimedProduct | None
    ) -> TimedProduct:
        """Time the candidates, and dense even if it is not allowed; those that fail become unsupported."""
        trials = list(candidates)
        if all(candidate.label != DENSE for candidate in trials) and (nearly is None or nearly.why_not(DENSE) is None):
            trials.append(dense_candidate(tuning.spec.weight))
        if nearly is not None:  # fastest first, so that slow ones are cut short
            trials.sort(key=lambda candidate: nearly.latencies_us.get(candidate.label, math.inf))
        latencies, products = {}, []
        for candidate in trials:  # build, compile and check while other processes run, since timing stops them all
            if candidate.label == DENSE and (known_us := self.timed.dense_us(work)) is not None:
                latencies[DENSE] = known_us
            elif (product := tuning.product(candidate)) is not None:
                products.append(product)
        launches, fastest_us = {}, math.inf
        with exclusive(tuning.problem.device):
            for product in products:
                name = product.kernel_name
                time = tuning.time(product, partial(self._time, product, tuning, SLOWER * fastest_us))
                if time is None:
                    continue
                self.timed.timings += 1
                latencies[name] = time.latency_us
                in_use = launch_of(product, tuning.problem)
                launches[name] = time.launches[:MOST_LAUNCHES] or ((in_use,) if in_use is not None else ())
                if not is_dense(name):
                    fastest_us = min(fastest_us, time.latency_us)
        like = None if nearly is None else nearly.name
        timed = TimedProduct(work, latencies, launches, dict(tuning.unsupported), like)
        return self.timed.add(timed) if latencies else timed  # without times there is nothing to share

    def _time(self, product: FusedProduct, tuning: ProductTuning, at_most_us: float) -> KernelTime:
        if self.on_cpu and tuning.problem.device.type == "cpu":
            return time_on_any_device(product, *tuning.operands)
        launches, check = tuning.launches.get(product.kernel_name, ()), tuning.check.evaluate
        return time_layer(product, *tuning.operands, at_most_us=at_most_us, launches=launches, check=check)


def _row_norm_adds(spec: ProductSpec) -> bool:
    """Whether the kernel of row-major norms supports this product's output."""
    weight = spec.weight.weight
    return rows_unsupported_reason(len(weight), weight.dtype, weight.device) is None
