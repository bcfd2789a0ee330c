"""Each value of a configuration by its own type and range, whatever stands beside it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import AfterValidator, Field

from sparsefront.config import GROUPS, STAGES, Config
from sparsefront.declared.types import Fraction, OneOrMore
from sparsefront.declared.values import checked_values
from sparsefront.declared.words import in_words
from sparsefront.errors import InvalidSetting, UnknownKey
from sparsefront.group_options import say_where
from sparsefront.settings import typed_settings


def _each_once(stages: list[str]) -> list[str]:
    if again := [stage for stage in dict.fromkeys(stages) if stages.count(stage) > 1]:
        raise ValueError(f"names {', '.join(again)} more than once; a run goes through each stage once")
    return stages


Seed = Annotated[int, Field(ge=0, lt=2**32)]  # what NumPy's generators take
# What the typed root cannot say: OmegaConf knows types, and no ranges.
ROOT_TYPES = {
    "seed": Seed,
    "recovery.seed": Seed,
    "sparsity": Annotated[Fraction, Field(description="the fraction of zeros")],
    "stages": Annotated[OneOrMore[Literal[STAGES]], AfterValidator(_each_once)],
}


def require_root_type(key: str, value: Any, typed: str) -> None:
    """A value for a root key must be what the typed root takes: the text "5" for a whole number too.

    Args:
        value: as Hydra reads it.
        typed: the same as the user wrote it.
    Raises:
        InvalidSetting: a value of another type; says what the key takes.
    """
    try:
        OmegaConf.structured(Config)[key] = value
    except OmegaConfBaseException as error:
        hints = get_type_hints(Config) | ROOT_TYPES
        raise InvalidSetting(key, typed, f"must be {in_words(hints[key])}") from error


def check_types(config: DictConfig, choices: dict[str, str], folders: Sequence[Path]) -> None:
    """Each value of a configuration by its own type and range alone: what goes together is not looked at, nothing is built.

    Args:
        choices: group -> the name of its option.
        folders: those that Hydra searches for options.
    Raises:
        InvalidSetting: the first value that no other setting could make right.
    """
    check_root_types(config)
    for group in GROUPS:
        with told_where_typed(config, choices, folders):
            typed_settings(group, config[group], choices.get(group))


def check_root_types(config: DictConfig) -> None:
    """Those of the root's keys.

    Raises:
        InvalidSetting: the first value of a wrong type or out of its range.
    """
    checked_values({key: plain(OmegaConf.select(config, key)) for key in ROOT_TYPES}, ROOT_TYPES)


@contextmanager
def told_where_typed(config: DictConfig, choices: Mapping[str, str], folders: Sequence[Path]) -> Iterator[None]:
    """A complaint about a group names what the user types: the root's granularity, which a pattern reads, and for an unknown
    key the options that take it.

    Args:
        choices: group -> the name of its option.
        folders: those that Hydra searches for options.
    """
    try:
        yield
    except UnknownKey as error:
        raise say_where(error, choices, folders) from error
    except InvalidSetting as error:
        typed_at_root = error.key == "pattern.granularity" and config.granularity is not None
        raise InvalidSetting("granularity", error.value, error.allowed) if typed_at_root else error from error


def plain(node: Any) -> Any:
    """A node of the configuration as Python's own containers; anything else as it is."""
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
