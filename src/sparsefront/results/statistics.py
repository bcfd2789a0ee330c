"""Which choice is better, and which is fastest within a budget: winners, rankings, verdicts."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, inf, log, sqrt
from statistics import fmean

import numpy as np

from sparsefront.progress import counted
from sparsefront.results.candidates import (
    NONE,
    Candidate,
    Metric,
    describe_target,
    error_of_lost,
    low_baseline_is_faster,
    mean_and_deviation,
    offers_no_choice,
    pair_of,
    points_lost,
    side_of,
    too_few_repeats,
)
from sparsefront.results.columns import times
from sparsefront.results.comparable import (
    DATASET_SPEEDUP,
    SPEEDUP,
    ComparableResults,
    Point,
    by_pattern,
    compute_areas,
    point_of,
)
from sparsefront.results.record import Result
from sparsefront.results.run_folder import override_text
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


# When a sparse network counts as faster than dense: the one rule for all tables, sentences and curves.

# Networks with equal layers, timed in turn, differed by up to 0.9 % on an H200: this is due to memory placement, and
# repeated timing in one process does not average it out.
TIMING_NOISE = 0.01
# Minimum share of the prunable layers' dense FLOPs in sparse kernels for a speedup to be attributed to them.
LEAST_SPARSE_SHARE = 0.5

FASTER, SLOWER, UNCLEAR, MOSTLY_DENSE = "faster", "slower", "no clear difference", "mostly dense kernels"


def speed_verdict(low: float, high: float, sparse_flops_share: float | None = None) -> str:
    """`FASTER` or `SLOWER` if the whole interval of a speedup lies beyond timing noise, else `UNCLEAR`.

    Args:
        low, high: ends of the interval; both the speedup if there is none.
        sparse_flops_share: below `LEAST_SPARSE_SHARE`, faster becomes `MOSTLY_DENSE`; None if unknown, as in older results,
            or meaningless, as for a smaller dense network.
    """
    if high < 1 - TIMING_NOISE:
        return SLOWER
    if low <= 1 + TIMING_NOISE:
        return UNCLEAR
    return MOSTLY_DENSE if sparse_flops_share is not None and sparse_flops_share < LEAST_SPARSE_SHARE else FASTER


def against_dense(point: Point) -> str:
    """The verdict on a point's speedup, from the hull of all runs' intervals and the smallest share among them.

    `UNCLEAR` if a run has too few repeats for an interval.
    """
    if repeats_text(point):
        return UNCLEAR
    shares = (result.kernels.sparse_flops_share for result in point.candidate.results)
    least_share = min((share for share in shares if share is not None), default=None)
    return speed_verdict(*(point.x_interval or (point.x, point.x)), least_share)


def repeats_text(point: Point) -> str:
    """`n=3` instead of an interval if a run has too few repeats for one; else empty."""
    few = [
        repeats for repeats in (too_few_repeats(result) for result in point.candidate.results) if repeats is not None
    ]
    return f"n={min(few)}" if few else ""


LEAST_SEEDS = 3
FEW_SEEDS = f"not ranked: fewer than {LEAST_SEEDS} seeds"


def may_rank(candidate: Candidate) -> bool:
    """Whether it has enough seeds to be called better, or faster at equal quality, than another candidate."""
    return len(candidate.seeds) >= LEAST_SEEDS


# Choices among comparable results by their held-out part, and their confidence on the reporting split.

CHOICES = "over seeds: mean ± standard deviation; the held-out part of train picks, test reports"
PICKED = "winner: best of its sparsity on held-out data\nrecipe: best of its pattern there"  # see `label_picks`
MOST_UNCLAIMED = 3  # pairs listed individually
OutcomesOf = Callable[[Result], dict[str, Outcomes] | None]
"""Outcomes of a result's networks by side; None if they were not kept."""


