"""Confidence: the difference of two choices on the same samples, and what a choice lost."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from statistics import fmean

import numpy as np

from sparsefront.results.candidates import Candidate, error_of_lost, points_lost
from sparsefront.tasks.outcomes import Outcomes

LEVEL = 0.95
SIGMAS = 1.96  # half-width of a 95 % interval of a normal distribution
SIGMAS_WITH_POWER = SIGMAS + 0.84  # of a difference that is found in 80 % of all experiments


@dataclass(frozen=True)
class Difference:
    """Metric of one choice minus that of another, as fractions; `low` and `high` are the ends of its 95 % interval.

    `sample_error` and `run_error`: standard errors due to the finite split, over `samples`, and to seeds, over the smaller
    number of `runs`. With a single run on each side `run_error` is 0, because it is unknown.
    """

    value: float
    low: float
    high: float
    samples: int = 0
    runs: int = 1
    sample_error: float = 0.0
    run_error: float = 0.0

    @property
    def clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def compare_paired(ours: Sequence[Outcomes], theirs: Sequence[Outcomes], *, same_seeds: bool) -> Difference:
    """Difference of the means over runs, with Student's t for samples crossed with runs.

    The variance of the mean adds that between samples and that between runs, and subtracts that of their interaction, which
    both contain. A single run says nothing about variation between runs: the interval is then due to the samples only.

    Args:
        ours, theirs: one entry per run, over the same samples.
        same_seeds: run i of both sides has the same seeds and the same dense network.
    Raises:
        ValueError: the samples differ.
    Source: Satterthwaite, "An Approximate Distribution of Estimates of Variance Components", 1946.
    """
    if len({(outcomes.samples, len(outcomes)) for outcomes in (*ours, *theirs)}) > 1:
        raise ValueError("outcomes of other samples cannot be compared in pairs")
    n, every = len(ours[0]), np.arange(len(ours[0]))
    first, second = (np.stack([run.pseudo_values() for run in runs]) for runs in (ours, theirs))
    sides = [first - second] if same_seeds else [first, -second]
    of_samples = float(sum(side.mean(0) for side in sides).var(ddof=1)) / n if n > 1 else 0.0
    parts, of_runs = [(of_samples, n - 1)], 0.0
    for side in sides:
        runs = len(side)
        if runs > 1 and n > 1:
            between = float(side.mean(1).var(ddof=1)) / runs
            rest = side - side.mean(0) - side.mean(1, keepdims=True) + side.mean()
            interaction = float((rest**2).sum()) / ((runs - 1) * (n - 1) * runs * n)
            parts += [(between, runs - 1), (-interaction, (runs - 1) * (n - 1))]
            of_runs += max(between - interaction, 0.0)
    value = float(
        np.mean([run.metric_over(every) for run in ours]) - np.mean([run.metric_over(every) for run in theirs])
    )
    reach = _reach(parts, (1 + LEVEL) / 2, least=of_samples)
    return Difference(
        value,
        value - reach,
        value + reach,
        samples=n,
        runs=min(len(ours), len(theirs)),
        sample_error=sqrt(of_samples),
        run_error=sqrt(of_runs),
    )


def _reach(parts: Iterable[tuple[float, int]], quantile: float, *, least: float = 0.0) -> float:
    """How far the end of an interval is from the estimate, by Student's t.

    Args:
        parts: variances that add up, with the degrees of freedom of each.
        least: lower limit of the sum.
    """
    parts = [(variance, freedom) for variance, freedom in parts if variance]
    variance = max(sum(part for part, _ in parts), least)
    if not variance:
        return 0.0
    from scipy.special import stdtrit

    freedom = variance**2 / sum(part**2 / freedom for part, freedom in parts)
    return float(stdtrit(freedom, quantile)) * sqrt(variance)


@dataclass(frozen=True)
class Loss:
    """What a candidate lost, in points (percent for perplexity): the mean over its runs, and one-sided 95 % bounds."""

    mean: float
    low: float
    high: float


def loss_of(candidate: Candidate, *, held_out: bool) -> Loss | None:
    """The loss against the baseline on one part; None if it was not measured.

    The two networks' standard errors count as independent: on the same samples the true bounds are nearer. Infinite bounds
    if no standard errors were recorded.
    """
    lost, errors = [], []
    for result in candidate.results:
        points, error = points_lost(result, held_out=held_out), error_of_lost(result, held_out=held_out)
        if points is None:
            return None
        lost.append(points)
        errors.append(inf if error is None else error)
    mean, first = fmean(lost), candidate.results[0].quality
    samples = (first.val_evaluated_samples if held_out else first.evaluated_samples) or len(lost)
    parts = [(fmean(error**2 for error in errors), max(samples - 1, 1))]
    if len(lost) > 1:
        parts.append((float(np.var(lost, ddof=1)) / len(lost), len(lost) - 1))
    reach = inf if inf in errors else _reach(parts, LEVEL)
    return Loss(*(round(value, 9) for value in (mean, mean - reach, mean + reach)))  # 98 % - 97 % is 1.0000000000000009
