"""The held-out part picks, the reporting split reports, and "better" needs an interval without 0."""

import numpy as np
import pytest

from sparsefront.results.candidates import candidates_of, mean_and_deviation, why_not_picked
from sparsefront.results.statistics import candidate_table, compare_paired, verdicts, winners
from sparsefront.tasks.outcomes import Outcomes


@pytest.fixture
def run(make_result):
    """run(pattern, val, test) -> a result; other fields by name."""

    def make(pattern: str, val: float | None, test: float, **changes: object):
        name = f"{pattern} {sorted(changes.items())}"
        return make_result(**{"pattern": pattern, "val_sparse": val, "sparse": test, "run_id": name} | changes)

    return make


def outcomes(right: list[int] | np.ndarray, samples: str = "dev") -> Outcomes:
    return Outcomes("accuracy", np.asarray(right, dtype=np.uint8), None, samples)


def test_held_out_part_picks_the_winner(run):
    weak = run("n_m", 0.80, 0.99, recovery_parameters={"lr": 1e-2})
    good = run("n_m", 0.90, 0.70, recovery_parameters={"lr": 1e-3})
    other = run("tile_wise", 0.85, 0.95)
    first, second = winners(candidates_of([weak, good, other]))[0.75]
    assert first.results == (good,) and second.results == (other,)
    told = {(line["pattern"], line["settings"]): line for line in candidate_table(candidates_of([weak, good, other]))}
    picked = {line["picked by held out"]: line["test"] for line in told.values()}
    assert picked == {"winner": "70.00 %", "recipe": "95.00 %", "": "99.00 %"}
    assert ("n_m 128", "recovery.lr=0.001") in told


def test_unmet_sparsity_wins_nothing(run):
    """A network whose layers all stayed dense was the winner at 0.75; a mixed search won at its ceiling."""
    dense = run("block_wise", 0.99, 0.99, sparsity_achieved=0.0)
    searched = run("mixed", 0.98, 0.98, sparsity_achieved=0.42, allocation_parameters={"speedup": 1.5})
    ceiling = run("mixed", 0.97, 0.97, sparsity_achieved=0.75, allocation_parameters={"latency_ms": 2.0}, granularity=1)
    near = [run("n_m", 0.9, 0.9, sparsity_achieved=0.77), run("tile_wise", 0.8, 0.8, sparsity_achieved=0.73)]
    old = run("vector_wise", 0.7, 0.7, sparsity_achieved=None)
    found = candidates_of([dense, searched, ceiling, *near, old])
    assert [one.pattern for one in winners(found)[0.75]] == ["n_m 128", "tile_wise 128", "vector_wise 128"]
    told = {(line["pattern"], line["picked by held out"]) for line in candidate_table(found)}
    apart = {("block_wise 128", "0.00 achieved"), ("mixed 128", "0.42 achieved"), ("mixed 1", "has a budget")}
    assert apart < told and ("n_m 128", "winner") in told and len(told) == 6
    assert all("picked before" not in line for line in verdicts(found[:3], lambda result: None))


def test_seeds_give_mean_and_deviation(run):
    again = {"recovery_seed": 1, "seed": 0}
    results = [run("n_m", 0.9, 0.8, seed=seed) for seed in (0, 1)] + [run("n_m", 0.9, 0.9, **again)]
    (candidate,) = candidates_of(results)
    assert candidate.seeds == ((0, 0), (0, 1), (1, 1))
    (line,) = candidate_table(candidates_of(results))
    assert line["runs"] == "3" and line["test"] == "83.33 ± 5.77 %" and line["held out"] == "90.00 ± 0.00 %"
    assert mean_and_deviation([0.5]) == (0.5, None), "one run has no deviation"


def test_repeated_seed_counts_once(run):
    old = run("n_m", 0.9, 0.8, seed=0, time="2026-01-01T00:00:00+00:00")
    new = run("n_m", 0.9, 0.7, seed=0, time="2026-01-02T00:00:00+00:00")
    for results in ([old, new], [new, old]):
        assert candidates_of(results)[0].results == (new,)


