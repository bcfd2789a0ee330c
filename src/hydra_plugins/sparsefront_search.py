"""Hydra's door to `sparsefront.search`: Hydra takes sweepers from this namespace alone."""

from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class OptunaSweeper(Sweeper):
    """See conf/hydra/sweeper/optuna.yaml for the settings."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from hydra.core.plugins import Plugins

        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        from pathlib import Path

        from sparsefront.config.command_line import BadInput, report_errors_briefly
        from sparsefront.errors import InvalidSetting
        from sparsefront.search.sweep import run_search

        try:
            with report_errors_briefly(self.config, Path(self.config.results_dir)):
                run_search(arguments, self.settings, self.config, self.launcher, self.validate_batch_is_legal)
        except InvalidSetting as error:
            raise BadInput(str(error)).exit() from error


class PointsSweeper(Sweeper):
    """See conf/hydra/sweeper/points.yaml for the settings."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.loader, self.config = hydra_context.config_loader, config

    def sweep(self, arguments: list[str]) -> None:
        from sparsefront.config.command_line import BadInput, compose_point
        from sparsefront.errors import InvalidSetting
        from sparsefront.points import run_points

        try:
            run_points(
                arguments, self.settings, self.config, lambda point: compose_point(self.config, self.loader, point)
            )
        except InvalidSetting as error:
            raise BadInput(str(error)).exit() from error
