"""latency_search: predictions are corrected by measurements, what is out of reach is named, and one pattern is latency_aware.

Reading tables of layer times: what is there, and every way in which a file can be wrong.
"""

import re
from pathlib import Path

import pytest

from sparsefront.allocation.assignment import ROW_MAJOR, Assignment, ChoiceTable, Item, Option
from sparsefront.allocation.base import Measured
from sparsefront.allocation.latency_aware import LatencyAware, read_table
from sparsefront.allocation.latency_search import LatencySearch
from sparsefront.errors import InvalidSetting

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


def test_wrong_prediction_is_corrected():
    known = table(rest_us=10.0)
    network = Timed(known, rest_us=30.0)
    found = LatencySearch(latency_ms=0.09, corrections=3).assign(known, network)
    assert found.rounds[0][1] - found.rounds[0][0] == pytest.approx(0.02)
    assert found.rounds[1][0] == pytest.approx(found.rounds[1][1]) and len(found.rounds) == 2
    assert found.predicted_ms * 1e3 == pytest.approx(network.network_us(found.assignment))
    assert found.predicted_ms <= 0.09
    uncorrected = LatencySearch(latency_ms=0.09, corrections=0).assign(known, network)
    assert uncorrected.predicted_ms <= 0.09 and network.network_us(uncorrected.assignment) > 90


def test_dense_network_is_timed_in_turn():
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
def test_swapped_assignment_is_measured(extra_us, kept):
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


def test_latency_out_of_reach():
    known = table(rest_us=10.0)
    message = (
        "latency_ms=0.04: out of reach: the candidates up to the root's sparsity, its ceiling, need 0.0421 ms at least"
    )
    with pytest.raises(InvalidSetting, match=f"^{re.escape(message)}"):
        LatencySearch(latency_ms=0.04).assign(known, Timed(known, 10.0))
    with pytest.raises(InvalidSetting, match=r"^speedup=4\.0: out of reach: .* allow 2\.613 at most, 0\.0421 ms"):
        LatencySearch(speedup=4.0).assign(known, Timed(known, 10.0))
    LatencySearch(latency_ms=0.0422).assign(known, Timed(known, 10.0))


def test_latency_that_dense_keeps():
    known = table()
    network, told = Timed(known, 0.0), []
    found = LatencySearch(latency_ms=0.1).assign(known, network, told.append)
    assert set(sparsities(found, known).values()) == {0.0} and found.predicted_ms == 0.1
    assert found.refined is None and not network.measured
    (line,) = told
    assert line.startswith("the dense network takes 0.100 ms, within the 0.100 asked for: nothing is pruned")


def test_missing_table():
    with pytest.raises(InvalidSetting, match=r"table=None.*run\.py -m sparsity=.*allocation=per_layer.*latency_table"):
        read_table(None)
    with pytest.raises(InvalidSetting, match=r"table=/nowhere\.csv: is no file.*sparsefront\.results\.latency_table"):
        read_table("/nowhere.csv")


WRONG = {
    "column": ("layer,latency_us\na,1\n", "lacks column sparsity; a table has layer,sparsity,latency_us"),
    "nothing": ("layer,sparsity,latency_us\n", "has no times"),
    "empty file": ("", "lacks column layer, sparsity, latency_us"),
    "text": ("layer,sparsity,latency_us\na,half,1\n", "line 2: sparsity 'half' and latency_us '1' are not both"),
    "short line": ("layer,sparsity,latency_us\na,0\n", "line 2: .*latency_us '' are not both numbers"),
    "sparsity 1": ("layer,sparsity,latency_us\na,0,2\na,1,1\n", r"line 3: sparsity 1 is not .*\[0, 1\)"),
    "sparsity nan": ("layer,sparsity,latency_us\na,nan,2\n", "sparsity nan is not"),
    "time 0": ("layer,sparsity,latency_us\na,0,0\n", "line 2: latency_us 0 of layer a is not above 0"),
    "time negative": ("layer,sparsity,latency_us\na,0,-3\n", "latency_us -3"),
    "time infinite": ("layer,sparsity,latency_us\na,0,inf\n", "latency_us inf"),
    "no dense": ("layer,sparsity,latency_us\na,0.5,1\na,0.75,1\n", r"no dense time \(sparsity 0\) of layer a"),
    "only dense": ("layer,sparsity,latency_us\na,0,1\n", "only the dense time of layer a"),
    "twice": ("layer,sparsity,latency_us\na,0,1\na,0.5,1\na,0.50,2\n", "layer a at sparsity 0.5 twice"),
    "two patterns": (
        "layer,sparsity,latency_us,pattern,granularity\na,0,1,n_m,\na,0.5,1,block_wise,32\n",
        r"several patterns \(block_wise 32, n_m\)",
    ),
    "not text": (b"\xff\xfe\x00", "table="),
}


@pytest.mark.parametrize(("content", "message"), WRONG.values(), ids=WRONG)
def test_wrong_tables(tmp_path: Path, content: str | bytes, message: str):
    file = tmp_path / "table.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidSetting, match=message) as raised:
        read_table(str(file))
    assert raised.value.key == "table"
