"""What is chosen among comparable results, by their held-out part; and how sure the reporting split is of it."""

from collections.abc import Callable, Iterable, Sequence
from statistics import mean

from sparsefront.report.candidates import Candidate, candidates_of, holds_nothing_out, mean_and_deviation, side_of
from sparsefront.report.column_kinds import percent, times
from sparsefront.report.paired_bootstrap import Difference, paired_difference
from sparsefront.report.result import Result
from sparsefront.tasks.outcomes import Outcomes

CHOICES = "over seeds: mean ± standard deviation; the held-out part of train picks, test reports"
OutcomesOf = Callable[[Result], dict[str, Outcomes] | None]
"""Outcomes of a result's networks by side; None where they were not kept."""


def winners(results: Iterable[Result]) -> dict[float, list[Candidate]]:
    """Sparsity -> for each pattern the candidate with the best mean on the held-out part; the best pattern first.

    Results without a held-out part are no candidates.
    """
    found: dict[float, dict[str, Candidate]] = {}
    for candidate in candidates_of(results):
        if not candidate.can_be_chosen:
            continue
        of_sparsity = found.setdefault(candidate.sparsity, {})
        best = of_sparsity.get(candidate.structure)
        if best is None or mean(candidate.val) > mean(best.val):
            of_sparsity[candidate.structure] = candidate
    return {
        sparsity: sorted(best.values(), key=lambda candidate: -mean(candidate.val))
        for sparsity, best in sorted(found.items())
    }


def candidate_table(results: Sequence[Result]) -> list[dict[str, str]]:
    """One line per candidate: mean ± standard deviation over its runs, and what is picked; empty where each is a single run
    of its own sparsity.
    """
    found, best = candidates_of(results), winners(results)
    if len(found) < 2 and all(len(candidate.results) < 2 for candidate in found):
        return []
    picked = {candidate.runs: place for line in best.values() for place, candidate in enumerate(line)}
    lines = []
    for candidate in sorted(found, key=lambda one: (one.sparsity, picked.get(one.runs, len(found)))):
        place = picked.get(candidate.runs)
        alone = len(best.get(candidate.sparsity, ())) < 2
        speedup, spread = mean_and_deviation(candidate.speedups)
        lines.append(
            {
                "sparsity": f"{candidate.sparsity:g}",
                "pattern": candidate.pattern,
                "settings": _settings(candidate, found),
                "runs": str(len(candidate.results)),
                "held out": _spread(candidate.val),
                "test": _spread(candidate.test),
                "speedup": times(speedup) + ("" if spread is None else f" ± {spread:.2f}"),
                "picked by held out": "" if place is None else "winner" if place == 0 and not alone else "recipe",
            }
        )
    return lines


def verdicts(results: Sequence[Result], outcomes_of: OutcomesOf) -> list[str]:
    """One line for each pattern beside the winner of its sparsity, and why nothing is picked among the others."""
    lines = []
    for sparsity, (first, *others) in winners(results).items():
        for other in others:
            names = _names(first, other)
            told = _difference(first, other, outcomes_of)
            text = told if isinstance(told, str) else _in_words(told, *names)
            lines.append(f"sparsity {sparsity:g}, {names[0]} picked before {names[1]}: {text}")
    pruned = [result for result in results if side_of(result) is not None]
    full = sum(map(holds_nothing_out, pruned))
    old = sum(not candidate.can_be_chosen for candidate in candidates_of(pruned)) if len(pruned) > 1 else 0
    if full:
        lines.append(
            f"{full} of {len(pruned)} results hold nothing out (dataset.valid_fraction=0): none of them is picked"
        )
    elif old:
        lines.append("results without metrics of a held-out part, as of older versions: none of them is picked")
    return lines


def _difference(first: Candidate, other: Candidate, outcomes_of: OutcomesOf) -> Difference | str:
    """On the reporting split; or why there is none."""
    kept = [[(outcomes_of(run) or {}).get(side_of(run)) for run in one.results] for one in (first, other)]
    if any(outcomes is None for side in kept for outcomes in side):
        return "which is better is not claimed, since outcomes per sample (outcomes.npz beside row.json) are missing"
    try:
        return paired_difference(*kept, same_seeds=first.seeds == other.seeds)
    except ValueError:
        return "which is better is not claimed, since they were evaluated on other samples"


def _in_words(found: Difference, first: str, other: str) -> str:
    points, low, high = (100 * value for value in (found.value, found.low, found.high))
    interval = f"{points:+.2f} points on test, paired bootstrap 95 % {low:+.2f} to {high:+.2f}"
    if not found.clear:
        return f"no clear difference ({interval})"
    return f"{first if points > 0 else other} is better ({interval})"


def _names(first: Candidate, other: Candidate) -> tuple[str, str]:
    """Patterns; with what else makes another network where these are the same."""
    if first.pattern != other.pattern:
        return first.pattern, other.pattern
    return tuple(" ".join(filter(None, (one.pattern, _settings(one, [first, other])))) for one in (first, other))


def _settings(candidate: Candidate, found: Sequence[Candidate]) -> str:
    """Where the candidates of one pattern and sparsity differ, what this one chose."""
    rivals = [one.settings() for one in found if (one.pattern, one.sparsity) == (candidate.pattern, candidate.sparsity)]
    own = candidate.settings()
    return " ".join(f"{key}={own[key]}" for key in own if any(rival.get(key) != own[key] for rival in rivals))


def _spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation over runs."""
    middle, deviation = mean_and_deviation(values)
    return percent(middle) if deviation is None else f"{100 * middle:.2f} ± {percent(deviation)}"
