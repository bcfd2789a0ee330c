"""What a configuration's values may be by themselves: names, types and ranges of the root keys, types of each group's.

Needs neither torch nor Lightning, so that a slip is answered at once.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import AfterValidator, Field

from sparsefront.config.schema import CONTROLS, GROUPS, STAGES, Config
from sparsefront.config.settings import say_where, typed_settings
from sparsefront.errors import InvalidSetting, UnknownKey, closest
from sparsefront.results.record import result_fields
from sparsefront.settings_class import Fraction, OneOrMore, checked_values, in_words


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
        with named_as_typed(config, choices, folders):
            typed_settings(group, config[group], choices.get(group))


def check_root_types(config: DictConfig) -> None:
    """Those of the root's keys.

    Raises:
        InvalidSetting: the first value of a wrong type or out of its range.
    """
    checked_values({key: plain(OmegaConf.select(config, key)) for key in ROOT_TYPES}, ROOT_TYPES)


@contextmanager
def named_as_typed(config: DictConfig, choices: Mapping[str, str], folders: Sequence[Path]) -> Iterator[None]:
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


# The checks of the root keys, which belong to no group: their names, types and values.


def check_root(config: DictConfig) -> None:
    """Check the names, types and values of the root keys that no group builds.

    Raises:
        InvalidSetting: the first key that cannot work: its value, what is allowed.
    """
    known = [f.name for f in fields(Config)]
    for key in config:
        if key not in known:
            raise InvalidSetting(str(key), config[key], f"unknown key; the root takes {', '.join(known)}")
    check_root_types(config)
    names = [field.name for field in result_fields()]
    for name in map(field_of, config.optimize):
        if name not in names:
            allowed = (
                f"is not a field of the result; closest are {closest(name, names)}, and any row.json holds them all"
            )
            raise InvalidSetting("optimize", name, allowed)
    if config.control is not None and config.control not in CONTROLS:
        raise InvalidSetting("control", config.control, f"is one of {', '.join(CONTROLS)}, or null for none")
    if "swap" in config.stages and "measure" not in config.stages:
        allowed = "swap chooses kernels for what measure runs: add measure, or leave swap out"
        raise InvalidSetting("stages", f"[{','.join(config.stages)}]", f"{allowed}; there are {', '.join(STAGES)}")
    if not config.cache_dir:
        raise InvalidSetting("cache_dir", "", "names no folder; the folder you stand in is .")
    cache = Path(config.cache_dir)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=cache).close()
    except OSError as error:
        raise InvalidSetting(
            "cache_dir", cache, f"cannot be written ({error.strerror}); name another folder"
        ) from error


def field_of(text: str) -> str:
    """The field of the result that an entry of `optimize` names, without its direction."""
    return text.rpartition(":")[2]
