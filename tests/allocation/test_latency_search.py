"""latency_search: predictions are corrected by measurements, what is out of reach is named, and one pattern is latency_aware."""

import re
from dataclasses import replace

import pytest

from sparsefront.allocation.assignment import ROW_MAJOR, Assignment, ChoiceTable, Item, Option
from sparsefront.allocation.base import Measured
from sparsefront.allocation.latency_aware import LatencyAware
from sparsefront.allocation.latency_search import LatencySearch
from sparsefront.errors import InvalidSetting
from sparsefront.patterns.dense import Dense
from sparsefront.patterns.mixed import Mixed
from sparsefront.patterns.n_m import NM

TIMES = {
    "fc1": {0: 40.0, 0.5: 30.0, 0.75: 20.0, 0.875: 12.0},
    "fc2": {0: 40.0, 0.5: 44.0, 0.75: 24.0, 0.875: 12.0},
    "fc3": {0: 20.0, 0.5: 15.0, 0.75: 10.0, 0.875: 8.1},
}
WORTH = {"fc1": 1.0, "fc2": 2.0, "fc3": 7.0}


def lost(layer: str, sparsity: float) -> float:
    return WORTH[layer] * sparsity**2


def table(rest_us: float = 0.0) -> ChoiceTable:
    items = [
        Item(
            (layer,),
            None,
            [Option(0 if s else None, float(s), lost(layer, s), {ROW_MAJOR: t}) for s, t in levels.items()],
        )
        for layer, levels in TIMES.items()
    ]
    return ChoiceTable(["n_m"], items, {}, rest_us, rest_us + 100.0)


class Timed:
    """A network that takes its products and `rest_us` beside; the dense one takes `dense_us`, or what the table says."""

    def __init__(self, known: ChoiceTable, rest_us: float, dense_us: float | None = None):
        self.table, self.rest_us, self.measured = known, rest_us, []
        self.dense_us = known.dense_us if dense_us is None else dense_us

    def network_us(self, assignment: Assignment) -> float:
        return self.table.time_us(assignment) - self.table.rest_us + self.rest_us

    def measure(self, assignment: Assignment) -> Measured:
        self.measured.append(assignment)
        return Measured(self.network_us(assignment), self.dense_us)

    def loss(self, assignment: Assignment, batches: int) -> float:
        return self.table.error(assignment)


def sparsities(found, known: ChoiceTable) -> dict[str, float]:
    pairs = zip(known.items, found.assignment.options, strict=True)
    return {item.layers[0]: item.options[option].sparsity for item, option in pairs}


@pytest.mark.parametrize("speedup", [1.05, 1.2, 1.5, 1.7, 2.0, 2.5, 3.0])
def test_one_candidate_is_latency_aware(table_of, speedup):
    known = table()
    search = LatencySearch(speedup=speedup, corrections=0, generations=0)
    found = search.assign(known, Timed(known, 0.0))
    of_a_table = LatencyAware(table_of(TIMES), speedup)
    assert sparsities(found, known) == of_a_table.layer_sparsities(dict.fromkeys(TIMES, (8, 8)), 0.9, lost)
    assert found.predicted_ms <= found.budget_ms


def test_a_wrong_prediction_is_corrected_by_what_is_measured():
    known = table(rest_us=10.0)
    network = Timed(known, rest_us=30.0)
    found = LatencySearch(latency_ms=0.09, corrections=3).assign(known, network)
    assert found.rounds[0][1] - found.rounds[0][0] == pytest.approx(0.02)
    assert found.rounds[1][0] == pytest.approx(found.rounds[1][1]) and len(found.rounds) == 2
    assert found.predicted_ms * 1e3 == pytest.approx(network.network_us(found.assignment))
    assert found.predicted_ms <= 0.09
    uncorrected = LatencySearch(latency_ms=0.09, corrections=0).assign(known, network)
    assert uncorrected.predicted_ms <= 0.09 and network.network_us(uncorrected.assignment) > 90


def test_a_speedup_is_asked_of_the_dense_network_that_was_timed_in_turn():
    """By itself it takes longer, on a GPU that it makes hotter; a result has it in turn with the sparse one."""
    known = table()
    dense_us = 0.9 * known.dense_us
    network = Timed(known, rest_us=0.0, dense_us=dense_us)
    found = LatencySearch(speedup=1.5).assign(known, network)
    assert found.dense_ms * 1e3 == pytest.approx(dense_us)
    assert found.budget_ms * 1e3 == pytest.approx(dense_us / 1.5)
    assert network.network_us(found.assignment) <= dense_us / 1.5 < network.network_us(network.measured[0])
    asked = LatencySearch(latency_ms=0.05).assign(known, Timed(known, rest_us=0.0, dense_us=dense_us))
    assert asked.budget_ms == 0.05, "a latency is what was asked for"


