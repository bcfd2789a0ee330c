"""Whether one choice is better than another on the same samples: a paired bootstrap over samples, and over runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from sparsefront.tasks.outcomes import Outcomes

DRAWS = 1000


@dataclass(frozen=True)
class Difference:
    """Metric of one choice minus that of another, as fractions; `low` and `high` are the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def paired_difference(ours: Sequence[Outcomes], theirs: Sequence[Outcomes], *, same_seeds: bool) -> Difference:
    """Difference of the means over runs.

    Each draw takes samples with replacement, the same ones for both sides, and of each side's runs as many as there are,
    with replacement: the same ones for both where the runs are paired by their seeds. Means of n drawn runs have
    (n - 1) / n of the variance that means of n runs have, so how far they lie from the mean of all runs is widened by
    √(n / (n - 1)). One run tells nothing about how runs differ: then the interval is that of the samples alone.

    Args:
        ours, theirs: one entry per run, over the same samples.
        same_seeds: run i of both sides has the same seeds.
    Raises:
        ValueError: not the same samples.
    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapters 8 and 13. The generator's seed is fixed.
    """
    if len({(outcomes.samples, len(outcomes)) for outcomes in (*ours, *theirs)}) > 1:
        raise ValueError("outcomes of other samples cannot be compared in pairs")
    draw = np.random.RandomState(0)
    n = len(ours[0])
    drawn = []
    for _ in range(DRAWS):
        chosen = draw.randint(n, size=n)
        our_runs = draw.randint(len(ours), size=len(ours))
        their_runs = our_runs if same_seeds else draw.randint(len(theirs), size=len(theirs))
        drawn.append(_drawn_mean(ours, our_runs, chosen) - _drawn_mean(theirs, their_runs, chosen))
    every = np.arange(n)
    value = float(_scores(ours, every).mean() - _scores(theirs, every).mean())
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Difference(value, float(low), float(high))


def _drawn_mean(runs: Sequence[Outcomes], chosen_runs: np.ndarray, samples: np.ndarray) -> float:
    """Over some samples: the mean of the chosen runs, moved away from that of all runs by what drawing takes from it."""
    scores, n = _scores(runs, samples), len(runs)
    widened = sqrt(n / (n - 1)) if n > 1 else 0.0
    return float(scores.mean() + widened * (scores[chosen_runs].mean() - scores.mean()))


def _scores(runs: Sequence[Outcomes], samples: np.ndarray) -> np.ndarray:
    """[runs]: the metric of each over some samples."""
    return np.array([run.metric_over(samples) for run in runs])
