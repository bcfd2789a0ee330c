"""Going back to a point of the dense run."""

from typing import Annotated

from pydantic import Field, PositiveInt

from sparsefront.counted import counted
from sparsefront.errors import InvalidSetting
from sparsefront.recovery.training import TrainingPlan
from sparsefront.training.optimization import Optimization
from sparsefront.training.recipe import Recipe

Epochs = Annotated[PositiveInt | None, Field(description="null: the whole dense run")]
"""K, how far to rewind."""


def first_epoch(epochs: int | None, recipe: Recipe) -> int:
    """T - K: the epoch of the dense run, from 0, at whose start K epochs are left of it.

    Args:
        epochs: K; None = the recipe's recovery_epochs, else all (K = T).
    Raises:
        InvalidSetting: K is more than the dense run had, or there was none.
    """
    key, rewound = ("recipe.recovery_epochs", recipe.recovery_epochs) if epochs is None else ("recovery.epochs", epochs)
    if recipe.epochs == 0:
        raise InvalidSetting("recipe.epochs", 0, "trains no dense network, so there are no learning rates to rewind to")
    if rewound is not None and rewound > recipe.epochs:
        raise InvalidSetting(key, rewound, f"cannot rewind past the {counted(recipe.epochs, 'epoch')} of the dense run")
    return 0 if rewound is None else recipe.epochs - rewound


def rewound_plan(epochs: int | None, recipe: Recipe, steps_per_epoch: int) -> TrainingPlan:
    """The last K epochs of the dense run's learning rates, step by step.

    Args:
        epochs: K; None = as of `first_epoch`.
    """
    first = first_epoch(epochs, recipe)
    total_steps = recipe.epochs * steps_per_epoch
    return TrainingPlan(
        recipe.epochs - first,
        Optimization(recipe, lr=recipe.lr, total_steps=total_steps, first_step=first * steps_per_epoch),
    )
