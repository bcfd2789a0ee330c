"""One fit with Lightning: same seed, same data order, same weights; counts steps, samples and time."""

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
from sparsefront.gpu import BusyShare, share_gpu, yield_gpu
from sparsefront.models.attention import fuse_attention
from sparsefront.progress import TRAINING, track_time
from sparsefront.tasks.lightning_modules import LightningTask
from sparsefront.training.compilation import channels_last, deterministic_algorithms
from sparsefront.training.lightning_parts import (
    AverageLastStep,
    AverageWeights,
    Diverged,
    LogLearningRate,
    PhaseLogger,
    StopAtDivergence,
)
from sparsefront.training.recipe import Optimization, Recipe
from sparsefront.training.resume import KeepEpochs, SaveEpochWeights, TrainingData, checkpoint_of
from sparsefront.training.trainer import TrainerSettings, require_room

LABELED = "labeled"  # of a batch, bool [B], if the data has rows without a label


@dataclass(frozen=True)
class Trained:
    """The extent of one training.

    Args:
        seconds: wall clock, excluding waits for other processes and including time before a kill.
        earlier_seconds: the part before a kill, which the stage's clock does not include.
        epochs: passes over the data, possibly fractional.
        steps: optimizer steps, including those skipped by the fp16 loss scaler, as for the learning rate.
        samples: rows of the training batches over all processes, counting repetitions.
        unlabeled: those of the samples without a label; None if no batch says which have one.
        gpu_busy_share: see `BusyShare`; of this process's GPU, without time before a kill.
    """

    seconds: float = 0.0
    earlier_seconds: float = 0.0
    epochs: float = 0.0
    steps: int = 0
    samples: int = 0
    unlabeled: int | None = None
    gpu_busy_share: float | None = None


