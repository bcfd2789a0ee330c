"""When masks change."""

import pytest

from sparsefront.errors import InvalidSetting
from sparsefront.schedule.gradual import Gradual
from sparsefront.schedule.one_shot import OneShot


def test_one_shot_never_changes():
    assert OneShot().updates_of(100, 0.9) == {}
    assert OneShot().sparsity_at(0.0, 0.9) == 0.9


def test_gradual_follows_the_cubic_formula():
    """s_t = s_f + (s_i - s_f) (1 - (t - t0) / (n dt))^3 of Zhu and Gupta, with t0 = 0.1 and n dt = 0.6 of the training."""
    schedule = Gradual(initial_sparsity=0.2, begin=0.1, end=0.7, updates=6)
    for progress in (0.1, 0.2, 0.35, 0.5, 0.69):
        expected = 0.9 + (0.2 - 0.9) * (1 - (progress - 0.1) / 0.6) ** 3
        assert schedule.sparsity_at(progress, 0.9) == pytest.approx(expected, abs=1e-12)
    assert schedule.sparsity_at(0.0, 0.9) == pytest.approx(0.2)
    assert schedule.sparsity_at(0.7, 0.9) == 0.9
    assert schedule.sparsity_at(1.0, 0.9) == 0.9


def test_gradual_updates_end_at_the_final_sparsity():
    updates = Gradual(end=0.7, updates=20).updates_of(200, 0.75)
    assert len(updates) == 20 and list(updates) == sorted(updates) and max(updates) == 140
    assert updates[140] == 0.75
    assert list(updates.values()) == sorted(updates.values())
    assert updates[70] == pytest.approx(0.75 - 0.75 * (1 - 0.35 / 0.7) ** 3, abs=1e-12)


@pytest.mark.parametrize("total", [1, 2, 3, 6, 17])
@pytest.mark.parametrize("end", [0.7, 1.0])
def test_short_trainings_reach_the_final_sparsity_too(total, end):
    updates = Gradual(end=end, updates=20).updates_of(total, 0.75)
    assert max(updates) <= total - 1
    assert updates[max(updates)] == 0.75


@pytest.mark.parametrize("bad", [{"initial_sparsity": 1.0}, {"begin": 0.8}, {"end": 1.2}, {"updates": 0}])
def test_impossible_schedules_are_refused(bad):
    with pytest.raises(InvalidSetting):
        Gradual(**bad)
