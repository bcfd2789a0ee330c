"""What a Lightning Trainer gets besides settings: gradients of short last steps, averaged weights, divergence, logs, progress."""

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.callbacks import TQDMProgressBar
from pytorch_lightning.loggers import Logger, WandbLogger
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor, nn
from torch.optim import Optimizer
from tqdm import tqdm

from sparsefront import distributed
from sparsefront.errors import InvalidSetting
from sparsefront.networks import first_non_finite, zero_pruned
from sparsefront.progress import bar
from sparsefront.tasks.lightning_modules import TRAIN_LOSS
from sparsefront.training.recipe import Recipe


class AverageLastStep(pl.Callback):
    """Lightning callback that averages the gradients of an epoch's last step over its actual number of batches.

    Lightning divides every loss by `accumulate_grad_batches`, which is too much for a shorter last step. Put it before all
    callbacks that read gradients.

    Args:
        batches: per optimizer step.
    """

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self._accumulated = 0

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        self._accumulated = batch_idx % self.batches + 1  # batches of this step so far

    @torch.no_grad()
    def on_before_optimizer_step(self, trainer: pl.Trainer, module: pl.LightningModule, optimizer: Optimizer) -> None:
        if self._accumulated < self.batches:
            trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            torch._foreach_mul_([one.grad for one in trained if one.grad is not None], self.batches / self._accumulated)


# Progress: a bar on a terminal, lines elsewhere; it shows the loss, which synchronizes with the GPU.

log = logging.getLogger(__name__)
SECONDS_BETWEEN_LINES = 60


class EpochBar(TQDMProgressBar):
    """Lightning's bar with epochs from 1 to n, known totals, and no version number of the logger's folder."""

    def init_train_tqdm(self) -> tqdm:
        return bar(description=self._epoch(), total=self.trainer.num_training_batches, unit="batch", leave=True)

    def init_validation_tqdm(self) -> tqdm:
        return bar(description="validation", total=sum(self.trainer.num_val_batches), unit="batch")

    def on_train_epoch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self.train_progress_bar.reset()
        self.train_progress_bar.set_description(self._epoch())

    def on_validation_batch_start(self, *_: Any) -> None:
        """Skip Lightning's dataloader index: there is only one."""

    def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        metrics = super().get_metrics(trainer, pl_module)
        loss = trainer.callback_metrics.get(TRAIN_LOSS)
        if loss is not None:
            metrics = {TRAIN_LOSS: float(loss)} | metrics  # read only when the bar is refreshed
        return {name: value for name, value in metrics.items() if name != "v_num"}

    def _epoch(self) -> str:
        return f"epoch {self.trainer.current_epoch + 1} of {self.trainer.max_epochs}"


class EpochLines(pl.Callback):
    """Replaces the bar by a line after an epoch, if the last one was long enough ago."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.is_global_zero and time.monotonic() - self._last >= SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            metrics = {name: f"{float(value):.4g}" for name, value in sorted(trainer.callback_metrics.items())}
            summary = ", ".join(f"{name} {value}" for name, value in metrics.items())
            log.info("epoch %d of %d: %s", trainer.current_epoch + 1, trainer.max_epochs, summary)


class PhaseLogger(Logger):
    """Wraps a run's logger for one training: metric names get the phase as prefix, such as `dense/train/loss`.

    W&B plots such metrics over `dense/step`.

    Args:
        logger: of the run.
        first_step: optimizer steps of the phase before this training.
    """

    def __init__(self, logger: Logger, phase: str, *, first_step: int = 0) -> None:
        super().__init__()
        self._logger, self._phase, self._first_step = logger, phase, first_step
        if isinstance(logger, WandbLogger):
            logger.experiment.define_metric(f"{phase}/step")
            logger.experiment.define_metric(f"{phase}/*", step_metric=f"{phase}/step")

    @property
    def name(self) -> str | None:
        return self._logger.name

    @property
    def version(self) -> int | str | None:
        return self._logger.version

    @property
    def save_dir(self) -> str | None:
        return self._logger.save_dir

    @property
    def experiment(self) -> Any:
        return self._logger.experiment

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        phase_metrics = {f"{self._phase}/{name}": value for name, value in metrics.items()}
        place = None if step is None else self._first_step + step
        if place is not None and isinstance(self._logger, WandbLogger):
            phase_metrics, place = (
                phase_metrics | {f"{self._phase}/step": place},
                None,
            )  # otherwise W&B would use Lightning's own steps
        self._logger.log_metrics(phase_metrics, place)

    def log_hyperparams(self, *arguments: Any, **options: Any) -> None:
        self._logger.log_hyperparams(*arguments, **options)

    def save(self) -> None:
        self._logger.save()

    def finalize(self, status: str) -> None:
        self._logger.finalize(status)


class LogLearningRate(pl.Callback):
    """Lightning callback that logs the learning rate as `lr` (the highest one) at the first step and wherever the loss is logged.

    Lightning's LearningRateMonitor names it by optimizer and parameter group, and shows it among an epoch's metrics.
    """

    def on_before_optimizer_step(self, trainer: pl.Trainer, module: pl.LightningModule, optimizer: Optimizer) -> None:
        logged = trainer.global_step == 0 or (trainer.global_step + 1) % trainer.log_every_n_steps == 0
        if trainer.loggers and logged:
            rate = max(float(group["lr"]) for group in optimizer.param_groups)
            for logger in trainer.loggers:
                logger.log_metrics({"lr": rate}, step=trainer.global_step)


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
        current = dict(_list_averages(module))
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
        current = dict(_list_averages(module))
        torch._foreach_lerp_(list(self._averages.values()), [current[n] for n in self._averages], 1 - self.decay)

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self._averages:
            self._set_aside = {name: tensor.clone() for name, tensor in _list_averages(module)}
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


def _list_averages(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The averaged tensors, by their names in the network."""
    for name, parameter in module.named_parameters():
        yield name, parameter.detach()
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point():
            yield name, buffer