class CountBudget(pl.Callback):
    """Counts optimizer steps and samples, across kills.

    Args:
        ends_after: optimizer steps after which training stops, also within an epoch, which is still validated; None =
            never. Lightning's `max_steps` counts epochs differently and loses some on resume.
    """

    def __init__(self, ends_after: int | None = None) -> None:
        self.ends_after, self.steps = ends_after, 0
        self._batches, self._samples = 0, 0  # of this rank
        self._unlabeled: int | Tensor | None = None  # on the device: reading it would synchronize every step
        self._batches_per_epoch = 1

    @property
    def epochs(self) -> float:
        """Number of epochs, including the fraction of an unfinished one."""
        return self._batches / self._batches_per_epoch

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.steps = trainer.global_step
        self._batches += 1
        self._batches_per_epoch = int(trainer.num_training_batches)
        self._samples += _rows(batch)
        if isinstance(batch, Mapping) and LABELED in batch:
            unlabeled = (~batch[LABELED]).sum()
            self._unlabeled = unlabeled if self._unlabeled is None else self._unlabeled + unlabeled
        if self.steps == self.ends_after:
            trainer.should_stop = True

    def samples(self) -> int:
        """Samples over all ranks; a collective."""
        return sum(distributed.all_gather(self._samples))

    def count_unlabeled(self) -> int | None:
        """Samples without a label over all ranks, None if no batch says which have one; a collective."""
        counts = distributed.all_gather(None if self._unlabeled is None else int(self._unlabeled))
        return None if None in counts else sum(counts)

    def state_dict(self) -> dict[str, Any]:
        counted = {"batches": self._batches, "batches_per_epoch": self._batches_per_epoch}
        unlabeled = None if self._unlabeled is None else int(self._unlabeled)
        own = {"samples": self._samples, "unlabeled": unlabeled}
        return {"steps": self.steps, **counted, "ranks": distributed.all_gather(own)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps, self._batches = state_dict["steps"], state_dict["batches"]
        self._batches_per_epoch = state_dict["batches_per_epoch"]
        own = state_dict["ranks"][distributed.rank()]
        self._samples, self._unlabeled = own["samples"], own["unlabeled"]


def _rows(batch: Any) -> int:
    """Number of rows of the first tensor of a batch by name; 0 if it contains none."""
    values = batch.values() if isinstance(batch, Mapping) else batch
    return next((len(value) for value in values if isinstance(value, Tensor) and value.ndim), 0)


def _never_broadcast(task: LightningTask) -> list[str]:
    """Buffers that DDP need not broadcast before every forward: masks, positions and counts are the same on every rank."""
    return [name for name, buffer in task.named_buffers() if not buffer.is_floating_point()]


@contextmanager
def preserve_interrupt() -> Iterator[None]:
    """Context for `Trainer.fit`, which exits with status 1 on Ctrl-C, and on SIGTERM with 0, as if it had finished.

    Raises:
        KeyboardInterrupt: on Ctrl-C.
        Terminated: on SIGTERM.
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
    """Optimizer steps per epoch: its batches, or the trainer's limit, divided by devices and accumulation."""
    batches = math.ceil(len(data.train_dataloader()) / trainer.world_size)
    if trainer.limit_batches is not None:
        batches = min(batches, trainer.limit_batches)
    return math.ceil(batches / trainer.accumulate_grad_batches)


def fit(
    task: LightningTask,
    data: pl.LightningDataModule,
    *,
    epochs: int,
    steps: int | None = None,
    recipe: Recipe,
    trainer: TrainerSettings,
    loggers: list,
    directory: Path,
    callbacks: tuple[pl.Callback, ...] = (),
    resume_dir: Path | None = None,
    stage: str = "training",
    lr_key: str = "recipe.lr",
    phase: str = "training",
    first_step: int = 0,
) -> Trained:
    """Train `task` in place for `epochs` with its own `optimization`.

    Args:
        steps: optimizer steps after which it ends within its last epoch; None = at the end of that epoch.
        callbacks: must return all of their state from `state_dict`.
        resume_dir: a folder that survives a kill: training resumes from its checkpoint, if any, and writes one as `trainer`
            says. None: always start from the beginning.
        stage, lr_key: name of the training and the setting of its learning rate, for messages.
        phase, first_step: prefix of logged metric names, and optimizer steps taken earlier in this phase.
        Raises:
            Diverged: the loss or the weights are not finite; `resume_dir` is then removed.
            KeyboardInterrupt: Ctrl-C.
            Terminated: SIGTERM; raised at the end of the current step.
    """
    # Averages come first, so that masks are checked after averages replaced the weights.
    averages = () if recipe.ema is None else (AverageWeights(recipe.ema),)
    batches = trainer.accumulate_grad_batches
    accumulated = () if batches == 1 else (AverageLastStep(batches),)
    count, keep = CountBudget(steps), KeepEpochs(resume_dir if trainer.checkpoint else None, trainer.checkpoint_seconds)
    counted = (LogLearningRate(), count, keep)
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
    device = torch.device(trainer.device)
    faster = trainer.faster_steps(tries=True)
    with (
        _quiet_lightning(),
        _discard_diverged(resume_dir),
        preserve_interrupt(),
        track_time(TRAINING, stage),
        share_gpu(device),
        BusyShare(device) as busy,
        deterministic_algorithms(trainer.deterministic),
        channels_last(task.net, wanted=trainer.lays_channels_last),
        fuse_attention(task.net, wanted=trainer.on_gpu and not trainer.deterministic),
    ):
        lightning = trainer.build(
            epochs=epochs,
            gradient_clip=recipe.gradient_clip,
            callbacks=[YieldGpu(device), finite, *accumulated, *averages, *callbacks, *faster, *counted],
            loggers=[PhaseLogger(logger, phase, first_step=first_step) for logger in loggers],
            directory=directory,
        )
        try:
            lightning.fit(
                task, datamodule=TrainingData(data), ckpt_path=checkpoint_of(keep.folder, task), weights_only=True
            )
        except Exception as error:
            # a user's own worker may die of the signal before this process hears of it
            if lightning.received_sigterm or "killed by signal: Terminated" in str(error):
                raise Terminated from None
            if isinstance(error, ValueError) and not isinstance(error, Diverged):
                finite.explain(task.net)
            raise
        finite.check_weights(task.net)
    counts = count.epochs, count.steps, count.samples(), count.count_unlabeled()
    return Trained(keep.seconds, keep.earlier_seconds, *counts, busy.value)


@contextmanager
def _discard_diverged(resume_dir: Path | None) -> Iterator[None]:
    """Remove the checkpoint on divergence: resuming from it would diverge again."""
    try:
        yield
    except Diverged:
        if resume_dir is not None and distributed.rank() == 0:
            shutil.rmtree(resume_dir, ignore_errors=True)
        raise


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Silence Lightning's device list and its advice on loader workers, but not warnings about the training."""
    logger = logging.getLogger("pytorch_lightning")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*does not have many workers.*")
            warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # from Lightning's own code
            # Scores were computed with the same parameters before DDP got its own stream: one synchronization, harmless.
            warnings.filterwarnings("ignore", message=".*AccumulateGrad node's stream does not match.*")
            warnings.filterwarnings(
                "ignore", message="Total length of `DataLoader` across ranks is zero"
            )  # nothing held out
            # advice to start Lightning by srun, which is not needed, not even inside a Slurm job
            warnings.filterwarnings("ignore", message=".*`srun` command is available.*")
            # every rank validates the whole split, so there is nothing to reduce
            warnings.filterwarnings("ignore", message=".*sync_dist=True.*")
            warnings.filterwarnings(
                "ignore", message=".*number of training batches.*is smaller than the logging interval.*"
            )
            yield
    finally:
        logger.setLevel(level)


class YieldGpu(pl.Callback):
    """Lightning callback that calls `yield_gpu` before each batch of training or validation.

    Each rank checks its own GPU; while one pauses, the others wait in their next collective.

    Args:
        device: that this process trains on.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def on_train_batch_start(self, *_: Any) -> None:
        yield_gpu(self.device)

    def on_validation_batch_start(self, *_: Any) -> None:
        yield_gpu(self.device)
