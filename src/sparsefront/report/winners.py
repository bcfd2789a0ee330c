"""What is chosen among comparable results, by their held-out part; and how sure the reporting split is of it."""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from sparsefront.report.candidates import Candidate, mean_and_deviation, offers_no_choice, side_of
from sparsefront.report.column_kinds import percent, times
from sparsefront.report.paired_bootstrap import Difference, paired_difference
from sparsefront.report.result import Result
from sparsefront.report.run_command import override_text
from sparsefront.tasks.outcomes import Outcomes

CHOICES = "over seeds: mean ± standard deviation; the held-out part of train picks, test reports"
PICKED = "winner: best of its sparsity on held-out data\nrecipe: best of its pattern there"  # see `picked_as`
MOST_UNCLAIMED = 3  # pairs of which each is told
OutcomesOf = Callable[[Result], dict[str, Outcomes] | None]
"""Outcomes of a result's networks by side; None where they were not kept."""


def winners(candidates: Iterable[Candidate]) -> dict[float, list[Candidate]]:
    """Sparsity -> for each pattern the candidate with the best mean on the held-out part; the best pattern first.

    Those without a held-out part are left out, and those that are not compared at their sparsity (`why_apart`).
    """
    found: dict[float, dict[str, Candidate]] = {}
    for candidate in candidates:
        if not candidate.can_be_chosen or candidate.why_apart is not None:
            continue
        of_sparsity = found.setdefault(candidate.sparsity, {})
        best = of_sparsity.get(candidate.structure)
        if best is None or fmean(candidate.val) > fmean(best.val):
            of_sparsity[candidate.structure] = candidate
    return {
        sparsity: sorted(best.values(), key=lambda candidate: -fmean(candidate.val))
        for sparsity, best in sorted(found.items())
    }


def picked_as(candidates: Sequence[Candidate]) -> dict[tuple[str, ...], str]:
    """Runs of a candidate -> `winner` of its sparsity, where it had rivals, or `recipe`: the best of its pattern; or why it is
    not compared there.
    """
    picked = {
        candidate.runs: "winner" if place == 0 and len(line) > 1 else "recipe"
        for line in winners(candidates).values()
        for place, candidate in enumerate(line)
    }
    return picked | {candidate.runs: candidate.why_apart for candidate in candidates if candidate.why_apart is not None}


def candidate_table(found: Sequence[Candidate]) -> list[dict[str, str]]:
    """One line per candidate: mean ± standard deviation over its runs, and what is picked; empty where each is a single run
    of its own sparsity.
    """
    picked, told = picked_as(found), settings_apart(found)
    if len(found) < 2 and all(len(candidate.results) < 2 for candidate in found):
        return []
    place = {runs: number for number, runs in enumerate(picked)}  # those of a sparsity in their order
    lines = []
    for candidate in sorted(found, key=lambda one: (one.sparsity, place.get(one.runs, len(place)))):
        speedup, spread = mean_and_deviation(candidate.speedups)
        lines.append(
            {
                "sparsity": f"{candidate.sparsity:g}",
                "pattern": candidate.pattern,
                "settings": " ".join(told[candidate.runs].values()),
                "runs": str(len(candidate.results)),
                "held out": _spread(candidate.val),
                "test": _spread(candidate.test),
                "speedup": times(speedup) + ("" if spread is None else f" ± {spread:.2f}"),
                "picked by held out": picked.get(candidate.runs, ""),
            }
        )
    return lines


def verdicts(candidates: Sequence[Candidate], outcomes_of: OutcomesOf) -> list[str]:
    """One line for each pattern beside the winner of its sparsity, and why nothing is picked among the others."""
    lines: list[str] = []
    unclaimed: dict[str, list[str]] = {}  # why -> pairs
    for sparsity, (first, *others) in winners(candidates).items():
        name_of = _names([first, *others])
        for other in others:
            names = name_of[first.runs], name_of[other.runs]
            told = _difference(first, other, outcomes_of)
            line = f"sparsity {sparsity:g}, {names[0]} picked before {names[1]}"
            if isinstance(told, str):
                unclaimed.setdefault(told, []).append(line)
            else:
                lines.append(f"{line}: {_in_words(told, *names)}{_single_seeds(told, first, other, names)}")
    for why, pairs in unclaimed.items():
        few = len(pairs) <= MOST_UNCLAIMED
        lines += [f"{pair}: {why}" for pair in pairs] if few else [f"of {len(pairs)} pairs of candidates: {why}"]
    pruned = [result for candidate in candidates for result in candidate.results]
    old = any(not candidate.can_be_chosen for candidate in candidates) and not any(map(offers_no_choice, pruned))
    if old and len(pruned) > 1:
        lines.append("results without metrics of a held-out part, as of older versions: none of them is picked")
    return lines


def _difference(first: Candidate, other: Candidate, outcomes_of: OutcomesOf) -> Difference | str:
    """On the reporting split; or why there is none."""
    kept = [[(outcomes_of(run) or {}).get(side_of(run)) for run in one.results] for one in (first, other)]
    if any(outcomes is None for side in kept for outcomes in side):
        return "which is better is not claimed, since outcomes per sample (outcomes.npz beside row.json) are missing or edited"
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


def _single_seeds(found: Difference, first: Candidate, other: Candidate, names: tuple[str, str]) -> str:
    """What is missing from a claim whose interval holds no difference between seeds."""
    single = [name for name, one in zip(names, (first, other)) if len(one.results) == 1]
    if not found.clear or not single:
        return ""
    return f"; {'one seed each' if len(single) == 2 else f'one seed of {single[0]}'}: not decided between seeds"


def _names(rivals: Sequence[Candidate]) -> dict[tuple[str, ...], str]:
    """Runs of a candidate -> its pattern; with the settings in which they differ where several have that pattern."""
    told = settings_apart(rivals, ("pattern",))
    return {one.runs: " ".join((one.pattern, *told[one.runs].values())) for one in rivals}


def settings_apart(
    candidates: Sequence[Candidate], shown: Sequence[str] = ("pattern", "sparsity")
) -> dict[tuple[str, ...], dict[str, str]]:
    """Runs of a candidate -> what it chose where candidates that look alike differ: setting -> as `run.py` takes it.

    Args:
        shown: attributes of a candidate that are told beside its settings; alike are those in which all of them agree.
    """
    rivals: dict[tuple, list[Candidate]] = {}
    for candidate in candidates:
        rivals.setdefault(tuple(getattr(candidate, name) for name in shown), []).append(candidate)
    told = {}
    for alike in rivals.values():
        settings = [candidate.settings() for candidate in alike]
        apart = [key for key in _all(settings) if len({str(one.get(key)) for one in settings}) > 1]
        for candidate, own in zip(alike, settings):
            told[candidate.runs] = {key: override_text(key, own[key]) for key in apart if key in own}
    return told


def _all(settings: Sequence[dict]) -> dict:
    return {key: value for one in settings for key, value in one.items()}


def _spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation over runs."""
    middle, deviation = mean_and_deviation(values)
    return percent(middle) if deviation is None else f"{100 * middle:.2f} ± {percent(deviation)}"
