"""A short training on the digits, for tests that watch it or look at its end."""

from pathlib import Path
from typing import Any

from torch import nn

from sparsefront.data.digits import Digits
from sparsefront.tasks.classification import ImageClassification
from sparsefront.training.fit import Trained, fit, steps_per_epoch
from sparsefront.training.recipe import Optimization, Recipe
from sparsefront.training.trainer import TrainerSettings


class Net(nn.Sequential):
    """With the argument of image networks: tasks call networks by the names of their inputs."""

    def forward(self, x):
        return super().forward(x)


def small_net() -> Net:
    return Net(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def train_digits(
    net: nn.Module,
    folder: Path,
    recipe: Recipe,
    *,
    lr: float = 0.01,
    steps: int | None = None,
    batch_size: int = 32,
    digits: Digits | None = None,
    task: type[ImageClassification] = ImageClassification,
    trainer: dict[str, Any] | None = None,
    **options: Any,
) -> Trained:
    """Train on the CPU, unless `trainer` says otherwise; `options`: of `fit`."""
    settings = TrainerSettings(**{"accelerator": "cpu", "progress_bar": False} | (trainer or {}))
    settings.check()
    data = (digits or Digits()).data_module(batch_size=batch_size, seed=0, cache_dir=folder)
    curve = Optimization(recipe, lr=lr, total_steps=steps or recipe.epochs * steps_per_epoch(data, settings))
    return fit(
        task(net, num_classes=10, optimization=curve), data, epochs=recipe.epochs, steps=steps, recipe=recipe,
        trainer=settings, directory=folder, **{"loggers": []} | options,
    )  # fmt: skip