def winners(candidates: Iterable[Candidate]) -> dict[float, list[Candidate]]:
    """Sparsity -> for each pattern, the candidate with the best held-out mean; best pattern first.

    Candidates without held-out metrics, or not compared at their sparsity (`why_apart`), are left out.
    """
    by_sparsity: dict[float, dict[str, Candidate]] = {}
    for candidate in candidates:
        if not candidate.can_be_chosen or candidate.why_apart is not None:
            continue
        of_sparsity = by_sparsity.setdefault(candidate.sparsity, {})
        best = of_sparsity.get(candidate.structure)
        if best is None or candidate.merit > best.merit:
            of_sparsity[candidate.structure] = candidate
    return {
        sparsity: sorted(best.values(), key=lambda candidate: -candidate.merit)
        for sparsity, best in sorted(by_sparsity.items())
    }


def label_picks(candidates: Sequence[Candidate]) -> dict[tuple[str, ...], str]:
    """Runs of a candidate -> `winner` of its sparsity (if it had rivals), or `recipe`, the best of its pattern; or why it is
    not compared.
    """
    picked = {
        candidate.runs: "winner" if place == 0 and len(line) > 1 else "recipe"
        for line in winners(candidates).values()
        for place, candidate in enumerate(line)
    }
    return picked | {candidate.runs: candidate.why_apart for candidate in candidates if candidate.why_apart is not None}


def candidate_table(candidates: Sequence[Candidate]) -> list[dict[str, str]]:
    """One line per candidate: mean ± standard deviation over its runs, and what is picked; empty if each is a single run of its
    own sparsity.
    """
    picked, distinctions = label_picks(candidates), settings_apart(candidates)
    if len(candidates) < 2 and all(len(candidate.results) < 2 for candidate in candidates):
        return []
    place = {runs: number for number, runs in enumerate(picked)}  # rank within a sparsity
    lines = []
    for candidate in sorted(candidates, key=lambda one: (one.sparsity, place.get(one.runs, len(place)))):
        line = {
            "sparsity": f"{candidate.sparsity:g}",
            "pattern": candidate.pattern,
            "settings": " ".join(distinctions[candidate.runs].values()),
            "runs": str(len(candidate.results)),
            "held out": candidate.metric.text(*mean_and_deviation(candidate.val)),
            "test": candidate.metric.text(*mean_and_deviation(candidate.test)),
        }
        for part, held_out in (("held out", True), ("test", False)):
            loss = loss_of(candidate, held_out=held_out)
            bound = f" (≤ {loss.high:.2f})" if loss is not None and loss.high < inf else ""
            line[f"lost, {part} (95 %)"] = NONE if loss is None else f"{loss.mean:.2f}{bound}"
        for heading, axis in (("speedup", SPEEDUP), ("own lengths", DATASET_SPEEDUP)):
            point = point_of(candidate, axis)
            line[heading] = NONE if point.x is None else times(point.x) + _interval_text(point, "{:.2f}–{:.2f}")
        lines.append(line | {"picked by held out": picked.get(candidate.runs, "")})
    unused = [name for name in ("settings", "own lengths") if all(line[name] in ("", NONE) for line in lines)]
    return [{name: cell for name, cell in line.items() if name not in unused} for line in lines]


def _interval_text(point: Point, form: str) -> str:
    """` (1.60–1.61)`, the hull of the intervals of its runs; ` (n=3)` with too few repeats; else empty."""
    text = repeats_text(point) or (point.x_interval and form.format(*point.x_interval))
    return f" ({text})" if text else ""


def verdicts(candidates: Sequence[Candidate], outcomes_of: OutcomesOf) -> list[str]:
    """One line per pattern, compared with the winner of its sparsity, and why nothing is picked among the others."""
    lines: list[str] = []
    unclaimed: dict[str, list[str]] = {}  # reason -> pairs
    for sparsity, rivals in winners(candidates).items():
        distinctions = settings_apart(rivals, ("pattern",))
        names = [" ".join((one.pattern, *distinctions[one.runs].values())) for one in rivals]
        for other, name in zip(rivals[1:], names[1:]):
            line = f"sparsity {sparsity:g}, {names[0]} picked before {name}"
            difference = _difference(rivals[0], other, outcomes_of)
            if isinstance(difference, str):
                unclaimed.setdefault(difference, []).append(line)
            else:
                lines.append(f"{line}: {_verdict(difference, names[0], name, metric=rivals[0].metric)}")
    for why, pairs in unclaimed.items():
        few = len(pairs) <= MOST_UNCLAIMED
        lines += [f"{pair}: {why}" for pair in pairs] if few else [f"of {len(pairs)} pairs of candidates: {why}"]
    pruned = [result for candidate in candidates for result in candidate.results]
    old = any(not candidate.can_be_chosen for candidate in candidates) and not any(map(offers_no_choice, pruned))
    if old and len(pruned) > 1:
        lines.append("results without metrics of a held-out part, as of older versions: none of them is picked")
    return lines