def _copy(source: dict[str, Tensor], module: nn.Module) -> None:
    for name, tensor in _list_averages(module):
        if name in source:
            tensor.copy_(source[name])


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
        bad_tensor = first_non_finite(dict(module.named_parameters()))
        if bad_tensor is not None:
            name = bad_tensor.name.removeprefix("net.")
            raise self._explain_divergence(self._now, f"{name} is not finite, {bad_tensor.counts} values")

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
                raise self._unusable_data(moment, what) if moment.step == 1 else self._explain_divergence(moment, what)

    def _explain_divergence(self, moment: _Moment, what: str) -> Diverged:
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


class ExchangeAfterBackward(DDPStrategy):
    """Lightning's strategy for existing ranks, without DDP's wrapper: the same gradients, bits and metrics.

    Floating-point buffers, such as BatchNorm statistics, are broadcast from rank 0 before every forward, as in DDP.

    Args:
        compress: exchange gradients as bf16, half the bytes.
        options: of `DDPStrategy`.
    """

    def __init__(self, *, compress: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._compress, self._accumulates = compress, False
        self._named: list[tuple[str, nn.Parameter]] = []
        self._exchanged: list[str] | None = None  # the parameters with gradients in the first step

    def configure_ddp(self) -> None:
        """Broadcast parameters and buffers of rank 0 instead of wrapping the module."""
        _broadcast([parameter.detach() for parameter in self.model.parameters()])
        self._named = [(name, one) for name, one in self.model.named_parameters() if one.requires_grad]
        self._share_buffers()

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self._share_buffers()
        return super().training_step(*args, **kwargs)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        self._share_buffers()
        return super().validation_step(*args, **kwargs)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Context for batches that are not followed by an optimizer step."""
        self._accumulates = True
        try:
            yield
        finally:
            self._accumulates = False

    def post_backward(self, closure_loss: Tensor) -> None:
        super().post_backward(closure_loss)
        if not self._accumulates:
            known = [(name, parameter) for name, parameter in self._named if parameter.grad is not None]
            self._require_the_same([name for name, _ in known])
            average_gradients([parameter for _, parameter in known], compress=self._compress)

    def _share_buffers(self) -> None:
        _broadcast([buffer for buffer in self.model.buffers() if buffer.is_floating_point()])

    def _require_the_same(self, names: list[str]) -> None:
        """Check that every rank has gradients of the same parameters in every step: they are exchanged by position.

        Raises:
            RuntimeError: names a parameter that has a gradient on some ranks or in some steps only.
        """
        if self._exchanged is None:
            for others in distributed.all_gather(names):
                _require_equal(names, others, "on all ranks")
            self._exchanged = names
        elif names != self._exchanged:
            _require_equal(names, self._exchanged, "in all steps")


def average_gradients(parameters: Sequence[nn.Parameter], *, compress: bool = False) -> None:
    """Replace this rank's gradients by the mean over ranks; a collective over the same parameters.

    Args:
        parameters: with gradients.
        compress: exchange them as bf16.
    """
    for dtype in dict.fromkeys(parameter.grad.dtype for parameter in parameters):
        alike = [parameter for parameter in parameters if parameter.grad.dtype == dtype]
        mean = torch.cat([parameter.grad.reshape(-1) for parameter in alike])
        if compress:
            mean = mean.to(torch.bfloat16)
        mean /= distributed.world_size()  # before the sum, as in DDP
        dist.all_reduce(mean)
        for parameter, values in zip(alike, _parts(mean.to(dtype), alike), strict=True):
            parameter.grad = values.view_as(parameter)


def _broadcast(tensors: Sequence[Tensor]) -> None:
    """Broadcast tensors from rank 0, all of one dtype at once."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        alike = [tensor for tensor in tensors if tensor.dtype == dtype]
        together = torch.cat([tensor.reshape(-1) for tensor in alike])
        dist.broadcast(together, src=0)
        for tensor, values in zip(alike, _parts(together, alike), strict=True):
            tensor.copy_(values.view_as(tensor))


def _parts(together: Tensor, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    return together.split([tensor.numel() for tensor in tensors])


def _require_equal(names: list[str], others: list[str], where: str) -> None:
    differ = sorted(set(names) ^ set(others))
    if differ:
        raise RuntimeError(
            f"trainer.exchange_gradients=after_backward: parameter {differ[0]} has a gradient, but not {where}; "
            "use during_backward"
        )
