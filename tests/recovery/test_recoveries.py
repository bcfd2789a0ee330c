"""What each recovery asks of the training loop."""

import pytest

from sparsefront.errors import InvalidSetting
from sparsefront.recovery.finetune import Finetune
from sparsefront.recovery.lr_rewind import LearningRateRewind
from sparsefront.recovery.none import NoRecovery
from sparsefront.training.optimization import Optimization
from sparsefront.training.recipe import Recipe

RECIPE = Recipe(epochs=10, lr=0.1, warmup=0.2)


def test_none_trains_nothing():
    assert NoRecovery().plan(RECIPE, 7) is None


def test_finetune_repeats_the_dense_schedule_unless_told_otherwise():
    plan = Finetune().plan(RECIPE, 7)
    assert plan.epochs == 10 and plan.optimization.lr == 0.1 and plan.optimization.total_steps == 70
    own = Finetune(epochs=2, lr=0.01).plan(RECIPE, 7)
    assert own.epochs == 2 and own.optimization.lr == 0.01 and own.optimization.total_steps == 14
    of_recipe = Finetune().plan(Recipe(epochs=10, recovery_epochs=3, recovery_lr=0.02), 7)
    assert of_recipe.epochs == 3 and of_recipe.optimization.lr == 0.02


def test_rewinding_replays_the_last_epochs_of_the_dense_rates():
    dense = Optimization(RECIPE, lr=0.1, total_steps=70)
    plan = LearningRateRewind(epochs=3).plan(RECIPE, 7)
    assert plan.epochs == 3 and plan.optimization.lr == 0.1
    assert [plan.optimization.factor(s) for s in range(21)] == [dense.factor(49 + s) for s in range(21)]


def test_rewinding_all_the_way_is_the_dense_curve():
    plan = LearningRateRewind().plan(RECIPE, 7)
    assert plan.epochs == 10 and plan.optimization.first_step == 0


def test_rewinding_past_the_start_is_refused():
    with pytest.raises(InvalidSetting, match="recovery.epochs=11"):
        LearningRateRewind(epochs=11).plan(RECIPE, 7)


@pytest.mark.parametrize(
    "build", [lambda: Finetune(epochs=0), lambda: Finetune(lr=-1.0), lambda: LearningRateRewind(epochs=0)]
)
def test_impossible_settings_are_refused(build):
    with pytest.raises(InvalidSetting):
        build()
