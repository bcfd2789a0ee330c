"""One fit with Lightning: same seed, same data order, same weights."""

import logging
import math
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytorch_lightning as pl
import torch

from sparsefront import distributed
from sparsefront.gpu_sharing.access import sharing
from sparsefront.gpu_sharing.callback import GiveWay
from sparsefront.tasks.base import Task
from sparsefront.time_use import TRAINING, spent_on
from sparsefront.training.accumulation import AverageLastStep
from sparsefront.training.averaging import AverageWeights
from sparsefront.training.budget import CountBudget, Trained
from sparsefront.training.compilation import CompileSteps
from sparsefront.training.determinism import deterministic_algorithms
from sparsefront.training.disk_need import require_room
from sparsefront.training.divergence import Diverged, StopAtDivergence
from sparsefront.training.epoch_weights import SaveEpochWeights
from sparsefront.training.interruption import told_as_it_was
from sparsefront.training.optimization import Optimization
from sparsefront.training.recipe import Recipe
from sparsefront.training.resume import KeepEpochs, checkpoint_of
from sparsefront.training.trainer import TrainerSettings
from sparsefront.training.training_data import TrainingData


def steps_per_epoch(data: pl.LightningDataModule, trainer: TrainerSettings) -> int:
    """Optimizer steps of one epoch: its batches, or the trainer's limit, shared by the devices and accumulated."""
    batches = math.ceil(len(data.train_dataloader()) / trainer.world_size)
    if trainer.limit_batches is not None:
        batches = min(batches, trainer.limit_batches)
    return math.ceil(batches / trainer.accumulate_grad_batches)


def fit(
    task: Task,
    data: pl.LightningDataModule,
    *,
    epochs: int,
    steps: int | None = None,
    recipe: Recipe,
    trainer: TrainerSettings,
    loggers: list,
    directory: Path,
    callbacks: tuple[pl.Callback, ...] = (),
    unfinished: Path | None = None,
    stage: str = "training",
    lr_key: str = "recipe.lr",
) -> Trained:
    """Train `task` in place for `epochs` with its own `optimization`.

    Args:
        steps: optimizer steps after which it ends within its last epoch; None = with that epoch.
        callbacks: with a `state_dict` that holds all of their state.
        unfinished: a folder that survives a kill: the training goes on from the checkpoint in it, if there is one, and
            leaves its own there after each epoch but the last. None: it always starts at its beginning.
        stage: what trains, and `lr_key`: the setting of its learning rate, for messages.
    Raises:
        Diverged: the loss or the weights are not finite; `unfinished` is then removed.
        KeyboardInterrupt: Ctrl-C.
        Terminated: SIGTERM; it ends with the step that it came in.
    """
    # First the averages, so that the masks are checked after these took the weights' place.
    averages = () if recipe.ema is None else (AverageWeights(recipe.ema),)
    batches = trainer.accumulate_grad_batches
    accumulated = () if batches == 1 else (AverageLastStep(batches),)
    count, keep = CountBudget(steps), KeepEpochs(unfinished if trainer.checkpoint else None)
    require_room(
        task.net,
        directory,
        epochs=epochs,
        recipe=recipe,
        keeps_epochs=keep.folder is not None,
        epoch_weights=any(isinstance(callback, SaveEpochWeights) for callback in callbacks),
    )
    task.label_smoothing = recipe.label_smoothing
    if isinstance(task.optimization, Optimization):
        task.optimization = replace(task.optimization, fused=trainer.fuses_optimizer)
    task._ddp_params_and_buffers_to_ignore = _never_broadcast(task)
    finite = StopAtDivergence(stage=stage, lr_key=lr_key, recipe=recipe, precision=trainer.real_precision)
    compiled = () if trainer.compile == "none" else (CompileSteps(trainer.compile),)
    device = torch.device(trainer.device)
    with (
        _quiet_lightning(),
        _discarded_where_diverged(unfinished),
        told_as_it_was(),
        spent_on(TRAINING, stage),
        sharing(device),
        deterministic_algorithms(trainer.deterministic),
    ):
        lightning = trainer.build(
            epochs=epochs,
            gradient_clip=recipe.gradient_clip,
            callbacks=[GiveWay(device), finite, *accumulated, *averages, *callbacks, *compiled, count, keep],
            loggers=loggers,
            directory=directory,
        )
        try:
            lightning.fit(task, datamodule=TrainingData(data), ckpt_path=checkpoint_of(keep.folder), weights_only=True)
        except ValueError as error:
            if not isinstance(error, Diverged):
                finite.explain(task.net)
            raise
        finite.check_weights(task.net)
    return Trained(keep.seconds, keep.earlier_seconds, count.epochs, count.steps, count.samples())


def _never_broadcast(task: Task) -> list[str]:
    """DDP broadcasts buffers before every forward. Masks, positions and counts are the same on every rank by their making."""
    return [name for name, buffer in task.named_buffers() if not buffer.is_floating_point()]


@contextmanager
def _discarded_where_diverged(unfinished: Path | None) -> Iterator[None]:
    """A training that diverges again from its last epoch would never come to another end."""
    try:
        yield
    except Diverged:
        if unfinished is not None and distributed.rank() == 0:
            shutil.rmtree(unfinished, ignore_errors=True)
        raise


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
            # Scores were computed on the same parameters before DDP took its own stream: it costs a wait, once.
            warnings.filterwarnings("ignore", message=".*AccumulateGrad node's stream does not match.*")
            warnings.filterwarnings(
                "ignore", message="Total length of `DataLoader` across ranks is zero"
            )  # nothing held out
            # that Lightning should be started by srun: it needs no Slurm, in a job neither
            warnings.filterwarnings("ignore", message=".*`srun` command is available.*")
            # every rank validates on the whole split, so there is nothing to reduce
            warnings.filterwarnings("ignore", message=".*sync_dist=True.*")
            warnings.filterwarnings(
                "ignore", message=".*number of training batches.*is smaller than the logging interval.*"
            )
            yield
    finally:
        logger.setLevel(level)
