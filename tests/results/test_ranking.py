"""Patterns are ranked by what their fronts dominate, and a win needs an interval."""

import pytest

from sparsefront.results.comparable import split_comparable
from sparsefront.results.statistics import pattern_ranking

AREA, DUELS = "dominated area, × · points (95 %)", "wins / ties / losses among patterns"
FASTER = "points faster / unclear / slower than dense"


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


def test_the_area_is_that_of_the_front_over_the_common_corner(run):
    found = ranked([run("n_m", 2.0, 0.95), run("uniform", 1.5, 0.91), run("channel", 0.5, 0.97)])
    # From dense at 1x, and one point below the worst quality, 90 %: 1 x 5, 0.5 x 1; slower than dense dominates nothing.
    assert list(found) == ["n_m", "uniform", "channel"]
    assert [float(line[AREA].split()[0]) for line in found.values()] == pytest.approx([5.0, 0.5, 0.0])


@pytest.mark.usefixtures("one_seed_ranks")
def test_a_clear_difference_is_a_win_and_the_rest_ties(run):
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


def test_too_few_sparse_flops_are_no_point_faster_than_dense(run):
    found = ranked([run("n_m", 1.5, 0.9, seed=seed, sparse_flops_share=share) for seed, share in enumerate((0.9, 0.2))])
    assert found["n_m"][FASTER] == "0 / 1 / 0", "the smallest share of its runs"


def test_the_held_out_part_picks_what_the_area_is_of(run):
    lucky = run("n_m", 2.0, 0.99, val_sparse=0.5)
    picked = run("n_m", 2.0, 0.91, val_sparse=0.9, importance="other")
    corner = run("uniform", 0.5, 0.90)
    assert float(ranked([lucky, picked, corner])["n_m"][AREA].split()[0]) == pytest.approx(2.0)


def test_nothing_is_ranked_where_nothing_may_be_picked(run):
    found = ranked([run("n_m", 2.0, 0.9, dataset_parameters={"valid_fraction": 0.0})])
    assert found["n_m"][AREA] == found["n_m"][DUELS] == "–"