def _difference(first: Candidate, other: Candidate, outcomes_of: OutcomesOf) -> Difference | str:
    """The difference on the reporting split, over the runs of the same dense networks if there are any; or why there is none."""
    ours, theirs = ({pair_of(run): run for run in one.results} for one in (first, other))
    pairs = [pair for pair in ours if pair in theirs]
    sides = [[one[pair] for pair in pairs or one] for one in (ours, theirs)]
    side_outcomes = [[(outcomes_of(run) or {}).get(side_of(run)) for run in side] for side in sides]
    if any(outcomes is None for side in side_outcomes for outcomes in side):
        return "not claimed, since outcomes per sample (outcomes.npz beside row.json) are missing or edited"
    try:
        return compare_paired(*side_outcomes, same_seeds=bool(pairs))
    except ValueError:
        return "not claimed, since they were evaluated on other samples"


def _verdict(difference: Difference, first: str, other: str, *, metric: Metric) -> str:
    """Which is better if the interval excludes 0 and there are enough seeds; else what would be needed."""
    points, low, high = (metric.scale * value for value in (difference.value, difference.low, difference.high))
    unit = metric.words if metric.less_is_better else "points"
    interval = f"{points:+.2f} {unit} on test, 95 % {low:+.2f} to {high:+.2f}"
    if not difference.clear:
        return f"no clear difference ({interval}); {describe_needs(difference)}"
    if difference.runs < LEAST_SEEDS:
        return f"{FEW_SEEDS} ({interval}); compared with {difference.runs}"
    return f"{first if metric.sign * points > 0 else other} is better ({interval})"


MOST_NEEDED = 1_000_000  # samples or seeds above which no number is given


def describe_needs(difference: Difference) -> str:
    """How many seeds or samples would tell two choices apart with the measured difference, in four of five experiments.

    The interval of a difference d excludes 0 with a power of 80 % if (d / 2.8)² exceeds the variance between seeds over their
    number plus that of a sample over the number of samples. More of one alone may not suffice.
    """
    reach = (difference.value / SIGMAS_WITH_POWER) ** 2
    of_seeds, of_samples = difference.run_error**2, difference.sample_error**2
    seeds = difference.runs * of_seeds / (reach - of_samples) if difference.runs > 1 and reach > of_samples else inf
    samples = difference.samples * of_samples / (reach - of_seeds) if reach > of_seeds else inf
    needs = [
        f"about {counted(max(fewest, ceil(count)), what)}"
        for count, what, fewest in ((seeds, "seed", LEAST_SEEDS), (samples, "sample", 1))
        if count <= MOST_NEEDED
    ]
    factor = (of_seeds + of_samples) / reach if reach else inf
    if not needs and factor * difference.samples <= MOST_NEEDED:
        both = ((difference.runs, "seed"), (difference.samples, "sample"))
        needs = [" and ".join(f"about {counted(ceil(count * factor), what)}" for count, what in both)]
    if not needs:
        return f"no {MOST_NEEDED:,} samples would tell them apart"
    first = f" with at least {LEAST_SEEDS} seeds" if difference.runs < LEAST_SEEDS else ""
    return f"it would take {' or '.join(needs)}{first}"


