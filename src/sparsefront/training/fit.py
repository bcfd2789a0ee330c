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
from torch import Tensor, nn

from sparsefront import distributed
from sparsefront.errors import InvalidSetting, Terminated
from sparsefront.gpu import shared, yield_gpu
from sparsefront.networks import first_non_finite, zero_pruned
from sparsefront.progress import TRAINING, spent_on
from sparsefront.tasks.lightning_modules import LightningTask
from sparsefront.training.compilation import channels_last, deterministic_algorithms
from sparsefront.training.lightning_parts import AverageLastStep
from sparsefront.training.phase_logger import LogLearningRate, PhaseLogger
from sparsefront.training.recipe import Optimization, Recipe
from sparsefront.training.resume import KeepEpochs, SaveEpochWeights, TrainingData, checkpoint_of
from sparsefront.training.trainer import TrainerSettings, require_room

# The actual extent of a training, counted instead of planned.


@dataclass(frozen=True)
class Trained:
    """The extent of one training.

    Args:
        seconds: wall clock, excluding waits for other processes and including time before a kill.
        earlier_seconds: the part before a kill, which the stage's clock does not include.
        epochs: passes over the data, possibly fractional.
        steps: optimizer steps, including those skipped by the fp16 loss scaler, as for the learning rate.
        samples: rows of the training batches over all processes, counting repetitions.
    """

    seconds: float = 0.0
    earlier_seconds: float = 0.0
    epochs: float = 0.0
    steps: int = 0
    samples: int = 0


class CountBudget(pl.Callback):
    """Counts optimizer steps and samples, across kills.

    Args:
        ends_after: optimizer steps after which training stops, also within an epoch, which is still validated; None =
            never. Lightning's `max_steps` counts epochs differently and loses some on resume.
    """

    def __init__(self, ends_after: int | None = None) -> None:
        self.ends_after, self.steps = ends_after, 0
        self._batches, self._samples = 0, 0  # of this rank
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
        if self.steps == self.ends_after:
            trainer.should_stop = True

    def samples(self) -> int:
        """Samples over all ranks; a collective."""
        return sum(distributed.all_gather(self._samples))

    def state_dict(self) -> dict[str, Any]:
        counted = {"batches": self._batches, "batches_per_epoch": self._batches_per_epoch}
        return {"steps": self.steps, **counted, "samples": distributed.all_gather(self._samples)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps, self._batches = state_dict["steps"], state_dict["batches"]
        self._batches_per_epoch = state_dict["batches_per_epoch"]
        self._samples = state_dict["samples"][distributed.rank()]


def _rows(batch: Any) -> int:
    """Number of rows of the first tensor of a batch by name; 0 if it contains none."""
    values = batch.values() if isinstance(batch, Mapping) else batch
    return next((len(value) for value in values if isinstance(value, Tensor) and value.ndim), 0)


# Lightning turns interrupts into a plain exit; restore the reason.


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
        resume_dir: a folder that survives a kill: training resumes from its checkpoint, if any, and writes one after each
            epoch but the last. None: always start from the beginning.
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
    count, keep = CountBudget(steps), KeepEpochs(resume_dir if trainer.checkpoint else None)
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
        _discarded_where_diverged(resume_dir),
        preserve_interrupt(),
        spent_on(TRAINING, stage),
        shared(device),
        deterministic_algorithms(trainer.deterministic),
        channels_last(task.net, wanted=trainer.lays_channels_last),
    ):
        lightning = trainer.build(
            epochs=epochs,
            gradient_clip=recipe.gradient_clip,
            callbacks=[
                YieldGpu(device),
                finite,
                *accumulated,
                *averages,
                *callbacks,
                *faster,
                *counted,
            ],
            loggers=[PhaseLogger(logger, phase, first_step=first_step) for logger in loggers],
            directory=directory,
        )
        try:
            lightning.fit(task, datamodule=TrainingData(data), ckpt_path=checkpoint_of(keep.folder), weights_only=True)
        except Exception as error:
            # a user's own worker may die of the signal before this process hears of it
            if lightning.received_sigterm or "killed by signal: Terminated" in str(error):
                raise Terminated from None
            if isinstance(error, ValueError) and not isinstance(error, Diverged):
                finite.explain(task.net)
            raise
        finite.check_weights(task.net)
    return Trained(keep.seconds, keep.earlier_seconds, count.epochs, count.steps, count.samples())


