"""Validate settings: the keys, types and ranges of each group's option and of the root.

Needs neither torch nor Lightning, so that errors are reported quickly."""

import importlib.util
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import AfterValidator, Field, ValidationError

from sparsefront.config.schema import CONTROLS, GROUPS, STAGES, Config
from sparsefront.errors import InvalidSetting, UnknownKey, closest, first_line, keys_of, unknown_key
from sparsefront.options import TARGET, class_named, program_command, target_values
from sparsefront.results.record import result_fields
from sparsefront.settings_class import (
    Fraction,
    OneOrMore,
    parameters_of,
    rejection,
    validate_arguments,
    validate_values,
)

KEYS_OF_THE_RUN = {"recovery": ("seed",)}
"""Group keys that conf/config.yaml adds to any option, and that the run reads itself."""


def build_settings(
    group: str,
    node: DictConfig | None,
    chosen: str | None = None,
    *,
    base: type = object,
    trust: Sequence[str] | None = None,
) -> Any:
    """Instantiate a group's settings.

    Args and Raises: as in `validate_settings`, and InvalidSetting for values that the class itself rejects.
    """
    target, values = validate_settings(group, node, chosen, base=base, trust=trust)
    with keys_of(group):
        try:
            return target(**values)
        except ValidationError as error:  # from a user's class that uses pydantic
            raise rejection(error, values, parameters_of(target)) from error


def validate_settings(
    group: str,
    node: DictConfig | None,
    chosen: str | None = None,
    *,
    base: type = object,
    trust: Sequence[str] | None = None,
) -> tuple[type, dict[str, Any]]:
    """The class of a group's settings and their values, each validated by its type and range.

    Args:
        group: name of the group, for messages.
        node: its configuration, with `_target_` and that class's parameters.
        chosen: name of the option, for messages.
        base: required base class.
        trust: for untrusted configurations, the packages besides ours that may be imported; None: the user's own, which may
            name any class.
    Raises:
        InvalidSetting: no option, a class that cannot be imported, is not trusted or does not derive from `base`, an
            unknown key, a value of the wrong type, NaN or infinity; names the full key.
    """
    if chosen is not None and (node is None or (OmegaConf.is_dict(node) and TARGET not in node)):
        line = "its file lacks the line `_target_: package.module.Class`, which names the class of the option"
        raise InvalidSetting(group, chosen, line)
    if node is None or not OmegaConf.is_config(node) or TARGET not in node:
        listed = f"{program_command('run')} --help lists them"
        raise InvalidSetting(group, node, f"choose an option of the group: {group}=NAME; {listed}")
    try:
        values = OmegaConf.to_container(node, resolve=True)
    except OmegaConfBaseException as error:
        key = (error.full_key or "").removeprefix(f"{group}.")
        raw_value = OmegaConf.to_container(node, resolve=False).get(key)
        raise InvalidSetting(f"{group}.{key}", raw_value, first_line(error)) from error
    values = {key: value for key, value in values.items() if key not in KEYS_OF_THE_RUN.get(group, ())}
    target = class_named(values.pop(TARGET), base, trust=trust, key=f"{group}.{TARGET}", taker=group)
    if trust is not None:
        for nested in target_values(values):  # such as candidates of a pattern
            class_named(nested, base, trust=trust, key=f"{group}.{TARGET}")
    with keys_of(group):
        # A user's class that is not a settings class would accept any type.
        return target, validate_arguments(target, values, taker=group)


# Options of a configuration group: their files, and which of them accept a key that the chosen one does not.


def list_config_folders(sources: Iterable[Any]) -> list[Path]:
    """Hydra's config folders: conf/, `--config-dir`, and folders and packages of `hydra.searchpath`.

    Args:
        sources: Hydra's `runtime.config_sources`.
    """
    folders: list[Path] = []
    for source in sources:
        if source.schema == "file":
            folders.append(Path(source.path))
        elif source.schema == "pkg" and source.path:
            spec = importlib.util.find_spec(source.path.replace("/", "."))
            folders += [Path(place) for place in (spec.submodule_search_locations if spec else None) or ()]
    return folders


