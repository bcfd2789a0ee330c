"""Movement: scores out of training, and the schedules that have none when they want them."""

import pytest
import torch

from sparsefront.allocation.latency_aware import LatencyAware
from sparsefront.allocation.per_layer import PerLayer
from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting
from sparsefront.importance.movement import Movement
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.shuffled_block import ShuffledBlock
from sparsefront.pruning.make_masks import PruningSettings
from sparsefront.schedule.gradual import Gradual


def test_scores_are_what_training_gathered(hand_made):
    moved = {"a": torch.tensor([[1.0, -2.0]]), "unasked": torch.ones(1, 1)}
    scores = Movement().scores({"a": torch.ones(1, 2)}, hand_made(accumulated=moved))
    assert list(scores) == ["a"] and torch.equal(scores["a"], moved["a"])


@pytest.mark.parametrize(
    "schedule",
    [["schedule=one_shot"], ["schedule=gradual", "schedule.initial_sparsity=0.1"], ["schedule=iterative"]],
    ids=lambda overrides: overrides[-1],
)
def test_masks_before_training_are_rejected(composed, schedule):
    with pytest.raises(InvalidSetting, match="importance=movement.*initial_sparsity=0.*levels"):
        validate(composed("importance=movement", *schedule))


def test_recovery_without_training_is_rejected(composed):
    with pytest.raises(InvalidSetting, match="importance=movement.*obs_update trains nothing"):
        validate(
            composed("importance=movement", "schedule=iterative", "schedule.levels=[0,0.75]", "recovery=obs_update")
        )


@pytest.mark.parametrize(
    ("allocation", "pattern", "named"),
    [
        (LatencyAware(), ElementWise(), "allocation=latency_aware"),
        (PerLayer(), ShuffledBlock(granularity=4), "pattern=shuffled_block"),
        (PerLayer(), NM(permutation="search"), "pattern.permutation=search"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_choices_of_first_scores_are_rejected(allocation, pattern, named):
    pruning = PruningSettings(pattern, 0.5, allocation=allocation, schedule=Gradual())
    with pytest.raises(InvalidSetting, match=f"{named}.*importance=movement has none"):
        Movement().check(pruning)


def test_a_whole_run_under_gradual(run):
    """Two epochs of two steps: masks begin dense and end at what was asked for."""
    row = run(
        "importance=movement",
        "schedule=gradual",
        "schedule.updates=2",
        "recipe.recovery_epochs=2",
        "pattern=element_wise",
        "kernel=none",
        "model.depth=1",
        "model.dim=64",
    )
    assert row.sparsity.sparsity_achieved == pytest.approx(0.75, abs=0.01)
