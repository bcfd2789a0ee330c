"""What each recovery asks of the training loop."""

from functools import partial

import pytest

from sparsefront.errors import InvalidSetting
from sparsefront.recovery.cast import Cast
from sparsefront.recovery.distill import Distill
from sparsefront.recovery.finetune import Finetune
from sparsefront.recovery.lr_rewind import LearningRateRewind
from sparsefront.recovery.none import NoRecovery
from sparsefront.recovery.square_head import SquareHead
from sparsefront.recovery.sr_ste import SrSte
from sparsefront.recovery.weight_rewind import WeightRewind
from sparsefront.schedule.gradual import Gradual
from sparsefront.schedule.iterative import Iterative
from sparsefront.schedule.one_shot import OneShot
from sparsefront.training.recipe import Recipe

RECIPE = Recipe(epochs=10, lr=0.1, warmup=0.2)


ONCE, ROUNDS, MEANWHILE = OneShot(), Iterative(), Gradual()
SCHEDULES = {
    NoRecovery(): [ONCE],
    Finetune(): [ONCE, ROUNDS, MEANWHILE],
    LearningRateRewind(): [ONCE, ROUNDS],
    WeightRewind(): [ONCE, ROUNDS],
    Distill(): [ONCE, ROUNDS, MEANWHILE],
    Distill(along="lr_rewind"): [ONCE, ROUNDS],
    SquareHead(): [ONCE, ROUNDS, MEANWHILE],
    SquareHead(along="lr_rewind"): [ONCE, ROUNDS],
}


@pytest.mark.parametrize("recovery", SCHEDULES, ids=lambda recovery: recovery.name)
def test_each_recovery_goes_with_its_schedules(recovery):
    followed = [schedule for schedule in (ONCE, ROUNDS, MEANWHILE) if recovery.follows(schedule, 0.75)]
    assert followed == SCHEDULES[recovery]


def test_finetune_repeats_the_dense_schedule_unless_told_otherwise():
    plan = Finetune().plan(RECIPE, 7)
    assert plan.epochs == 10 and plan.optimization.lr == 0.1 and plan.optimization.total_steps == 70
    own = Finetune(epochs=2, lr=0.01).plan(RECIPE, 7)
    assert own.epochs == 2 and own.optimization.lr == 0.01 and own.optimization.total_steps == 14
    of_recipe = Finetune().plan(Recipe(epochs=10, recovery_epochs=3, recovery_lr=0.02), 7)
    assert of_recipe.epochs == 3 and of_recipe.optimization.lr == 0.02


def test_rewinding_all_the_way_is_the_dense_curve():
    for kind in (LearningRateRewind, WeightRewind):  # the default, whatever the budget of other recoveries
        plan = kind().plan(Recipe(epochs=10, recovery_epochs=3), 7)
        assert plan.epochs == 10 and plan.optimization.first_step == 0
        assert "the start of epoch 1 of the dense run's 10" in plan.rewound


REWINDING = [LearningRateRewind, WeightRewind, partial(Distill, along="lr_rewind")]


@pytest.mark.parametrize("kind", [Finetune, SrSte, Cast, Distill, SquareHead, *REWINDING])
def test_one_key_sets_the_budget_of_every_recovery(kind):
    assert kind(epochs=None).plan(Recipe(epochs=10, recovery_epochs=3), 7).epochs == 3
    assert kind(epochs=2).plan(Recipe(epochs=10, recovery_epochs=3), 7).epochs == 2


@pytest.mark.parametrize("kind", [Finetune, Distill, SquareHead])
@pytest.mark.parametrize(("epochs", "rounds"), [(6, 4), (3, 3), (1, 4), (5, 2)])
def test_rounds_share_the_budget_to_the_step(kind, epochs, rounds):
    shares = [kind(epochs=epochs).plan_of_round(RECIPE, 7, index, rounds) for index in range(rounds)]
    assert sum(share.steps for share in shares) == epochs * 7
    assert max(share.steps for share in shares) - min(share.steps for share in shares) <= 1
    for share in shares:
        assert 7 * (share.epochs - 1) < share.steps <= 7 * share.epochs
        assert share.optimization.total_steps == share.steps and share.optimization.first_step == 0


def test_no_round_is_without_a_step():
    shares = [Finetune(epochs=1).plan_of_round(RECIPE, 2, index, 4) for index in range(4)]
    assert [share.steps for share in shares] == [1, 1, 1, 1]


@pytest.mark.parametrize("kind", REWINDING)
def test_rewinding_past_the_start_by_the_recipe_names_its_key(kind):
    with pytest.raises(InvalidSetting, match="recipe.recovery_epochs=11.*10 epochs"):
        kind(epochs=None).plan(Recipe(epochs=10, recovery_epochs=11), 7)


IMPOSSIBLE = {
    "epochs": [
        lambda: Finetune(epochs=0),
        lambda: LearningRateRewind(epochs=0),
        lambda: WeightRewind(epochs=0),
        lambda: Distill(epochs=0),
        lambda: Distill(along="lr_rewind", epochs=0),
    ],
    "lr": [lambda: Finetune(lr=-1.0), lambda: Distill(lr=0.0), lambda: Distill(along="lr_rewind", lr=0.1)],
    "along": [lambda: Distill(along="weight_rewind")],
    "hardness": [lambda: Distill(hardness=1.5), lambda: Distill(hardness=-0.1)],
    "temperature": [lambda: Distill(temperature=0.0)],
    "hidden_states": [lambda: Distill(hidden_states=-1.0)],
    "hidden_layers": [
        lambda: Distill(hidden_layers=["blocks.0"]),
        lambda: Distill(hidden_states=1.0, hidden_layers=[]),
    ],
}


@pytest.mark.parametrize(("key", "build"), [(key, build) for key, builds in IMPOSSIBLE.items() for build in builds])
def test_impossible_settings_are_rejected(key, build):
    with pytest.raises(InvalidSetting) as rejected:
        build()
    assert rejected.value.key == key