def settings_apart(
    candidates: Sequence[Candidate], shown: Sequence[str] = ("pattern", "sparsity")
) -> dict[tuple[str, ...], dict[str, str]]:
    """Runs of a candidate -> the settings (as for `run.py`) that distinguish it from candidates that look alike.

    Args:
        shown: attributes of a candidate shown besides its settings; candidates look alike if all of these agree.
    """
    rivals: dict[tuple, list[Candidate]] = {}
    for candidate in candidates:
        rivals.setdefault(tuple(getattr(candidate, name) for name in shown), []).append(candidate)
    distinctions = {}
    for alike in rivals.values():
        settings = [candidate.settings() for candidate in alike]
        keys = dict.fromkeys(key for one in settings for key in one)
        apart = [key for key in keys if len({str(one.get(key)) for one in settings}) > 1]
        for candidate, own in zip(alike, settings):
            distinctions[candidate.runs] = {key: override_text(key, own[key]) for key in apart if key in own}
    return distinctions


# One line per quality budget: the fastest candidate within it, and which patterns are not faster than dense.

BUDGETS = (0.5, 1.0, 2.0, 5.0)  # percentage points lost against the continued dense network, else against dense
CANNOT_TELL, NOTHING_WITHIN = "cannot tell (95 %)", "nothing loses so little"
MOST_OVERLAPPING = 4  # names of a list


def budget_table(group: ComparableResults, budgets: Sequence[float] = BUDGETS) -> list[dict[str, str]]:
    """One line per budget: the fastest candidate within it, one that counts as faster than dense first, and the patterns that
    are no answer, by reason. The 95 % bound of the loss, held out where that part decides, says who is within a budget.

    Candidates with fewer than `LEAST_SEEDS` seeds are not ranked: if none has more, the fastest is named as measured, and no
    pattern is said to lose. Empty if nothing was timed on a GPU or may be picked. Columns without a cell are left out.
    """
    losses = [(loss_for_choice(point.candidate, group), against_dense(point), point) for point in group.speedup_points]
    known = [one for one in losses if one[0] is not None]
    if group.device == "cpu":  # references: no latency to choose by
        return []
    ranked = [one for one in known if may_rank(one[2].candidate)]
    lines = [
        _budget_line(group, budget, ranked or known, is_ranked=bool(ranked)) for budget in (budgets if known else ())
    ]
    if ranked and len(known) > len(ranked):
        aside = f"{counted(len(known) - len(ranked), 'candidate')} of fewer than {LEAST_SEEDS} seeds"
        lines = [line | {"not ranked": aside} for line in lines]
    headings = dict.fromkeys(name for line in lines for name, cell in line.items() if cell)
    return [{name: line.get(name, "") for name in headings} for line in lines]


def loss_for_choice(candidate: Candidate, group: ComparableResults) -> Loss | None:
    """What it lost by the metric for choices; None if it may not be used."""
    by_val = group.picked_by == "val"
    if group.offers_no_choice or (by_val and not candidate.can_be_chosen):
        return None
    return loss_of(candidate, held_out=by_val)


_Known = Sequence[tuple[Loss, str, Point]]


def _budget_line(group: ComparableResults, budget: float, known: _Known, *, is_ranked: bool) -> dict[str, str]:
    within = [(verdict, point) for loss, verdict, point in known if loss.high <= budget]
    possible = [point for loss, _, point in known if loss.low <= budget]
    aside = "" if is_ranked else f"; {FEW_SEEDS}"
    line = {"at most": group.metric.budget_text(f"{budget:g}")}
    if not within:
        fastest = max(possible, key=lambda point: point.x, default=None)
        cells = {} if fastest is None else _fastest_cells(fastest, group)
        return line | {"verdict": (NOTHING_WITHIN if fastest is None else CANNOT_TELL) + aside} | cells
    best: dict[str, tuple[str, Point]] = {}  # pattern -> the fastest that counts as faster than dense, else the fastest
    for verdict, point in sorted(within, key=lambda one: (one[0] == FASTER, one[1].x), reverse=True):
        best.setdefault(point.result.choice.prunings, (verdict, point))
    (verdict, first), *others = best.values()
    line |= {"verdict": verdict + aside} | _fastest_cells(first, group)
    if not is_ranked:
        return line
    low = (first.x_interval or (first.x,))[0]
    rivals = sorted((point for _, point in within if point is not first), key=lambda point: -point.x)
    overlapping = [_name(point) for point in rivals if (point.x_interval or (point.x,))[-1] >= low]
    more = f" and {len(overlapping) - MOST_OVERLAPPING} more" if len(overlapping) > MOST_OVERLAPPING else ""
    unclear = {point.result.choice.prunings for outcome, point in within if outcome == UNCLEAR}
    slow = [point.result.choice.prunings for outcome, point in others if outcome in (SLOWER, UNCLEAR)]
    beyond = [name for name in dict.fromkeys(point.result.choice.prunings for *_, point in known) if name not in best]
    may = {point.result.choice.prunings for point in possible}
    columns = {
        "its interval overlaps": [", ".join(overlapping[:MOST_OVERLAPPING]) + more] if overlapping else [],
        SLOWER: [name for name in slow if name not in unclear],
        UNCLEAR: [name for name in slow if name in unclear],
        MOSTLY_DENSE: [name for name, (outcome, _) in best.items() if outcome == MOSTLY_DENSE],
        "may lose more": [name for name in beyond if name in may],
        "lose more": [name for name in beyond if name not in may],
    }
    return line | {heading: ", ".join(names) for heading, names in columns.items()}


