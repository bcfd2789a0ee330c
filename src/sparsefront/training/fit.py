"""One fit with Lightning: same seed, same data order, same weights."""

import logging
import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytorch_lightning as pl

from sparsefront.tasks.base import Task
from sparsefront.training.recipe import Recipe
from sparsefront.training.trainer import TrainerSettings


def steps_per_epoch(data: pl.LightningDataModule, trainer: TrainerSettings) -> int:
    """Optimizer steps of one epoch: every batch, or the trainer's limit; shared by the devices."""
    batches = math.ceil(len(data.train_dataloader()) / trainer.devices)
    return batches if trainer.limit_batches is None else min(batches, trainer.limit_batches)


def fit(
    task: Task,
    data: pl.LightningDataModule,
    *,
    epochs: int,
    recipe: Recipe,
    trainer: TrainerSettings,
    loggers: list,
    directory: Path,
    callbacks: tuple[pl.Callback, ...] = (),
) -> float:
    """Train `task` in place for `epochs` with its own `optimization`.

    Returns:
        wall-clock seconds.
    """
    start = time.perf_counter()
    with _quiet_lightning():
        trainer.build(
            epochs=epochs,
            gradient_clip=recipe.gradient_clip,
            callbacks=list(callbacks),
            loggers=loggers,
            directory=directory,
        ).fit(task, datamodule=data)
    return time.perf_counter() - start


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Silences Lightning's device list and its advice on loader workers; warnings about the training itself stay."""
    logger = logging.getLogger("pytorch_lightning")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*does not have many workers.*")
            warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # of Lightning's own code
            warnings.filterwarnings(
                "ignore", message=".*number of training batches.*is smaller than the logging interval.*"
            )
            yield
    finally:
        logger.setLevel(level)
