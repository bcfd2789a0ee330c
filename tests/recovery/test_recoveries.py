"""What each recovery asks of the training loop."""

from functools import partial

import pytest

from sparsefront.config.validate import validate
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


def test_plan_of_finetune():
    plan = Finetune().plan(RECIPE, 7)
    assert plan.epochs == 10 and plan.optimization.lr == 0.1 and plan.optimization.total_steps == 70
    own = Finetune(epochs=2, lr=0.01).plan(RECIPE, 7)
    assert own.epochs == 2 and own.optimization.lr == 0.01 and own.optimization.total_steps == 14
    of_recipe = Finetune().plan(Recipe(epochs=10, recovery_epochs=3, recovery_lr=0.02), 7)
    assert of_recipe.epochs == 3 and of_recipe.optimization.lr == 0.02


def test_whole_rewinding_is_the_dense_curve():
    for kind in (LearningRateRewind, WeightRewind):  # the default, whatever the budget of other recoveries
        plan = kind().plan(Recipe(epochs=10, recovery_epochs=3), 7)
        assert plan.epochs == 10 and plan.optimization.first_step == 0
        assert "the start of epoch 1 of the dense run's 10" in plan.rewound


REWINDING = [LearningRateRewind, WeightRewind, partial(Distill, along="lr_rewind")]


@pytest.mark.parametrize("kind", [Finetune, SrSte, Cast, Distill, SquareHead, *REWINDING])
def test_one_key_sets_every_budget(kind):
    assert kind(epochs=None).plan(Recipe(epochs=10, recovery_epochs=3), 7).epochs == 3
    assert kind(epochs=2).plan(Recipe(epochs=10, recovery_epochs=3), 7).epochs == 2


@pytest.mark.parametrize("kind", [Finetune, Distill, SquareHead])
@pytest.mark.parametrize(("epochs", "rounds"), [(6, 4), (3, 3), (1, 4), (5, 2)])
def test_rounds_share_the_budget(kind, epochs, rounds):
    shares = [kind(epochs=epochs).plan_of_round(RECIPE, 7, index, rounds) for index in range(rounds)]
    assert sum(share.steps for share in shares) == epochs * 7
    assert max(share.steps for share in shares) - min(share.steps for share in shares) <= 1
    for share in shares:
        assert 7 * (share.epochs - 1) < share.steps <= 7 * share.epochs
        assert share.optimization.total_steps == share.steps and share.optimization.first_step == 0


@pytest.mark.parametrize("kind", REWINDING)
def test_rewinding_past_the_start(kind):
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


WINDOWS_ALONE = {  # of the recoveries that train n of m weights
    "pattern=tile_wise": "recovery={0}: needs n of every m kept.*not tile_wise",
    "pattern=element_wise": "recovery={0}: needs n of every m kept",
    "pattern=vector_wise": "recovery={0}: needs n of every m kept.*pattern.distribution=balanced",
    "pattern=n_m importance=taylor": "recovery={0}: ranks weights by importance=magnitude, not by taylor",
    "pattern=n_m schedule=gradual": "recovery={0}: goes with schedule one_shot, not with gradual",
    "pattern=n_m recipe.ema=0.9": "recipe.ema=0.9: must be null with recovery={0}",
    "pattern=n_m recovery.decay=-1": "recovery.decay=-1: must be",
}
REFUSED = {
    "cast": WINDOWS_ALONE
    | {
        "pattern=n_m recipe.optimizer=sgd": "recipe.optimizer=sgd: must be adamw with recovery=cast",
        "pattern=n_m recovery.scale_groups=0": "recovery.scale_groups=0: must be",
        "pattern=n_m recovery.mask_every=0": "recovery.mask_every=0: must be",
    },
    "sr_ste": WINDOWS_ALONE,
    "obs_update": {
        "schedule=gradual": "recovery=obs_update.*iterative, one_shot, not with gradual",
        "recovery.reselect=true pattern=tile_wise": "recovery.reselect=True: pattern tile_wise",
        "recovery.reselect=true pattern=vector_wise granularity=8": "recovery.reselect=True: pattern vector_wise",
        "recovery.reselect=true pattern=n_m pattern.transposable=true sparsity=0.5": "recovery.reselect=True: pattern n_m",
    },
    "least_squares": {
        "recovery.mask_iterations=9 pattern=tile_wise": "recovery.mask_iterations=9: pattern tile_wise",
    },
    "sparse_swaps": {
        "pattern=tile_wise": "goes with pattern=element_wise, n_m, uniform, not with tile_wise as it is set",
        "pattern=uniform granularity=2": "not with uniform as it is set",
        "pattern=n_m pattern.transposable=true sparsity=0.5": "not with n_m as it is set",
        "pattern=vector_wise granularity=8": "recovery=sparse_swaps: exchanges single weights.*not with vector_wise",
        "pattern=n_m schedule=gradual": "goes with schedule iterative, one_shot, not with gradual",
        "pattern=n_m recovery.epochs=3": "recovery.epochs=3: must be null with along=none",
        "pattern=n_m recovery.along=lr_rewind recovery.lr=0.1": "recovery.lr=0.1: must be null with along=lr_rewind",
        "pattern=n_m recovery.along=lr_rewind recovery.epochs=99": "recovery.epochs=99: cannot rewind",
        "pattern=n_m recovery.limit=0": "recovery.limit=0: must be",
        "pattern=element_wise importance=movement schedule=iterative schedule.levels=[0,0.75]": "importance=movement: come",
    },
    "square_head": {
        "recovery.hidden_layers=[blocks.9]": r"recovery\.hidden_layers=\[\'blocks\.9\'\]: not in the network",
        "recovery.hidden_states=0": r"recovery\.hidden_states=0: must be",
        "recovery.along=lr_rewind schedule=gradual": "recovery.along=lr_rewind: goes with schedule",
        "recovery.along=lr_rewind recovery.lr=0.1": r"recovery\.lr=0\.1: must be null",
        "recovery.teacher=/nowhere": r"recovery\.teacher=/nowhere",
    },
}
for trains_no_rounding in ("none", "obs_update", "sparse_swaps", "sr_ste", "cast"):
    rows = {"+recovery.quantize=true": r"^recovery\.quantize=True: .*finetune"}
    REFUSED[trains_no_rounding] = REFUSED.get(trains_no_rounding, {}) | rows


@pytest.mark.parametrize(("recovery", "overrides"), [(name, key) for name, rows in REFUSED.items() for key in rows])
def test_refusals_before_training(composed, recovery, overrides):
    with pytest.raises(InvalidSetting, match=REFUSED[recovery][overrides].format(recovery)) as refused:
        validate(composed(f"recovery={recovery}", *overrides.split()))
    assert "\n" not in str(refused.value)