def _never_broadcast(task: LightningTask) -> list[str]:
    """Buffers that DDP need not broadcast before every forward: masks, positions and counts are the same on every rank."""
    return [name for name, buffer in task.named_buffers() if not buffer.is_floating_point()]


@contextmanager
def _discarded_where_diverged(resume_dir: Path | None) -> Iterator[None]:
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


EVERY = 10  # batches between reads of the losses


class Diverged(InvalidSetting):
    """Raised when a training's loss or weights are not finite.

    Args:
        key: the setting to lower first.
        value: the learning rate at that step.
        message: the complete line.
    """

    def __init__(self, key: str, value: float, message: str) -> None:
        super().__init__(key, value, message)

    def __str__(self) -> str:
        return self.allowed


@dataclass(frozen=True)
class _Moment:
    """A point in training: epoch and optimizer step, from 1, and the learning rate of that step."""

    epoch: int
    step: int
    lr: float


class StopAtDivergence(pl.Callback):
    """Lightning callback that raises `Diverged` if the loss is not finite.

    Losses stay on the device and are read several at a time, so that steps do not synchronize. Ranks sum theirs and stop at
    the same batch. Weights are checked at the end of each epoch and of the training, before they are stored. A step skipped by
    the fp16 loss scaler is no divergence: only its scaled gradients overflowed.

    Lightning's own tools differ: `EarlyStopping(check_finite=True)` checks once per epoch and ends the training as if it had
    finished; `detect_anomaly` doubles the time and treats overflows that the scaler handles as errors.

    Args:
        stage: name of the training, for the message.
        lr_key: the setting of its learning rate.
        recipe, precision: of this training, for advice.
    """

    def __init__(self, *, stage: str, lr_key: str, recipe: Recipe, precision: str) -> None:
        self.stage, self.lr_key, self.recipe, self.precision = stage, lr_key, recipe, precision
        self._now = _Moment(1, 1, 0.0)
        self._unread: list[tuple[_Moment, Tensor]] = []
        self._epochs: int | None = None
        self._begun = False

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        rates = [group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups]
        self._now = _Moment(trainer.current_epoch + 1, trainer.global_step + 1, float(max(rates, default=0.0)))
        self._epochs = trainer.max_epochs

    def on_before_backward(self, trainer: pl.Trainer, module: pl.LightningModule, loss: Tensor) -> None:
        """Read the very first loss immediately, before any weight has changed; not in fp16, where the loss is scaled and its
        scaler would skip such a step.
        """
        if self._now.step == 1 and not self._begun and self.precision != "16-mixed":
            self._unread = [(self._now, loss.detach())]
            self._read_losses()
        self._begun = True

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, Tensor):
            self._unread.append((self._now, loss.detach()))
        if len(self._unread) == EVERY or trainer.is_last_batch:
            self._read_losses()

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._read_losses()  # the rest of an epoch cut short by a step limit
        self.check_weights(module)

    def check_weights(self, module: nn.Module) -> None:
        """Raise `Diverged` if a parameter is not finite. Not a collective: all ranks have the same weights."""
        if (found := first_non_finite(dict(module.named_parameters()))) is not None:
            name = found.name.removeprefix("net.")
            raise self._diverged(self._now, f"{name} is not finite, {found.counts} values")

    def explain(self, module: nn.Module) -> None:
        """Raise `Diverged` if that explains another error, such as masks that cannot be made from non-finite weights before
        losses are read. Not a collective: not all ranks may have failed.
        """
        self._check([(moment, float(loss)) for moment, loss in self._unread])
        self.check_weights(module)

    def _read_losses(self) -> None:
        if not self._unread:
            return
        moments, losses = zip(*self._unread, strict=True)
        self._unread = []
        # In fp64 a sum of finite losses cannot overflow; NaN and infinity of any rank propagate.
        self._check(list(zip(moments, distributed.all_reduce_sum(torch.stack(losses).double()).tolist(), strict=True)))

    def _check(self, losses: list[tuple[_Moment, float]]) -> None:
        for moment, loss in losses:
            if not math.isfinite(loss):
                what = f"the loss is {loss}"
                raise self._unusable_data(moment, what) if moment.step == 1 else self._diverged(moment, what)

    def _diverged(self, moment: _Moment, what: str) -> Diverged:
        remedies = [f"lower {self.lr_key}"]
        if self.recipe.gradient_clip is None:
            remedies.append("set recipe.gradient_clip=1")
        return self._error(moment, f"diverged: {what}", [*remedies, *self._full_precision()])

    def _unusable_data(self, moment: _Moment, what: str) -> Diverged:
        """The error for a non-finite first loss, which no learning rate can have caused."""
        remedies = ["look for NaN and extreme values in the data", *self._full_precision()]
        return self._error(moment, f"cannot train: {what} before any weight changed", remedies)

    def _full_precision(self) -> list[str]:
        return [] if self.precision == "32-true" else [f"set trainer.precision=32-true (now {self.precision})"]

    def _error(self, moment: _Moment, what: str, remedies: list[str]) -> Diverged:
        where = f"epoch {moment.epoch} of {self._epochs}, step {moment.step}, learning rate {moment.lr:.4g}"
        message = f"stage {self.stage} {what} ({where}); {' or '.join(remedies)}. Nothing of this training is stored"
        return Diverged(self.lr_key, moment.lr, message)


