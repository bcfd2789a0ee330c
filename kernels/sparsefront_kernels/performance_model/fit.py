"""Rates and constants from measurements, and the errors of predictions."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from random import Random
from statistics import median, quantiles

import torch

from sparsefront_kernels.performance_model.kernel_latency import FAMILIES, constants_key, family_of
from sparsefront_kernels.performance_model.product import Product
from sparsefront_kernels.performance_model.rates import DeviceRates
from sparsefront_kernels.performance_model.work import CONSTANTS, STARTS, Work, Works


@dataclass(frozen=True)
class Errors:
    """Statistics of |predicted / measured - 1|.

    Args:
        rows: number of predictions.
        median, p90: of the error.
        bias: geometric mean of predicted / measured: above 1 the model predicts too long times.
    """

    rows: int
    median: float
    p90: float
    bias: float

    @classmethod
    def of(cls, ratios: Iterable[float]) -> "Errors":
        """From predicted / measured, of at least one prediction."""
        ratios = list(ratios)
        errors = sorted(abs(ratio - 1) for ratio in ratios)
        p90 = quantiles(errors, n=10, method="inclusive")[8] if len(errors) > 1 else errors[0]
        return cls(len(errors), median(errors), p90, exp(sum(map(log, ratios)) / len(ratios)))

    def as_dict(self) -> dict[str, float]:
        """Numbers rounded to four digits."""
        return {"rows": self.rows, **{name: float(f"{getattr(self, name):.4g}") for name in ("median", "p90", "bias")}}


FACTORS = (8.0, 4.0, 2.0, 1.4, 1.15, 1.05, 1.02)  # by which a constant is changed, coarse to fine
WIDTHS = (1.0, 0.3, 0.1, 0.03)  # of the random changes of all logarithms
ROUNDS, TRIES = 6, 40
DISTRIBUTIONS = ("", "equal", "uneven")  # dense, and random masks with known tile lengths
COMPUTE_BOUND = 0.9  # of the highest dense rate: below, a roofline bound is memory-bound


@dataclass(frozen=True)
class Sample:
    """A measurement of a kernel that the model covers."""

    kernel: str
    product: Product
    latency_us: float


def samples_of(rows: Iterable[Mapping[str, str]]) -> list[Sample]:
    """Correct products of kernels and masks that the model covers, from rows of `bench.rows.read_rows`."""
    return [
        Sample(row["kernel"], product_of(row), float(row["latency_us"]))
        for row in rows
        if row["correct"] == "True" and row["latency_us"]
        if family_of(row["kernel"]) and row["distribution"] in DISTRIBUTIONS
    ]


def product_of(row: Mapping[str, str]) -> Product:
    """The product of a row."""
    sizes = {name: int(row[name]) for name in ("m", "k", "n", "granularity")}
    names = {name: row[name] for name in ("distribution", "dtype", "layout")}
    return Product(sparsity=float(row["sparsity"]), **sizes, **names)


def rates_of(rows: Sequence[Mapping[str, str]], *, gpu: str, num_sms: int, made_with: dict[str, str]) -> DeviceRates:
    """The dense rates and the copy rate from which the rows' roofline bounds were computed.

    Raises:
        ValueError: no row is memory-bound.
    """
    bounds = [
        (row["dtype"], product_of(row), float(row["roofline_fraction"]) * float(row["latency_us"]))
        for row in rows
        if row["correct"] == "True" and row["latency_us"]
    ]
    dense: dict[str, float] = defaultdict(float)
    for dtype, product, bound_us in bounds:
        dense[dtype] = max(dense[dtype], _useful_flops(product) / bound_us / 1e6)
    # a row lacks the bytes of indices, which are few: the highest rate is of the row with fewest
    copies = [
        product.least_bytes / bound_us / 1e3
        for dtype, product, bound_us in bounds
        if _useful_flops(product) / bound_us / 1e6 < COMPUTE_BOUND * dense[dtype]
    ]
    if not copies:
        raise ValueError("no row is memory-bound, so the copy rate cannot be computed")
    return DeviceRates(gpu, num_sms, dict(dense), max(copies), made_with)


def fitted(samples: Sequence[Sample], rates: DeviceRates) -> DeviceRates:
    """The rates with constants for every kernel family and number format among the samples.

    "Held out" errors are of constants fitted to the other half of the (K, N).
    """
    groups: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[constants_key(sample.kernel, sample.product.dtype)].append(sample)
    constants, errors = {}, {}
    for key, group in sorted(groups.items()):
        works = _works(group, rates)
        if not works:
            continue
        fittable = set.union(*(work.constants for work, _ in works))  # the others cannot be fitted
        constants[key] = {name: round(value, 5) for name, value in _fit(works).items() if name in fittable}
        group_errors = Errors.of(_ratios(works, constants[key]))
        errors[key] = group_errors.as_dict() | {
            f"held_out_{name}": value for name, value in _held_out(group, rates).items()
        }
    return replace(rates, constants=rates.constants | constants, errors=rates.errors | errors)


def _works(samples: Iterable[Sample], rates: DeviceRates) -> list[tuple[Work, float]]:
    pairs = [(FAMILIES[family_of(one.kernel)](one.product, rates), one.latency_us) for one in samples]
    return [(work, latency_us) for work, latency_us in pairs if work is not None]


def _ratios(works: Sequence[tuple[Work, float]], constants: Mapping[str, float]) -> list[float]:
    """Predicted / measured."""
    times = Works.of([work for work, _ in works]).times_us(constants)
    return (times / torch.tensor([latency_us for _, latency_us in works]).double()).tolist()


def _fit(works: Sequence[tuple[Work, float]]) -> dict[str, float]:
    """The constants with the smallest mean |ln(predicted / measured)| of a deterministic search.

    Changes one constant after the other, then all of them at random by decreasing amounts, and repeats.
    """
    batch = Works.of([work for work, _ in works])
    measured = torch.tensor([latency_us for _, latency_us in works]).double()
    random = Random(0)

    def loss(constants: Mapping[str, float]) -> float:
        return float((batch.times_us(constants) / measured).log().abs().mean())

    constants = dict(STARTS)
    best = loss(constants)

    def try_out(moved: Mapping[str, float]) -> None:
        nonlocal constants, best
        tried = {name: min(max(value, CONSTANTS[name][1]), CONSTANTS[name][2]) for name, value in moved.items()}
        trial_loss = loss(tried)
        if trial_loss < best:
            constants, best = tried, trial_loss

    for _ in range(ROUNDS):
        for factor in FACTORS:
            for name in CONSTANTS:
                try_out(constants | {name: constants[name] * factor})
                try_out(constants | {name: constants[name] / factor})
        for width in WIDTHS:
            for _ in range(TRIES):
                try_out({name: value * exp(random.gauss(0, width)) for name, value in constants.items()})
    return constants


def _held_out(samples: Sequence[Sample], rates: DeviceRates) -> dict[str, float]:
    """Median and p90 over both halves; empty for fewer than two (K, N)."""
    shapes = sorted({(one.product.k, one.product.n) for one in samples})
    if len(shapes) < 2:
        return {}
    ratios: list[float] = []
    for half in (0, 1):
        inside = {shape for place, shape in enumerate(shapes) if place % 2 == half}
        training = [one for one in samples if (one.product.k, one.product.n) in inside]
        others = [one for one in samples if (one.product.k, one.product.n) not in inside]
        ratios += _ratios(_works(others, rates), _fit(_works(training, rates)))
    errors = Errors.of(ratios).as_dict()
    return {name: errors[name] for name in ("median", "p90")}


def _useful_flops(product: Product) -> float:
    return 2.0 * product.m * product.k * product.n * (1 - product.sparsity)
