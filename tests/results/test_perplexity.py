"""Less of a perplexity is better wherever results are compared, and it is shown as it is, not in percent."""

import pytest

from sparsefront.results.comparable import split_comparable
from sparsefront.results.page.comparison import headline
from sparsefront.results.statistics import budget_table, pattern_ranking
from sparsefront.search.space import objective

FIELDS = {"metric_name": "perplexity", "dense": 28.0, "val_dense": 27.0, "masked": None, "evaluated_samples": 300}
FIELDS |= {"latency_device": "cuda", "gpu": "H200"}


@pytest.fixture
def run(make_result):
    """run(pattern, val, test, speedup) -> a result whose qualities are perplexities."""

    def make(pattern: str, val: float, test: float, speedup: float = 1.5, **changes: object):
        own = {"speedup": speedup, "speedup_low": speedup - 0.01, "speedup_high": speedup + 0.01, "pattern": pattern}
        own |= {"val_sparse": val, "sparse": test, "run_id": f"{pattern} {test} {speedup}"}
        return make_result(**FIELDS | own | changes)

    return make


@pytest.fixture
def several(run):
    return [run("n_m", 60.0, 64.0, 1.6), run("tile_wise", 28.0, 29.0, 1.3), run("uniform", 27.1, 28.1, 1.1)]


@pytest.mark.usefixtures("one_seed_ranks")
def test_fronts_areas_and_budgets(several, run):
    beaten = run("depth", 40.0, 42.0, 1.2)
    (group,) = split_comparable([*several, beaten])
    assert group.front() == [(1.6, 64.0), (1.3, 29.0), (1.1, 28.1), (1.0, 28.0)]
    assert [line["pattern"] for line in pattern_ranking(group)][0] == "tile_wise"
    headings = list(pattern_ranking(group)[0])
    assert headings[3:5] == ["best speedup at ≤ 1 % more perplexity, held out", "dominated area, × · perplexity (95 %)"]
    one, *_, last = budget_table(group)
    assert one["at most"] == "0.5 % more perplexity" and one["fastest"].startswith("uniform")
    assert (one["perplexity"], one["lost, test"], one["lost, held out"]) == ("28.10", "0.36", "0.37")
    assert last["at most"] == "5 % more perplexity" and last["fastest"].startswith("tile_wise")
    assert headline(group).startswith("Within 1 % of dense's perplexity the fastest is uniform")
    assert group.metric.label == "perplexity (less is better)"


def test_what_a_search_minimizes():
    assert objective("val_sparse").direction == "maximize"
    for name in ("val_sparse", "sparse", "val_masked", "dense_continued"):
        assert objective(name, "perplexity").direction == "minimize"
    assert objective("speedup", "perplexity").direction == "maximize"
    assert objective("maximize:val_sparse", "perplexity").direction == "maximize"


def test_search_asks_which_end_is_better():
    from omegaconf import OmegaConf

    from sparsefront.search.sweep import _metric, _objectives

    def direction(target: str, **settings: object) -> str:
        config = OmegaConf.create({"dataset": {"_target_": f"sparsefront.data.{target}", **settings}})
        return _objectives(["val_sparse"], _metric(config))[0].direction

    assert direction("wikitext2.Wikitext2") == "minimize"
    assert direction("digits.Digits") == direction("wikitext2.Wikitext2", stride=-1) == "maximize"