# Exponential moving average (EMA) of the weights, under masks.


class AverageWeights(pl.Callback):
    """Averages the weights after every optimizer step: average <- decay * average + (1 - decay) * weight.

    The averages replace the weights during validation and permanently at the end. After masks tighten, averages still contain
    traces of pruned weights, so the current masks are applied whenever they are swapped in. Floating-point buffers (running
    statistics) are averaged too.

    Lightning's `EMAWeightAveraging` is not used: it averages every buffer, so a bool mask would keep whatever was ever kept,
    and writes averaged masks back to the network.

    Args:
        decay: in (0, 1); the average spans about 1 / (1 - decay) steps.
    Source: Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992; the exponential form as
        in Tarvainen and Valpola, "Mean teachers are better role models", 2017.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self._averages: dict[str, Tensor] = {}
        self._set_aside: dict[str, Tensor] = {}
        self._step = 0

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        current = dict(_averaged(module))
        if not self._averages:
            self._averages = {name: tensor.clone() for name, tensor in current.items()}
        self._averages = {name: average.to(current[name].device) for name, average in self._averages.items()}
        self._step = trainer.global_step

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self._step:
            return  # gradients were only accumulated
        self._step = trainer.global_step
        current = dict(_averaged(module))
        torch._foreach_lerp_(list(self._averages.values()), [current[n] for n in self._averages], 1 - self.decay)

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self._averages:
            self._set_aside = {name: tensor.clone() for name, tensor in _averaged(module)}
            self._put_in(module)

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        _copy(self._set_aside, module)
        self._set_aside = {}

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._put_in(module)

    def state_dict(self) -> dict[str, Any]:
        return {"averages": self._averages}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._averages = dict(state_dict["averages"])

    def _put_in(self, module: nn.Module) -> None:
        _copy(self._averages, module)
        zero_pruned(module)


def _averaged(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The averaged tensors, by their names in the network."""
    for name, parameter in module.named_parameters():
        yield name, parameter.detach()
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point():
            yield name, buffer


def _copy(source: dict[str, Tensor], module: nn.Module) -> None:
    for name, tensor in _averaged(module):
        if name in source:
            tensor.copy_(source[name])


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
