"""What a sweep asks for that Hydra would answer with a stack trace, or with nothing at all; looked at before the first point."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, ValueType
from omegaconf import DictConfig, OmegaConf

from sparsefront.arguments import GROUPS
from sparsefront.errors import InvalidSetting
from sparsefront.group_options import options_of, searched_folders

OPTUNA_ONLY = "needs hydra/sweeper=optuna (extra `sweep`); a plain sweep takes a,b or range(START,STOP,STEP)"


def check_sweep(config: DictConfig) -> None:
    """Require values for each key that is swept over, of a kind that the sweeper takes, and processes to run the points.

    Args:
        config: of the multirun, Hydra's own part included.
    Raises:
        InvalidSetting: the first key that would end the sweep, or leave it without a point.
    """
    for part in ("launcher", "sweeper"):
        if OmegaConf.select(config, f"hydra.{part}.n_jobs") == 0:
            raise InvalidSetting(f"hydra.{part}.n_jobs", 0, "takes 1 or more, or -1 for one per core")
    if not str(config.hydra.sweeper.get("_target_")).endswith(".BasicSweeper"):
        return
    folders = searched_folders(config.hydra.runtime.get("config_sources") or ())
    for override in _swept(config):
        key, value = override.get_key_element(), str(override.input_line).partition("=")[2]
        if not override.is_discrete_sweep():
            raise InvalidSetting(key, value, OPTUNA_ONLY)
        _require_values(override, key, value, folders)


def overrides_of_sweep(config: DictConfig) -> list[str]:
    """Those of the sweeper's configuration, where it holds any by key, and those that were typed."""
    params = config.hydra.sweeper.get("params")
    given = [f"{key}={value}" for key, value in params.items()] if OmegaConf.is_dict(params) else []
    return [*given, *config.hydra.overrides.task]


def _swept(config: DictConfig) -> Iterator[Override]:
    for override in OverridesParser.create().parse_overrides(overrides_of_sweep(config)):
        if override.is_sweep_override():
            yield override


def _require_values(override: Override, key: str, value: str, folders: Sequence[Path]) -> None:
    pattern: Any = override.value()
    if override.value_type is not ValueType.GLOB_CHOICE_SWEEP or not isinstance(pattern, Glob):
        if not any(True for _ in override.sweep_string_iterator()):
            raise InvalidSetting(key, value, "is no value at all, so that the sweep has no points")
        return
    if key in GROUPS and not pattern.filter(options := options_of(key, folders)):
        raise InvalidSetting(key, value, f"finds no option of the group; there are {', '.join(options)}")