def _fastest_cells(point: Point, group: ComparableResults) -> dict[str, str]:
    """The candidate, its speedup over dense, its metric, and what it lost on both parts."""
    runs, metric = point.candidate.results, group.metric
    recovery = f", {point.result.choice.recovery}" if point.result.choice.recovery else ""
    lengths = ", own lengths" if group.speedup_axis is DATASET_SPEEDUP else ""
    low = [value for value in (result.speed.speedup_low_precision for result in runs) if value is not None]
    over_low = (
        f"{times(fmean(low))}, {runs[0].speed.dense_low_precision}" if any(map(low_baseline_is_faster, runs)) else ""
    )
    error = "" if point.error is None else f" ± {point.error:.2f}"
    cells = {
        "fastest": f"{_name(point)}{recovery}",
        f"speedup{lengths}": times(point.x) + _interval_text(point, "{:.2f}× – {:.2f}×"),
        "over dense in low precision": over_low if low else "",
        metric.words: f"{point.quality:.2f}{error}{metric.unit}",
    }
    for part, held_out in (("test", False), ("held out", True)):
        lost = [points_lost(result, held_out=held_out) for result in runs]
        known = [value for value in lost if value is not None]
        cells[f"lost, {part}"] = f"{fmean(known):.2f}" if known else ""
    return cells


def _name(point: Point) -> str:
    return f"{point.candidate.pattern} {describe_target(point.result)}"


DRAWS = 1000  # of the areas
NEAR_DENSE_POINTS = 1.0  # maximum percentage points below dense for "the same quality"
QUANTILES = (0.025, 0.975)
SIGMAS_OF_INTERVAL = 2 * SIGMAS  # from end to end


def pattern_ranking(group: ComparableResults) -> list[dict[str, str]]:
    """Per pattern, largest dominated area first: number of candidates, best speedup near dense quality, the area dominated by
    its own front (two-dimensional hypervolume) with interval, and wins, ties and losses.

    The front is picked by the held-out part; the area is on the reporting split, bounded by the dense baseline and one point
    below the worst quality here, the same for all patterns. Empty if only dense networks were measured.
    """
    series = by_pattern(group.points)
    if not series:
        return []
    dense, front = group.dense_point(), set(group.front())
    areas = {} if dense is None else _areas(group, series, dense[0])
    ranked = {
        name: areas[name] for name in areas if all(may_rank(one.candidate) for one in group.own_front(series[name]))
    }
    timed = by_pattern(group.speedup_points)
    order = sorted(series, key=lambda pattern: -areas[pattern][0] if pattern in areas else 1.0)
    allowed = group.metric.budget_text(f"{NEAR_DENSE_POINTS:g}")
    near = f"best speedup at ≤ {allowed}{', held out' if group.picked_by == 'val' else ''}"
    unit = group.metric.words if group.metric.less_is_better else "points"
    ranking = []
    for pattern in order:
        drawn = areas.get(pattern)
        ranking.append(
            {
                "pattern": pattern,
                "points": str(len(series[pattern])),
                "on the front": str(sum((point.x, point.quality) in front for point in series[pattern])),
                near: times(_best_near(group, timed.get(pattern, []))),
                f"dominated area, {group.axis.unit} · {unit} (95 %)": NONE if drawn is None else _area_text(drawn),
                "wins / ties / losses among patterns": "–"
                if drawn is None
                else (_duels(pattern, ranked) if pattern in ranked else FEW_SEEDS),
                "points faster / unclear / slower than dense": _against_dense(timed.get(pattern, [])),
            }
        )
    return ranking