@pytest.mark.parametrize(
    ("val", "changes", "why"),
    [
        (None, {"dataset_parameters": {"valid_fraction": 0.0}}, "hold nothing out (dataset.valid_fraction=0)"),
        (0.9, {"val_seen": True}, "are of a checkpoint that may have been trained on the held-out part (val_seen)"),
    ],
)
def test_nothing_picked_without_held_out_data(run, val, changes, why):
    results = [run(name, val, 0.9, **changes) for name in ("n_m", "tile_wise")]
    candidates = candidates_of(results)
    assert winners(candidates) == {} and [line["picked by held out"] for line in candidate_table(candidates)] == [
        "",
        "",
    ]
    assert verdicts(candidates, lambda result: None) == [], "older versions have no part in this"
    assert why_not_picked(results) == [f"2 of 2 results {why}: none of them is picked"]


@pytest.mark.usefixtures("one_seed_ranks")
@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ([1] * 90 + [0] * 10, [1] * 60 + [0] * 40, "n_m 128 is better (+30.00 points"),
        ([1] * 60 + [0] * 40, [1] * 90 + [0] * 10, "tile_wise 128 is better (-30.00 points"),
        ([1, 0] * 50, [0, 1] * 50, "no clear difference (+0.00 points"),
    ],
)
def test_intervals_decide(run, ours, theirs, said):
    kept = {"n_m": outcomes(ours), "tile_wise": outcomes(theirs)}
    results = [run("n_m", 0.9, 0.9), run("tile_wise", 0.8, 0.8)]
    (line,) = verdicts(candidates_of(results), lambda result: {"sparse": kept[result.choice.pattern]})
    assert said in line and " points on test, 95 % " in line


@pytest.mark.parametrize(
    ("theirs", "why"),
    [(None, "outcomes per sample (outcomes.npz"), (outcomes([0] * 9, samples="other"), "evaluated on other samples")],
)
def test_better_is_not_claimed(run, theirs, why):
    kept = {"n_m": outcomes([1] * 9), "tile_wise": theirs}
    results = [run("n_m", 0.9, 0.9), run("tile_wise", 0.8, 0.8)]
    (line,) = verdicts(candidates_of(results), lambda result: {"sparse": kept[result.choice.pattern]})
    assert "not claimed" in line and why in line


@pytest.mark.parametrize("same_seeds", [True, False])
@pytest.mark.parametrize(("seeds", "seed_sd"), [(1, 0.0), (3, 0.0), (3, 1.0), (5, 0.3), (5, 1.0)])
def test_intervals_cover_the_truth(seeds, seed_sd, same_seeds):
    """Of 400 pairs of choices, whose seeds differ by up to five standard errors of 300 samples, nearly 95 % are covered."""
    generator, covered = np.random.RandomState(2), 0

    def drawn(questions, own):
        noise = generator.normal(0, 3, (seeds, 300))
        values = own + generator.normal(0, seed_sd, (seeds, 1)) + questions + noise
        return [Outcomes("accuracy", one, None, "dev") for one in values]

    for _ in range(400):
        shared = generator.normal(0, 3, 300)
        ours, theirs = (drawn(shared + generator.normal(0, 2, 300), own) for own in (0.5, 0.0))
        found = compare_paired(ours, theirs, same_seeds=same_seeds)
        covered += found.low <= 0.5 <= found.high
    # with three seeds of large spread it covers 92.6 % (of 1,200 pairs); 400 pairs have a standard error of 1.3 %
    assert covered >= 0.905 * 400


def test_variance_of_pseudo_values():
    generator = np.random.RandomState(0)
    labels = generator.randint(2, size=800)
    predicted = np.where(generator.rand(800) < 0.8, labels, 1 - labels)
    for metric, tolerance in (("matthews_correlation", 0.15), ("f1", 0.15)):
        one = Outcomes(metric, predicted, labels, "dev")
        draws = [one.metric_over(generator.randint(800, size=800)) for _ in range(200)]
        values = one.pseudo_values()
        assert values.mean() == pytest.approx(one.metric_over(np.arange(800)), abs=2e-3)
        assert values.std() / 800**0.5 == pytest.approx(np.std(draws), rel=tolerance)
    perplexity = Outcomes("perplexity", generator.normal(3, 0.5, 800), None, "dev")
    assert perplexity.pseudo_values().std() / 800**0.5 == pytest.approx(np.exp(3) * 0.5 / 800**0.5, rel=0.1)
