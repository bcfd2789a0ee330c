"""When masks change."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

import sparsefront as sf
from sparsefront.errors import InvalidSetting
from sparsefront.pruning.masked_weights import MaskedWeights
from sparsefront.pruning.training_masks import ApplyMasks
from sparsefront.schedule.base import Schedule
from sparsefront.schedule.gradual import Gradual
from sparsefront.schedule.iterative import Iterative


def test_gradual_follows_the_cubic_formula():
    """s_t = s_f + (s_i - s_f) (1 - (t - t0) / (n dt))^3 of Zhu and Gupta, with t0 = 0.1 and n dt = 0.6 of the training."""
    schedule = Gradual(initial_sparsity=0.2, begin=0.1, end=0.7, updates=6)
    for progress in (0.1, 0.2, 0.35, 0.5, 0.69):
        expected = 0.9 + (0.2 - 0.9) * (1 - (progress - 0.1) / 0.6) ** 3
        assert schedule.sparsity_at(progress, 0.9) == pytest.approx(expected, abs=1e-12)
    assert schedule.sparsity_at(0.0, 0.9) == pytest.approx(0.2)
    assert schedule.sparsity_at(0.7, 0.9) == 0.9
    assert schedule.sparsity_at(1.0, 0.9) == 0.9


def test_updates_end_at_final_sparsity():
    updates = Gradual(end=0.7, updates=20).updates_of(200, 0.75)
    assert len(updates) == 20 and list(updates) == sorted(updates) and max(updates) == 140
    assert updates[140] == 0.75
    assert list(updates.values()) == sorted(updates.values())
    assert updates[70] == pytest.approx(0.75 - 0.75 * (1 - 0.35 / 0.7) ** 3, abs=1e-12)


@pytest.mark.parametrize("total", [1, 2, 3, 6, 17])
@pytest.mark.parametrize("end", [0.7, 1.0])
def test_short_trainings_reach_final_sparsity(total, end):
    updates = Gradual(end=end, updates=20).updates_of(total, 0.75)
    assert max(updates) <= total - 1
    assert updates[max(updates)] == 0.75


def test_geometric_rounds():
    """Frankle and Carbin prune 20 % of what is left in every round: after n rounds 0.8^n of the weights are."""
    levels = Iterative(rounds=5, spacing="geometric").round_sparsities(1 - 0.8**5)
    assert levels == pytest.approx([0.2, 0.36, 0.488, 0.5904, 0.67232], abs=1e-12)
    for rounds, final in ((1, 0.5), (4, 0.75), (12, 0.95)):
        density = [1.0, *(1 - level for level in Iterative(rounds=rounds).round_sparsities(final))]
        fractions = [1 - later / earlier for earlier, later in zip(density, density[1:], strict=False)]
        assert fractions == pytest.approx([1 - (1 - final) ** (1 / rounds)] * rounds, abs=1e-9)
        assert density[-1] == 1 - final, "the last level is the one that was asked for, to the bit"


def test_explicit_levels():
    """The stages of the Tile-Wise authors' script up to 75 %."""
    levels = [0.25, 0.35, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75]
    schedule = Iterative(levels=levels)
    schedule.check_sparsity(0.75)
    assert schedule.round_sparsities(0.75) == tuple(levels)
    with pytest.raises(InvalidSetting, match=r"schedule\.levels=.*must end at sparsity=0.9"):
        schedule.check_sparsity(0.9)


def test_sparsity_within_a_round():
    schedule = Iterative(rounds=4, spacing="linear")
    assert [schedule.sparsity_at(p, 0.8) for p in (0.0, 0.24, 0.25, 0.5, 0.99, 1.0)] == pytest.approx(
        [0.2, 0.2, 0.4, 0.6, 0.8, 0.8]
    )
    assert schedule.updates_of(100, 0.8) == {}


@pytest.mark.parametrize(
    "bad",
    [
        {"rounds": 0},
        {"spacing": "cubic"},
        {"levels": []},
        {"levels": [0.5, 0.5]},
        {"levels": [0.5, 0.25]},
        {"levels": [-0.1, 0.5]},
        {"levels": [0.5, 1.0]},
    ],
)
def test_impossible_rounds_are_rejected(bad):
    with pytest.raises(InvalidSetting) as rejected:
        Iterative(**bad)
    assert rejected.value.key == next(iter(bad))


@pytest.mark.parametrize(
    ("given", "line"), [({"begin": 0.8}, "begin=0.8: .* end=0.7"), ({"end": 0.0}, "end=0.0: .*=0.0")]
)
def test_masks_that_end_before_beginning(given, line):
    with pytest.raises(InvalidSetting, match=line):
        Gradual(**given)


@dataclass(frozen=True)
class Rounds(Schedule):
    """A user's own schedule, with rounds that are written down."""

    levels: tuple[float, ...]
    name: ClassVar[str] = "rounds"

    def round_sparsities(self, final):
        return self.levels

    def sparsity_at(self, progress, final):
        return self.levels[0]


@dataclass(frozen=True)
class InTraining(Rounds):
    """The same with updates, of which the last is `last`."""

    last: float | None

    def updates_of(self, total_steps, final):
        return {} if self.last is None else {0: 0.0, total_steps - 1: self.last}


@pytest.mark.parametrize(
    ("levels", "why"),
    [
        ((0.25, 0.375), "ends at 0.375: must end at sparsity=0.5"),
        ((), r"has rounds at \[\]"),
        ((0.4, 0.25, 0.5), r"has rounds at \[0.4, 0.25, 0.5\]: must be .* that never fall"),
        ((0.6, 0.6), r"has rounds at \[0.6, 0.6\]: must be .* from 0 to sparsity=0.5"),
    ],
)
def test_own_schedule_with_wrong_rounds(levels, why):
    net = nn.Sequential(nn.Linear(8, 8))
    with pytest.raises(InvalidSetting, match=f"^schedule=rounds: {why}"):
        sf.prune(net, "element_wise", 0.5, layers=["0"], schedule=Rounds(levels), tell=len)


@pytest.mark.parametrize(("last", "reached"), [(0.45, "0.45"), (None, "0.0")])
def test_own_schedule_that_stops_short(last, reached):
    net = nn.Sequential(nn.Linear(8, 8))
    with pytest.raises(InvalidSetting, match=f"^schedule=rounds: ends at {reached}: must end at sparsity=0.5"):
        ApplyMasks(
            MaskedWeights(net, ["0"]),
            schedule=InTraining((0.0,), last),
            sparsity=0.5,
            make_masks=lambda *_: {"0": torch.ones(8, 8, dtype=torch.bool)},
            total_steps=10,
        )