class SlowSomewhere(Timed):
    """One layer dense takes `extra_us` more than its table says; pruning that layer does most to the loss."""

    extra_us = 0.0

    def network_us(self, assignment: Assignment) -> float:
        return super().network_us(assignment) + self.extra_us * (assignment.options[0] == 0)

    def loss(self, assignment: Assignment, batches: int) -> float:
        return super().loss(assignment, batches) + 100.0 * (assignment.options[0] > 0)


@pytest.mark.parametrize(("extra_us", "kept"), [(0.0, True), (1.5, True), (10.0, False), (60.0, False)])
def test_what_swaps_made_of_it_is_measured_too(extra_us, kept):
    known = table()
    network = SlowSomewhere(known, rest_us=0.0)
    network.extra_us = extra_us
    found = LatencySearch(latency_ms=0.075, corrections=1).assign(known, network)
    assert network.measured[0].options[0] > 0 and network.measured[-1].options[0] == 0
    assert len(found.rounds) == len(network.measured) == 2
    assert found.predicted_ms <= found.budget_ms
    assert (found.assignment == network.measured[-1]) == kept == (found.assignment.options[0] == 0)
    if kept:
        assert found.predicted_ms == pytest.approx(found.rounds[-1][1])
    assert found.refined.assignment == found.assignment
    assert found.refined.loss == network.loss(found.assignment, 8)


def test_what_runs_faster_than_predicted_keeps_more():
    """What is pruned for nothing comes back: the latency that was asked for is used."""
    known, found, networks = table(), {}, {}
    for corrections in (1, 2):
        networks[corrections] = network = SlowSomewhere(known, rest_us=0.0)
        network.extra_us = -12.0
        found[corrections] = LatencySearch(latency_ms=0.07, corrections=corrections).assign(known, network)
    once, twice = found[1], found[2]
    assert once.rounds[-1][1] < 0.9 * 0.07, "or this looks at nothing"
    assert twice.refined.loss < once.refined.loss and twice.refined.tried > once.refined.tried
    assert networks[2].network_us(twice.assignment) <= 70.0 and twice.predicted_ms <= 0.07
    assert twice.refined.loss_before == once.refined.loss_before


def test_a_latency_out_of_reach_names_what_is_in_reach():
    known = table(rest_us=10.0)
    message = (
        "latency_ms=0.04: out of reach: the candidates up to the root's sparsity, its ceiling, need 0.0421 ms at least"
    )
    with pytest.raises(InvalidSetting, match=f"^{re.escape(message)}"):
        LatencySearch(latency_ms=0.04).assign(known, Timed(known, 10.0))
    with pytest.raises(InvalidSetting, match=r"^speedup=4\.0: out of reach: .* allow 2\.613 at most, 0\.0421 ms"):
        LatencySearch(speedup=4.0).assign(known, Timed(known, 10.0))
    LatencySearch(latency_ms=0.0422).assign(known, Timed(known, 10.0))


def test_what_the_correction_puts_out_of_reach_is_named_too():
    known = table()
    with pytest.raises(InvalidSetting, match=r"^latency_ms=0\.04: out of reach: .*need 0\.0821 ms at least"):
        LatencySearch(latency_ms=0.04).assign(known, Timed(known, 50.0))


def test_a_latency_that_dense_keeps_prunes_nothing():
    known = table()
    network, told = Timed(known, 0.0), []
    found = LatencySearch(latency_ms=0.1).assign(known, network, told.append)
    assert set(sparsities(found, known).values()) == {0.0} and found.predicted_ms == 0.1
    assert found.refined is None and not network.measured
    (line,) = told
    assert line.startswith("the dense network takes 0.100 ms, within the 0.100 asked for: nothing is pruned")


def test_dense_counts_in_its_fastest_version():
    """Rewritten for sparse products it would take longer than the budget."""
    known = replace(table(rest_us=500.0), dense_us=90.0)
    found = LatencySearch(latency_ms=0.095).assign(known, Timed(known, 500.0))
    assert set(sparsities(found, known).values()) == {0.0} and found.predicted_ms == 0.09
    with pytest.raises(InvalidSetting, match="need 0.09 ms at least"):
        LatencySearch(latency_ms=0.08).assign(known, Timed(known, 500.0))


@pytest.mark.parametrize(("settings", "key"), [({}, "latency_ms"), ({"latency_ms": 1.0, "speedup": 2.0}, "latency_ms")])
def test_one_of_latency_and_speedup(settings, key):
    with pytest.raises(InvalidSetting, match=f"^{key}=.*speedup"):
        LatencySearch(**settings).check_sparsity(0.9)


@pytest.mark.parametrize("settings", [{"latency_ms": 0.0}, {"speedup": 1.0}, {"speedup": float("nan")}, {"bins": 0}])
def test_settings_that_are_none(settings):
    with pytest.raises(InvalidSetting, match=f"^{next(iter(settings))}="):
        LatencySearch(**settings)


def test_it_goes_with_several_patterns_only():
    LatencySearch().check_pattern(Mixed())
    LatencySearch().check_pattern(Dense())
    with pytest.raises(InvalidSetting, match="^allocation=latency_search: .*candidates of pattern mixed"):
        LatencySearch().check_pattern(NM())
