"""A sentence names the fastest within a budget, picked on held-out data, and every pattern that loses."""

import pytest

from sparsefront.results.comparable import split_comparable
from sparsefront.results.statistics import budget_sentences

pytestmark = pytest.mark.usefixtures("one_seed_ranks")


@pytest.fixture
def run(make_result):
    """run(pattern, speedup, lost, lost on test) -> a result."""

    def make(pattern: str, speedup: float, lost: float, on_test: float | None = None, **changes: object):
        held = {"dense": 0.9, "val_dense": 0.8, "val_sparse": 0.8 - lost / 100}
        held |= {"sparse": 0.9 - (lost if on_test is None else on_test) / 100, "granularity": None}
        held |= {"speedup": speedup, "speedup_low": speedup - 0.05, "speedup_high": speedup + 0.05}
        return make_result(**{"pattern": pattern, "latency_device": "cuda", "gpu": "H200"} | held | changes)

    return make


def sentences(results, *budgets):
    (group,) = split_comparable(results)
    return budget_sentences(group, budgets)


def test_the_fastest_within_the_budget_is_named_with_those_that_lose(run):
    results = [
        run("n_m", 1.4, 0.4),
        run("tile_wise", 1.8, 1.5),
        run("element_wise", 0.7, 0.1),
        run("uniform", 1.02, 0.3),
        run("block_wise", 3.0, 7.0),
    ]
    one, two = sentences(results, 1.0, 2.0)
    assert one == (
        "at ≤ 1 point lost the fastest is n_m at sparsity 0.75, finetune: 1.40× (1.35× – 1.45×) over dense, "
        "accuracy 89.60 %, 0.40 points lost on the reporting split, 0.40 lost held out; element_wise loses to dense; "
        "uniform is not surely faster than dense; tile_wise, block_wise always lose more"
    )
    assert two.startswith("at ≤ 2 points lost the fastest is tile_wise") and two.endswith(
        "block_wise always loses more"
    )


@pytest.mark.parametrize(("dense", "sparse", "budget"), [(0.98, 0.97, 1.0), (0.9512, 0.9312, 2.0), (0.9, 0.85, 5.0)])
def test_who_lost_as_much_as_the_budget_is_within_it(run, dense, sparse, budget):
    """Of 1000 samples 980 and 970 differ by more than a point in binary digits."""
    assert 100 * (dense - sparse) > budget
    (told,) = sentences([run("n_m", 2.0, 0, val_dense=dense, val_sparse=sparse)], budget)
    assert "the fastest is n_m" in told


def test_the_held_out_part_decides_who_is_within_the_budget(run):
    lucky, honest = run("n_m", 2.0, 3.0, on_test=0.0), run("tile_wise", 1.5, 0.5, on_test=4.0)
    (told,) = sentences([lucky, honest], 1.0)
    assert "the fastest is tile_wise" in told and "4.00 points lost on the reporting split, 0.50 lost held out" in told


def test_a_budget_of_the_allocation_is_told_in_place_of_the_ceiling_on_its_sparsity(run):
    searched = run("mixed", 1.3, 0.4, sparsity_target=0.95, allocation_parameters={"speedup": 1.3, "latency_ms": None})
    (told,) = sentences([searched], 1.0)
    assert "the fastest is mixed with allocation.speedup=1.3, finetune: 1.30×" in told and "0.95" not in told
    (told,) = sentences([searched.with_values({"allocation_parameters": {"latency_ms": 2.5}})], 1.0)
    assert "the fastest is mixed with allocation.latency_ms=2.5, finetune: 1.30×" in told


def test_where_nothing_is_faster_it_says_so(run):
    (told,) = sentences([run("n_m", 0.8, 0.0), run("uniform", 0.9, 0.0)], 1.0)
    assert "everything loses to dense; the fastest is uniform" in told and "n_m loses to dense" in told
    (told,) = sentences([run("n_m", 0.8, 0.0), run("uniform", 1.01, 0.0)], 1.0)
    assert "nothing counts as faster than dense; the fastest is uniform" in told
    (told,) = sentences([run("n_m", 2.0, 3.0)], 1.0)
    assert told == "at ≤ 1 point lost nothing that was measured loses so little, held out"
    (told,) = sentences([run("n_m", 2.0, 3.0, val_sparse=None, val_dense=None)], 1.0)
    assert "cannot tell (95 %): the fastest that may be is n_m" in told, "older results have no standard error"


def test_what_is_surely_faster_comes_before_a_larger_mean_that_is_not(run):
    wide = [run("tile_wise", 1.2, 0.1, seed=0), run("tile_wise", 1.02, 0.1, seed=1)]
    sure = run("n_m", 1.08, 0.1)
    (told,) = sentences([*wide, sure], 1.0)
    assert "the fastest that counts as faster than dense is n_m" in told
    assert "tile_wise is not surely faster than dense" in told


def test_a_pattern_loses_only_where_none_of_its_points_is_unclear(run):
    """Of several seeds the interval is wide: the point with the larger speedup may be the one that surely loses."""
    slower = run("n_m", 0.95, 0.0, speedup_low=0.94, speedup_high=0.96)
    unclear = run("n_m", 0.94, 0.0, importance="other", speedup_low=0.7, speedup_high=1.2)
    (told,) = sentences([run("tile_wise", 1.5, 0.0), slower], 1.0)
    assert told.endswith("; n_m loses to dense")
    (told,) = sentences([run("tile_wise", 1.5, 0.0), slower, unclear], 1.0)
    assert told.endswith("; n_m is not surely faster than dense")


@pytest.mark.parametrize(("speedup", "share"), [(1.056, 0.5), (1.3, 0.0), (1.3, 0.49)])
def test_noise_and_networks_without_sparse_kernels_do_not_count_as_faster(run, speedup, share):
    (told,) = sentences([run("n_m", speedup, 0.1, sparse_flops_share=share)], 1.0)
    assert "nothing counts as faster than dense; the fastest is n_m" in told
    assert told.endswith("; n_m runs mostly dense kernels") == (share < 0.5)


def test_nothing_is_said_where_nothing_may_be_picked_or_was_timed(run):
    assert sentences([run("n_m", 1.5, 0.1, dataset_parameters={"valid_fraction": 0.0})], 1.0) == []
    untimed = run("n_m", 1.5, 0.1).with_values(dict.fromkeys(("speedup", "speedup_low", "speedup_high")))
    assert sentences([untimed], 1.0) == []


def test_a_cpu_decides_nothing(run):
    assert sentences([run("n_m", 1.5, 0.1, latency_device="cpu", gpu=None)], 1.0) == []