def _areas(group: ComparableResults, series: dict[str, list[Point]], dense: float) -> dict[str, np.ndarray]:
    """Pattern -> [1 + DRAWS]: its dominated area as measured, then in each draw; only patterns with a point on their own front.

    A draw resamples each point's runs, and perturbs each quality by its standard error and each speed within its interval.
    Points are drawn independently although they share a test set, so intervals are rather too wide.
    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 6. The generator's seed is fixed.
    """
    sign = group.metric.sign
    corner = group.axis.cost(dense), min(sign * point.quality for point in group.points) - 1
    draw = np.random.default_rng(0)
    areas = {}
    for pattern, points in series.items():
        own = group.own_front(points)
        if own:
            drawn = [_draws(point, group, draw) for point in own]
            costs, qualities = (np.stack(side, axis=1) for side in zip(*drawn))
            areas[pattern] = compute_areas(group.axis.cost(costs), sign * qualities, corner)
    return areas


def _draws(point: Point, group: ComparableResults, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """([1 + DRAWS] on the axis, the same for the quality): means of the runs, then of each draw."""
    runs = [run for run in point.candidate.results if group.axis.value(run) is not None]
    x = np.array([group.axis.value(run) for run in runs])
    scale = group.metric.scale
    quality = np.array([scale * run.value_of(side_of(run)) for run in runs])
    errors = np.array([scale * (run.value_of(f"{side_of(run)}_standard_error") or 0) for run in runs])
    spreads = np.array([_log_spread(group.speedup_axis.interval(run)) for run in runs])
    chosen = draw.integers(len(runs), size=(DRAWS, len(runs)))
    noise = draw.normal(size=(2, *chosen.shape))
    drawn_x = (x[chosen] * np.exp(noise[0] * spreads[chosen])).mean(1)
    drawn_quality = (quality[chosen] + noise[1] * errors[chosen]).mean(1)
    return np.concatenate([[x.mean()], drawn_x]), np.concatenate([[quality.mean()], drawn_quality])


def _log_spread(interval: tuple[float, float] | None) -> float:
    """Standard deviation of the logarithm of a speedup or latency with this 95 % interval."""
    return 0.0 if interval is None else log(interval[1] / interval[0]) / SIGMAS_OF_INTERVAL


def _area_text(drawn: np.ndarray) -> str:
    low, high = np.quantile(drawn[1:], QUANTILES)
    return f"{drawn[0]:.3g} ({low:.3g} – {high:.3g})"


def _duels(pattern: str, areas: dict[str, np.ndarray]) -> str:
    """Wins, ties and losses against the other patterns: a tie if the interval of the difference of areas includes 0."""
    counts = [0, 0, 0]
    for other, theirs in areas.items():
        if other != pattern:
            low, high = np.quantile((areas[pattern] - theirs)[1:], QUANTILES)
            counts[0 if low > 0 else 2 if high < 0 else 1] += 1
    return " / ".join(map(str, counts))


def _against_dense(points: Sequence[Point]) -> str:
    if any(result.speed.latency_device == "cpu" for point in points for result in point.candidate.results):
        return "–"
    verdicts = [against_dense(point) for point in points]
    faster, slower = verdicts.count(FASTER), verdicts.count(SLOWER)
    return f"{faster} / {len(verdicts) - faster - slower} / {slower}"


def _best_near(group: ComparableResults, points: Sequence[Point]) -> float | None:
    """Best speedup among those that lost little against their own baseline (the continued dense network if there is one)."""
    losses = [(loss_for_choice(point.candidate, group), point.x) for point in points]
    return max((x for loss, x in losses if loss is not None and loss.high <= NEAR_DENSE_POINTS), default=None)
