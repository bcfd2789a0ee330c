"""The sweeper's own settings, checked before a study begins."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any

from omegaconf import DictConfig, OmegaConf
from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt

from sparsefront.declared.settings_class import settings_class
from sparsefront.declared.values import checked_values
from sparsefront.errors import InvalidSetting, first_line, keys_of

SWEEPER_KEY = "hydra.sweeper"
LONGEST_NAME = 100  # bytes; names of files are made of it
Seed = Annotated[int, Field(ge=0, lt=2**31)] | None


def _file_name(name: str) -> str:
    if not name or name.startswith(".") or "/" in name or not name.isprintable() or len(name.encode()) > LONGEST_NAME:
        raise ValueError(f"must be a file name: without /, with no dot in front, of at most {LONGEST_NAME} bytes")
    return name


def _by_key(params: Any) -> Any:
    plain: Any = OmegaConf.to_container(params) if isinstance(params, DictConfig) else params
    if not isinstance(plain or {}, dict):
        raise ValueError("must hold overrides by key, such as {sparsity: 'interval(0.5,0.95)'}")
    return plain or {}


@settings_class(kw_only=True)
class SearchSettings:
    """See conf/hydra/sweeper/optuna.yaml."""

    study: Annotated[str, AfterValidator(_file_name)]
    storage: str | None
    n_trials: PositiveInt
    batch: PositiveInt
    params: Annotated[dict[str, Any], BeforeValidator(_by_key)]
    sampler: object


def search_settings(settings: Mapping[str, Any]) -> SearchSettings:
    """The sweeper's settings.

    Raises:
        InvalidSetting: one is unknown or wrong, or the sampler does not take its own.
    """
    known = [field.name for field in fields(SearchSettings)]
    for key in settings.keys() - set(known):
        raise InvalidSetting(f"{SWEEPER_KEY}.{key}", settings[key], f"is no setting; there are {', '.join(known)}")
    with keys_of(SWEEPER_KEY):
        checked = SearchSettings(**settings)
    _require_sampler(checked.sampler)
    return checked


def _require_sampler(sampler: Any) -> None:
    from hydra.utils import instantiate

    group = f"{SWEEPER_KEY}.sampler"
    if not isinstance(sampler, Mapping | DictConfig) or "_target_" not in sampler:
        raise InvalidSetting(
            group, sampler, f"is no sampler: choose one with {SWEEPER_KEY.replace('.', '/')}/sampler=tpe"
        )
    with keys_of(group):
        checked_values({"seed": sampler.get("seed")}, {"seed": Seed})
    try:
        instantiate(sampler)
    except Exception as error:
        told = first_line(error.__cause__ or error)
        raise InvalidSetting(group, sampler["_target_"], f"does not take its settings: {told}") from error
