"""Log each training of a run on its own axes, with its learning rate."""

from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers import Logger, WandbLogger
from torch.optim import Optimizer


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