def options_of(group: str, folders: Iterable[Path]) -> list[str]:
    """Names of the options of a group, without duplicates."""
    return list(dict.fromkeys(file.stem for folder in folders for file in sorted((folder / group).glob("*.yaml"))))


def say_where(error: UnknownKey, choices: Mapping[str, str], folders: Iterable[Path]) -> InvalidSetting:
    """Extend an unknown-key error, which has the full key, with the options of its group whose files contain the key.

    Args:
        choices: group -> name of its option, which does not accept the key.
        folders: Hydra's config folders.
    """
    group, _, key = error.key.partition(".")
    files = [file for folder in folders for file in sorted((folder / group).glob("*.yaml"))]
    options = dict.fromkeys(file.stem for file in files if key in OmegaConf.load(file))
    if not options or choices[group] in options:
        return error
    allowed = f"unknown key of {group}={choices[group]}; choose {' or '.join(f'{group}={name}' for name in options)}"
    return InvalidSetting(error.key, error.value, f"{allowed}, which takes it")


def _each_once(stages: list[str]) -> list[str]:
    again = [stage for stage in dict.fromkeys(stages) if stages.count(stage) > 1]
    if again:
        raise ValueError(f"names {', '.join(again)} more than once; a run goes through each stage once")
    return stages


Seed = Annotated[int, Field(ge=0, lt=2**32)]  # the range of NumPy's generators
# Ranges and types that OmegaConf's typed root cannot express.
ROOT_TYPES = {
    "seed": Seed,
    "recovery.seed": Seed,
    "sparsity": Annotated[Fraction, Field(description="the fraction of zeros")],
    "stages": Annotated[OneOrMore[Literal[STAGES]], AfterValidator(_each_once)],
}


def check_types(config: DictConfig, choices: dict[str, str], folders: Sequence[Path]) -> None:
    """Check each value of a configuration by its own type and range, without combinations and without building anything.

    Args:
        choices: group -> name of its option.
        folders: Hydra's config folders.
    Raises:
        InvalidSetting: the first value that is invalid regardless of other settings.
    """
    check_root_types(config)
    for group in GROUPS:
        with name_as_typed(config, choices, folders):
            validate_settings(group, config[group], choices.get(group))


def check_root_types(config: DictConfig) -> None:
    """Check the types and ranges of the root keys.

    Raises:
        InvalidSetting: the first invalid value.
    """
    validate_values({key: plain(OmegaConf.select(config, key)) for key in ROOT_TYPES}, ROOT_TYPES)


@contextmanager
def name_as_typed(config: DictConfig, choices: Mapping[str, str], folders: Sequence[Path]) -> Iterator[None]:
    """Context in which group errors name what the user types: the root's granularity, which a pattern reads, and, for an
    unknown key, the options that accept it.

    Args:
        choices: group -> name of its option.
        folders: Hydra's config folders.
    """
    try:
        yield
    except UnknownKey as error:
        raise say_where(error, choices, folders) from error
    except InvalidSetting as error:
        typed_at_root = error.key == "pattern.granularity" and config.granularity is not None
        raise InvalidSetting("granularity", error.value, error.allowed) if typed_at_root else error from error


def plain(node: Any) -> Any:
    """Convert a configuration node to Python containers; other values are not changed."""
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


# Root keys, which belong to no group: names, types and values.


def check_root(config: DictConfig) -> None:
    """Check names, types and values of the root keys that no group uses.

    Raises:
        InvalidSetting: the first invalid key, its value, and what is allowed.
    """
    known = [f.name for f in fields(Config)]
    for key in config:
        if key not in known:
            raise unknown_key(str(key), config[key], str(key), known, "the root")
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
    """The field of an entry of `optimize`, without its direction."""
    return text.rpartition(":")[2]
