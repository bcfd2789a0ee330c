"""The fastest within a budget is picked on held-out data, and every pattern that is no answer stands in a column of its own."""

import pytest

from sparsefront.results.comparable import split_comparable
from sparsefront.results.statistics import budget_table

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


def lines(results, *budgets):
    (group,) = split_comparable(results)
    return budget_table(group, budgets or [1.0])


def test_every_pattern_has_its_column(run):
    results = [
        run("n_m", 1.4, 0.4),
        run("tile_wise", 1.8, 1.5),
        run("element_wise", 0.7, 0.1),
        run("uniform", 1.02, 0.3),
        run("block_wise", 3.0, 7.0),
    ]
    one, two = lines(results, 1.0, 2.0)
    assert one == {
        "at most": "1 point lost",
        "verdict": "faster",
        "fastest": "n_m at sparsity 0.75, finetune",
        "speedup": "1.40× (1.35× – 1.45×)",
        "accuracy": "89.60 %",
        "lost, test": "0.40",
        "lost, held out": "0.40",
        "slower": "element_wise",
        "no clear difference": "uniform",
        "lose more": "tile_wise, block_wise",
    }
    assert (two["at most"], two["fastest"], two["lose more"]) == (
        "2 points lost",
        "tile_wise at sparsity 0.75, finetune",
        "block_wise",
    )


@pytest.mark.parametrize(("dense", "sparse", "budget"), [(0.98, 0.97, 1.0), (0.9512, 0.9312, 2.0), (0.9, 0.85, 5.0)])
def test_a_loss_equal_to_the_budget(run, dense, sparse, budget):
    """Of 1000 samples 980 and 970 differ by more than a point in binary digits."""
    assert 100 * (dense - sparse) > budget
    (line,) = lines([run("n_m", 2.0, 0, val_dense=dense, val_sparse=sparse)], budget)
    assert line["fastest"].startswith("n_m") and line["verdict"] == "faster"


SLOW, UNCLEAR = {"speedup_low": 0.94, "speedup_high": 0.96}, {"speedup_low": 0.7, "speedup_high": 1.2}
BUDGET = {"sparsity_target": 0.95, "allocation_parameters": {"speedup": 1.3, "latency_ms": None}}
NO_LOSS = {"val_sparse": None, "val_dense": None}
CASES = {
    "held out decides": (
        [("n_m", 2.0, 3.0, {"sparse": 0.9}), ("tile_wise", 1.5, 0.5, {"sparse": 0.86})],
        {"fastest": "tile_wise at sparsity 0.75, finetune", "lost, test": "4.00", "lost, held out": "0.50"},
    ),
    "a speedup was asked for": (
        [("mixed", 1.3, 0.4, BUDGET)],
        {"fastest": "mixed with allocation.speedup=1.3, finetune"},
    ),
    "a latency was asked for": (
        [("mixed", 1.3, 0.4, BUDGET | {"allocation_parameters": {"latency_ms": 2.5}})],
        {"fastest": "mixed with allocation.latency_ms=2.5, finetune"},
    ),
    "all slower": ([("n_m", 0.8, 0.0, {}), ("uniform", 0.9, 0.0, {})], {"verdict": "slower", "slower": "n_m"}),
    "none faster": ([("n_m", 0.8, 0.0, {}), ("uniform", 1.01, 0.0, {})], {"verdict": "no clear difference"}),
    "none within": ([("n_m", 2.0, 3.0, {})], {"verdict": "nothing loses so little", "fastest": None}),
    "no standard error": ([("n_m", 2.0, 3.0, NO_LOSS)], {"verdict": "cannot tell (95 %)", "fastest": "n_m"}),
    "sure before larger": (
        [("tile_wise", 1.2, 0.1, {"seed": 0}), ("tile_wise", 1.02, 0.1, {"seed": 1}), ("n_m", 1.08, 0.1, {})],
        {
            "verdict": "faster",
            "fastest": "n_m",
            "no clear difference": "tile_wise",
            "its interval overlaps": "tile_wise",
        },
    ),
    "surely slower": ([("tile_wise", 1.5, 0.0, {}), ("n_m", 0.95, 0.0, SLOW)], {"slower": "n_m"}),
    "one point unclear": (  # the point with the larger speedup may be the one that surely loses
        [("tile_wise", 1.5, 0.0, {}), ("n_m", 0.95, 0.0, SLOW), ("n_m", 0.94, 0.0, UNCLEAR | {"importance": "other"})],
        {"slower": None, "no clear difference": "n_m"},
    ),
    "timing noise": ([("n_m", 1.056, 0.1, {"sparse_flops_share": 0.5})], {"verdict": "no clear difference"}),
    "no sparse kernels": (
        [("n_m", 1.3, 0.1, {"sparse_flops_share": 0.49})],
        {"verdict": "mostly dense kernels", "mostly dense kernels": "n_m"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_line_of_a_budget(run, case):
    rows, expected = CASES[case]
    (line,) = lines([run(pattern, speedup, lost, **changes) for pattern, speedup, lost, changes in rows])
    for heading, cell in expected.items():
        shown = line.get(heading)
        assert shown is None if cell is None else shown.startswith(cell), heading


@pytest.mark.parametrize(
    "changes",
    [
        {"dataset_parameters": {"valid_fraction": 0.0}},
        dict.fromkeys(("speedup", "speedup_low", "speedup_high")),
        {"latency_device": "cpu", "gpu": None},
    ],
    ids=["nothing held out", "not timed", "on a CPU"],
)
def test_no_line_where_nothing_decides(run, changes):
    assert lines([run("n_m", 1.5, 0.1).with_values(changes)]) == []
