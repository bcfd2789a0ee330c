"""One fit with Lightning, counted while it runs: same seed, same data order, same weights."""

import logging
import math
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.exceptions import SIGTERMException
from torch import Tensor

from sparsefront import distributed
from sparsefront.errors import Terminated
from sparsefront.gpu import GiveWay, sharing
from sparsefront.progress import TRAINING, spent_on
from sparsefront.tasks.base import Task
from sparsefront.training.averaging import AverageWeights
from sparsefront.training.compilation import CompileSteps, deterministic_algorithms
from sparsefront.training.divergence import Diverged, StopAtDivergence
from sparsefront.training.recipe import Optimization, Recipe
from sparsefront.training.resume import KeepEpochs, SaveEpochWeights, TrainingData, checkpoint_of
from sparsefront.training.trainer import AverageLastStep, TrainerSettings, require_room

# What a training really took: counted while it runs, not planned.


@dataclass(frozen=True)
class Trained:
    """One training, as it was counted.

    Args:
        seconds: wall clock without waits for other processes, those before a kill included.
        earlier_seconds: the part before a kill, of which the stage's clock knows nothing.
        epochs: passes over the data, the last one perhaps in part.
        steps: optimizer steps; one that the loss scaler of fp16 skips counts, as it does for the learning rate.
        samples: rows of the batches that were trained on, over all processes; repeated ones count again.
    """

    seconds: float = 0.0
    earlier_seconds: float = 0.0
    epochs: float = 0.0
    steps: int = 0
    samples: int = 0


class CountBudget(pl.Callback):
    """Counts optimizer steps and samples as the loop takes them, over a kill too.

    Args:
        ends_after: optimizer steps after which the training ends within an epoch, which is validated as a whole one is; None =
            it goes on. Lightning's own `max_steps` counts epochs another way, and loses some where a run is resumed.
    """

    def __init__(self, ends_after: int | None = None) -> None:
        self.ends_after, self.steps = ends_after, 0
        self._batches, self._samples = 0, 0  # of this rank
        self._batches_per_epoch = 1

    @property
    def epochs(self) -> float:
        """The last one counts as far as it went."""
        return self._batches / self._batches_per_epoch

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.steps = trainer.global_step
        self._batches += 1
        self._batches_per_epoch = int(trainer.num_training_batches)
        self._samples += _rows(batch)
        if self.steps == self.ends_after:
            trainer.should_stop = True

    def samples(self) -> int:
        """Over all ranks; each of them asks."""
        return sum(distributed.all_gather(self._samples))

    def state_dict(self) -> dict[str, Any]:
        counted = {"batches": self._batches, "batches_per_epoch": self._batches_per_epoch}
        return {"steps": self.steps, **counted, "samples": distributed.all_gather(self._samples)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps, self._batches = state_dict["steps"], state_dict["batches"]
        self._batches_per_epoch = state_dict["batches_per_epoch"]
        self._samples = state_dict["samples"][distributed.rank()]


def _rows(batch: Any) -> int:
    """Of the first tensor of a batch by name; 0 of a batch that holds none."""
    values = batch.values() if isinstance(batch, Mapping) else batch
    return next((len(value) for value in values if isinstance(value, Tensor) and value.ndim), 0)


# What ends a training from outside leaves it as what it was: Lightning makes an exit without a reason of it.


@contextmanager
def told_as_it_was() -> Iterator[None]:
    """Around `Trainer.fit`, which exits with status 1 at Ctrl-C, and at SIGTERM with 0, as if all were done.

    Raises:
        KeyboardInterrupt: Ctrl-C in the block.
        Terminated: SIGTERM in the block.
    """
    try:
        yield
    except SIGTERMException:
        raise Terminated from None
    except SystemExit as end:
        if isinstance(end.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


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
        unfinished: a folder that survives a kill: the training resumes from the checkpoint in it, if there is one, and
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
