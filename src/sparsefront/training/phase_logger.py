"""What the trainings of one run log: each phase on axes of its own, with its learning rate."""

from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers import Logger, WandbLogger
from torch.optim import Optimizer


class PhaseLogger(Logger):
    """A logger of a run for one of its trainings: each metric gets the name of the phase, such as `dense/train/loss`.

    In W&B such metrics are drawn over `dense/step`.

    Args:
        logger: of the run.
        first_step: of the phase, in optimizer steps, which this training begins with.
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
        named = {f"{self._phase}/{name}": value for name, value in metrics.items()}
        place = None if step is None else self._first_step + step
        if place is not None and isinstance(self._logger, WandbLogger):
            named, place = named | {f"{self._phase}/step": place}, None  # W&B would draw it over Lightning's own steps
        self._logger.log_metrics(named, place)

    def log_hyperparams(self, *arguments: Any, **options: Any) -> None:
        self._logger.log_hyperparams(*arguments, **options)

    def save(self) -> None:
        self._logger.save()

    def finalize(self, status: str) -> None:
        self._logger.finalize(status)


class LogLearningRate(pl.Callback):
    """Lightning callback that logs the learning rate of each step whose loss is logged as `lr`, the highest where several differ.

    Lightning's LearningRateMonitor names it by optimizer and parameter group, and shows it among the metrics of an epoch.
    """

    def on_before_optimizer_step(self, trainer: pl.Trainer, module: pl.LightningModule, optimizer: Optimizer) -> None:
        if trainer.loggers and (trainer.global_step + 1) % trainer.log_every_n_steps == 0:
            rate = max(float(group["lr"]) for group in optimizer.param_groups)
            for logger in trainer.loggers:
                logger.log_metrics({"lr": rate}, step=trainer.global_step)
