"""Results that differ in their seeds alone, taken together; and which of them may be chosen among.

Choices are made by the metric on the held-out part of train (`val_*`), never by the one that is reported.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from statistics import fmean
from typing import Any

from sparsefront.pruning.target import BUDGET_KEYS, misses
from sparsefront.report.rank import rank
from sparsefront.report.result import Result

STRUCTURE = ("pattern", "pattern_parameters", "granularity", "kernel_mode")
"""Fields of `choice` that make another network of it, where the others make the same one in another way."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """The runs of one choice at one sparsity, one for each pair of seeds.

    Args:
        results: by seeds; where a pair of seeds was run again, its newest run alone, of those that have the control.
    """

    results: tuple[Result, ...]

    @cached_property
    def pattern(self) -> str:
        """Pattern, with its granularity and n:m where it has them."""
        first = self.results[0]
        parts = (first.choice.pattern, first.choice.granularity, first.sparsity.n_of_m)
        return " ".join(str(part) for part in parts if part is not None)

    @property
    def sparsity(self) -> float:
        """The one that was asked for."""
        return self.results[0].sparsity.sparsity_target

    @cached_property
    def achieved(self) -> float | None:
        """Mean over the runs that record it, None where none does."""
        found = [value for result in self.results if (value := result.sparsity.sparsity_achieved) is not None]
        return fmean(found) if found else None

    @cached_property
    def why_apart(self) -> str | None:
        """Why it is not compared with others at its sparsity, in few words: it achieved another one, or was given a budget, for
        which the sparsity is a ceiling. None where it is compared, as is what records no achieved sparsity.
        """
        if self.achieved is not None and misses(self.achieved, self.sparsity):
            return f"{self.achieved:.2f} achieved"
        return "has a budget" if budget_of(self.results[0]) else None

    @property
    def structure(self) -> str:
        """Equal for candidates whose networks differ by training, scores and allocation alone."""
        first = self.results[0]
        return _text([first.sparsity.sparsity_target, *(getattr(first.choice, name) for name in STRUCTURE)])

    @property
    def recovery(self) -> str:
        return recovery_of(self.results[0])

    @property
    def seeds(self) -> tuple[tuple[int, int | None], ...]:
        return tuple(seeds_of(result) for result in self.results)

    @property
    def runs(self) -> tuple[str, ...]:
        """The results' `run_id`s."""
        return tuple(result.identity.run_id for result in self.results)

    @cached_property
    def can_be_chosen(self) -> bool:
        return all(val_quality(result) is not None for result in self.results)

    @cached_property
    def val(self) -> list[float]:
        """On the held-out part, fractions, of the runs that have it."""
        return [value for result in self.results if (value := val_quality(result)) is not None]

    @cached_property
    def test(self) -> list[float]:
        """On the reporting split, fractions."""
        return [result.value_of(side_of(result)) for result in self.results]

    @property
    def speedups(self) -> list[float]:
        return [result.speed.speedup for result in self.results if result.speed.speedup is not None]

    def settings(self) -> dict[str, Any]:
        """All that was chosen, `part.key` -> value, without seeds."""
        return _choice(self.results[0])


def candidates_of(results: Iterable[Result]) -> list[Candidate]:
    """Pruned results by what was chosen, in the order in which they are first met."""
    found: dict[str, dict[tuple, Result]] = {}
    for result in results:
        if side_of(result) is None:
            continue
        of_choice = found.setdefault(_text([result.sparsity.sparsity_target, _choice(result)]), {})
        before = of_choice.get(seeds_of(result))
        if before is None or rank(result) > rank(before):
            of_choice[seeds_of(result)] = result
    return [Candidate(tuple(runs[seeds] for seeds in sorted(runs, key=str))) for runs in found.values()]


def seeds_of(result: Result) -> tuple[int, int | None]:
    """Of the dense network and of its recovery."""
    again = result.identity.recovery_seed
    return result.identity.seed, result.identity.seed if again is None else again


def asked_of(result: Result) -> str:
    """What its allocation had to reach: a sparsity, or the speedup or latency for which the sparsity is a ceiling."""
    if budget := budget_of(result):
        return f"with {budget}"
    return f"at sparsity {result.sparsity.sparsity_target:g}"


def budget_of(result: Result) -> str | None:
    """The speedup or latency that its allocation was given, as a setting; None where a sparsity was asked for."""
    given = result.choice.allocation_parameters
    found = (f"allocation.{key}={given[key]:g}" for key in BUDGET_KEYS if given.get(key) is not None)
    return next(found, None)


def recovery_of(result: Result) -> str:
    """As the setting `recovery` takes it; `none` where nothing was recovered."""
    return result.choice.recovery or "none"


def side_of(result: Result) -> str | None:
    """With the sparse kernels running where that was measured, else masked; None where nothing was pruned."""
    return next((side for side in ("sparse", "masked") if result.value_of(side) is not None), None)


def is_pruned(result: Result) -> bool:
    """Whether the quality of a pruned network was measured."""
    return side_of(result) is not None


def val_quality(result: Result) -> float | None:
    """What a choice goes by; None where nothing may be chosen by this result."""
    side = None if offers_no_choice(result) else side_of(result)
    return None if side is None else result.value_of(f"val_{side}")


def holds_nothing_out(result: Result) -> bool:
    """Whether it was trained on all of train on purpose."""
    return result.choice.dataset_parameters.get("valid_fraction") == 0


def offers_no_choice(result: Result) -> bool:
    """Whether nothing of train was held out on purpose, or the checkpoint may have seen what is."""
    return holds_nothing_out(result) or bool(result.quality.val_seen)


def why_not_picked(results: Iterable[Result]) -> list[str]:
    """One line for each reason why some of these results may decide nothing, on purpose or since data was seen."""
    pruned = [result for result in results if is_pruned(result)]
    full = sum(map(holds_nothing_out, pruned))
    seen = sum(bool(result.quality.val_seen) for result in pruned)
    lines = []
    if full:
        lines.append(
            f"{full} of {len(pruned)} results hold nothing out (dataset.valid_fraction=0): none of them is picked"
        )
    if seen:
        lines.append(
            f"{seen} of {len(pruned)} results are of a checkpoint that may have been trained on the held-out part "
            "(val_seen): none of them is picked"
        )
    return lines


def mean_and_deviation(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean, and standard deviation over runs (n - 1 in the denominator); None where there are too few values."""
    if not values:
        return None, None
    middle = fmean(values)
    squares = sum((value - middle) ** 2 for value in values)
    return middle, sqrt(squares / (len(values) - 1)) if len(values) > 1 else None


def _choice(result: Result) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in vars(result.choice).items():
        if name == "control":  # it adds a network beside the pruned one, which stays the same
            continue
        if not isinstance(value, dict):
            flat[name] = value
            continue
        part = name.removesuffix("_parameters")
        flat |= {f"{part}.{key}": held for key, held in value.items() if (part, key) != ("importance", "seed")}
    return flat


def _text(content: Any) -> str:
    return json.dumps(content, sort_keys=True, default=str)
