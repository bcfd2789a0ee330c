"""Nothing is ranked with fewer than three seeds, no interval is told of fewer than five repeats, and what is missing is said."""

import re

import numpy as np
import pytest

from sparsefront.results.comparable import DATASET_SPEEDUP, split_comparable
from sparsefront.results.latency_table import wins_text
from sparsefront.results.page.comparison import headline
from sparsefront.results.statistics import (
    FEW_SEEDS,
    budget_sentences,
    needed_in_words,
    paired_difference,
    pattern_ranking,
    verdicts,
)
from sparsefront.results.tables import run_table
from sparsefront.results.terminal import table_console
from sparsefront.tasks.outcomes import Outcomes

DUELS = "wins / ties / losses among patterns"


@pytest.fixture
def runs(make_result):
    """runs(pattern, seeds, speedup) -> results that share all but the seed."""

    def make(pattern, seeds, speedup=1.5, **changes):
        held = {"pattern": pattern, "speedup": speedup, "speedup_low": speedup - 0.01, "speedup_high": speedup + 0.01}
        held |= {"val_dense": 0.9, "val_sparse": 0.899, "gpu": "H200", "latency_device": "cuda", "repeats": 5}
        name = f"{pattern}-{speedup}-{changes.get('precision')}"
        return [make_result(**held | changes, seed=seed, run_id=f"{name}-{seed}") for seed in range(seeds)]

    return make


def group_of(results, **more):
    (group,) = split_comparable(results, **more)
    return group


def outcomes(right) -> Outcomes:
    return Outcomes("accuracy", np.asarray(right, dtype=np.uint8), None, "same")


def text_of(result) -> str:
    console = table_console(run_table(result))
    with console.capture() as capture:
        console.print(run_table(result))
    return capture.get()


def test_with_three_seeds_it_ranks_those_that_have_them(runs):
    group = group_of([*runs("n_m", 3), *runs("uniform", 3, 0.8), *runs("block_wise", 1, 2.0)])
    (told,) = budget_sentences(group, [1.0])
    assert "the fastest is n_m" in told and "uniform loses to dense" in told
    assert told.endswith("1 candidate not ranked, of fewer than 3 seeds")
    assert headline(group).startswith("Within 1 point of dense the fastest is n_m")
    ranked = {line["pattern"]: line[DUELS] for line in pattern_ranking(group)}
    assert ranked["block_wise"] == FEW_SEEDS and ranked["n_m"] == "1 / 0 / 0"


@pytest.mark.parametrize(("seeds", "better"), [((1, 1), False), ((3, 2), False), ((3, 3), True)])
def test_better_is_said_of_three_seeds_each(runs, seeds, better):
    kept = {"n_m": outcomes([1] * 90 + [0] * 10), "uniform": outcomes([1] * 60 + [0] * 40)}
    results = [*runs("n_m", seeds[0], val_sparse=0.95), *runs("uniform", seeds[1])]
    (line,) = verdicts(group_of(results).candidates, lambda result: {"sparse": kept[result.choice.pattern]})
    assert ("is better" in line) is better and (FEW_SEEDS in line) is not better


def test_what_it_would_take_to_tell_two_apart():
    """Five samples in 1,000 differ the right way, two the other: 0.3 points, with a standard error of 0.26 by samples."""
    theirs = np.tile([1.0, 0.0], 500)
    ours = theirs.copy()
    ours[1:10:2], ours[[0, 2]] = 1, 0
    one = paired_difference([outcomes(ours)], [outcomes(theirs)], same_seeds=True)
    assert not one.clear and one.sample_error == pytest.approx(0.0026, rel=0.1)
    words = needed_in_words(one)
    samples = int(re.search(r"about (\d+) samples with at least 3 seeds", words)[1])
    assert samples == pytest.approx(1000 * (2.8 * one.sample_error / 0.003) ** 2, rel=0.01), "with a power of 80 %"
    more = [outcomes(np.tile(side, samples // 1000 + 2)) for side in (ours, theirs)]
    assert paired_difference([more[0]], [more[1]], same_seeds=True).clear, "with so many samples it is told"


def test_seeds_that_differ_are_what_is_missing():
    spread = [outcomes([1] * right + [0] * (10_000 - right)) for right in (8000, 8200, 8700)]
    found = paired_difference(spread, [outcomes([1] * 8000 + [0] * 2000)] * 3, same_seeds=False)
    assert not found.clear and found.run_error > found.sample_error
    assert re.search(r"would take about \d+ seeds", needed_in_words(found))
    equal = paired_difference(spread, spread, same_seeds=True)
    assert needed_in_words(equal).startswith("no 1,000,000 samples")


def test_fewer_than_five_repeats_have_no_interval_and_count_as_nothing(runs):
    few, enough = (runs("n_m", 3, repeats=repeats) for repeats in (3, 5))
    assert "n=3: no interval" in text_of(few[0]) and "its interval" not in text_of(few[0])
    assert "its interval" in text_of(enough[0]) and "faster" in text_of(enough[0])
    (told,) = budget_sentences(group_of(few), [1.0])
    assert "nothing counts as faster than dense" in told and "1.50× (n=3) over dense" in told
    assert group_of(few).points()[0].x_interval is None
    assert "1.49× – 1.51×" in budget_sentences(group_of(enough), [1.0])[0]
    assert headline(group_of(few)) == "Nothing within 1 point of dense counts as faster than dense."
    curve = [{"batch_size": 1, "sequence_length": None, "speedup": 2.0, "speedup_low": 1.9, "speedup_high": 2.1}]
    assert wins_text(few[0].with_values({"curve": curve})) == "not decided, n=3: no interval"
    assert wins_text(enough[0].with_values({"curve": curve})) == "at batch 1, 64"


def test_own_lengths_stand_beside_the_fixed_one(runs):
    of_dataset = {"latency_dense_dataset_ms": 4.0, "latency_sparse_dataset_ms": 3.2, "speedup_dataset": 1.25}
    of_dataset |= {"speedup_dataset_low": 1.2, "speedup_dataset_high": 1.3}
    lengths = [{"batch_size": 8, "sequence_length": length, "batches": count} for length, count in ((48, 3), (16, 2))]
    results = runs("n_m", 3, **of_dataset, dataset_lengths=lengths)
    text = text_of(results[0])
    assert "dense 4.00 ms, sparse 3.20 ms: 1.25× (1.20× – 1.30×), faster" in text
    assert "16 tokens in 2 batches, 48 in 3" in text and "1.50×" in text
    (told,) = budget_sentences(group_of(results, axis=DATASET_SPEEDUP), [1.0])
    assert "1.25× (1.20× – 1.30×) over dense over the data set's own batches, each of its own length" in told
    assert "1.50×" in budget_sentences(group_of(results), [1.0])[0]
