"""Patterns are ranked by what their fronts dominate; a win needs an interval, three seeds and five repeats."""

import re

import numpy as np
import pytest

from sparsefront.results.comparable import split_comparable
from sparsefront.results.latency_table import wins_text
from sparsefront.results.page.comparison import headline
from sparsefront.results.statistics import (
    FEW_SEEDS,
    budget_table,
    compare_paired,
    describe_needs,
    pattern_ranking,
    verdicts,
)
from sparsefront.results.tables import run_table
from sparsefront.results.terminal import table_console
from sparsefront.tasks.outcomes import Outcomes

AREA, DUELS = "dominated area, × · points (95 %)", "wins / ties / losses among patterns"


@pytest.fixture
def run(make_result):
    def make(pattern: str, speedup: float, quality: float, **changes: object):
        held = {"speedup": speedup, "speedup_low": 0.98 * speedup, "speedup_high": 1.02 * speedup, "granularity": None}
        held |= {"sparse": quality, "val_sparse": quality, "sparse_standard_error": 0.002}
        return make_result(**{"pattern": pattern, "val_dense": 0.98, "latency_device": "cuda"} | held | changes)

    return make


def ranked(results) -> dict[str, dict[str, str]]:
    (group,) = split_comparable(results)
    return {line["pattern"]: line for line in pattern_ranking(group)}


def test_area_over_the_common_corner(run):
    found = ranked([run("n_m", 2.0, 0.95), run("uniform", 1.5, 0.91), run("channel", 0.5, 0.97)])
    # From dense at 1x, and one point below the worst quality, 90 %: 1 x 5, 0.5 x 1; slower than dense dominates nothing.
    assert list(found) == ["n_m", "uniform", "channel"]
    assert [float(line[AREA].split()[0]) for line in found.values()] == pytest.approx([5.0, 0.5, 0.0])


@pytest.mark.usefixtures("one_seed_ranks")
def test_clear_differences_win(run):
    found = ranked([run("n_m", 2.0, 0.95), run("tile_wise", 2.01, 0.95), run("uniform", 1.2, 0.90)])
    assert {pattern: line[DUELS] for pattern, line in found.items()} == {
        "tile_wise": "1 / 1 / 0",
        "n_m": "1 / 1 / 0",
        "uniform": "0 / 0 / 2",
    }


def test_seeds_widen_the_interval(run):
    def width(spread: float) -> float:
        runs = [run("n_m", 2.0, 0.9 + turn * spread, seed=turn) for turn in (-1, 0, 1)]
        low, _, high = ranked([*runs, run("uniform", 1.1, 0.85)])["n_m"][AREA].partition("(")[2].rstrip(")").split()
        return float(high) - float(low)

    assert width(0.02) > 2 * width(0.0) > 0


def test_held_out_part_picks_the_area(run):
    lucky = run("n_m", 2.0, 0.99, val_sparse=0.5)
    picked = run("n_m", 2.0, 0.91, val_sparse=0.9, importance="other")
    corner = run("uniform", 0.5, 0.90)
    assert float(ranked([lucky, picked, corner])["n_m"][AREA].split()[0]) == pytest.approx(2.0)


def test_nothing_picked_ranks_nothing(run):
    found = ranked([run("n_m", 2.0, 0.9, dataset_parameters={"valid_fraction": 0.0})])
    assert found["n_m"][AREA] == found["n_m"][DUELS] == "–"


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


def test_three_seeds_are_ranked(runs):
    group = group_of([*runs("n_m", 3), *runs("uniform", 3, 0.8), *runs("block_wise", 1, 2.0)])
    (line,) = budget_table(group, [1.0])
    assert line["fastest"].startswith("n_m") and line["slower"] == "uniform"
    assert line["not ranked"] == "1 candidate of fewer than 3 seeds"
    assert headline(group).startswith("Within 1 point of dense the fastest is n_m")
    ranked = {line["pattern"]: line[DUELS] for line in pattern_ranking(group)}
    assert ranked["block_wise"] == FEW_SEEDS and ranked["n_m"] == "1 / 0 / 0"


@pytest.mark.parametrize(("seeds", "better"), [((1, 1), False), ((3, 2), False), ((3, 3), True)])
def test_three_seeds_decide(runs, seeds, better):
    kept = {"n_m": outcomes([1] * 90 + [0] * 10), "uniform": outcomes([1] * 60 + [0] * 40)}
    results = [*runs("n_m", seeds[0], val_sparse=0.95), *runs("uniform", seeds[1])]
    (line,) = verdicts(group_of(results).candidates, lambda result: {"sparse": kept[result.choice.pattern]})
    assert ("is better" in line) is better and (FEW_SEEDS in line) is not better


def test_samples_to_tell_two_apart():
    """Five samples in 1,000 differ the right way, two the other: 0.3 points, with a standard error of 0.26 by samples."""
    theirs = np.tile([1.0, 0.0], 500)
    ours = theirs.copy()
    ours[1:10:2], ours[[0, 2]] = 1, 0
    one = compare_paired([outcomes(ours)], [outcomes(theirs)], same_seeds=True)
    assert not one.clear and one.sample_error == pytest.approx(0.0026, rel=0.1)
    words = describe_needs(one)
    samples = int(re.search(r"about (\d+) samples with at least 3 seeds", words)[1])
    assert samples == pytest.approx(1000 * (2.8 * one.sample_error / 0.003) ** 2, rel=0.01), "with a power of 80 %"
    more = [outcomes(np.tile(side, samples // 1000 + 2)) for side in (ours, theirs)]
    assert compare_paired([more[0]], [more[1]], same_seeds=True).clear, "with so many samples it is told"


def test_differing_seeds_are_missing():
    spread = [outcomes([1] * right + [0] * (10_000 - right)) for right in (8000, 8200, 8700)]
    found = compare_paired(spread, [outcomes([1] * 8000 + [0] * 2000)] * 3, same_seeds=False)
    assert not found.clear and found.run_error > found.sample_error
    assert re.search(r"would take about \d+ seeds", describe_needs(found))
    equal = compare_paired(spread, spread, same_seeds=True)
    assert describe_needs(equal).startswith("no 1,000,000 samples")


def test_few_repeats_have_no_interval(runs):
    few, enough = (runs("n_m", 3, repeats=repeats) for repeats in (3, 5))
    assert "n=3: no interval" in text_of(few[0]) and "its interval" not in text_of(few[0])
    assert "its interval" in text_of(enough[0]) and "faster" in text_of(enough[0])
    (line,) = budget_table(group_of(few), [1.0])
    assert line["verdict"] == "no clear difference" and line["speedup"] == "1.50× (n=3)"
    assert group_of(few).points[0].x_interval is None
    assert "1.49× – 1.51×" in budget_table(group_of(enough), [1.0])[0]["speedup"]
    assert headline(group_of(few)) == "Nothing within 1 point of dense counts as faster than dense."
    curve = [{"batch_size": 1, "sequence_length": None, "speedup": 2.0, "speedup_low": 1.9, "speedup_high": 2.1}]
    assert wins_text(few[0].with_values({"curve": curve})) == "not decided, n=3: no interval"
    assert wins_text(enough[0].with_values({"curve": curve})) == "at batch 1, 64"
