"""The settings of a configuration: what each group's option takes, and the names, types and ranges of the root's keys.

Needs neither torch nor Lightning, so that a slip is answered at once."""

import importlib
import importlib.util
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import AfterValidator, Field, ValidationError

from sparsefront.config.schema import CONTROLS, GROUPS, STAGES, Config
from sparsefront.errors import InvalidSetting, UnknownKey, closest, did_you_mean, first_line, keys_of
from sparsefront.options import TARGET, program_command, target_values, trusted_class
from sparsefront.results.record import result_fields
from sparsefront.settings_class import (
    Fraction,
    OneOrMore,
    checked_arguments,
    checked_values,
    describe_type,
    parameters_of,
    rejection,
)

KEYS_OF_THE_RUN = {"recovery": ("seed",)}
"""Keys of a group that conf/config.yaml adds to whichever option is chosen, and the run reads itself."""


def build_settings(
    group: str,
    node: DictConfig | None,
    chosen: str | None = None,
    *,
    base: type = object,
    trust: Sequence[str] | None = None,
) -> Any:
    """Instantiate a group's settings.

    Args and Raises: as `typed_settings`, and InvalidSetting for values that the class itself rejects.
    """
    target, values = typed_settings(group, node, chosen, base=base, trust=trust)
    with keys_of(group):
        try:
            return target(**values)
        except ValidationError as error:  # of a user's own class that pydantic checks
            raise rejection(error, values, parameters_of(target)) from error


def typed_settings(
    group: str,
    node: DictConfig | None,
    chosen: str | None = None,
    *,
    base: type = object,
    trust: Sequence[str] | None = None,
) -> tuple[type, dict[str, Any]]:
    """The class of a group's settings and their values, each checked by its own type and range.

    Args:
        group: name of the group, for messages.
        node: its configuration, with `_target_` and that class's parameters.
        chosen: name of the option, for messages.
        base: what the class must derive from.
        trust: of a configuration that somebody else may have written, the packages that may be imported besides ours; None: it
            is the user's own, and any class may be named.
    Raises:
        InvalidSetting: nothing chosen, a class that cannot be imported, that is not trusted or does not derive from `base`, a
            key that the class does not take, a value of the wrong type, NaN or infinity; the key is written from the root.
    """
    if chosen is not None and (node is None or (OmegaConf.is_dict(node) and TARGET not in node)):
        line = "its file lacks the line `_target_: package.module.Class`, which names the class of the option"
        raise InvalidSetting(group, chosen, line)
    if node is None or not OmegaConf.is_config(node) or TARGET not in node:
        raise nothing_chosen(group, node)
    try:
        values = OmegaConf.to_container(node, resolve=True)
    except OmegaConfBaseException as error:
        key = (error.full_key or "").removeprefix(f"{group}.")
        given = OmegaConf.to_container(node, resolve=False).get(key)
        raise InvalidSetting(f"{group}.{key}", given, first_line(error)) from error
    values = {key: value for key, value in values.items() if key not in KEYS_OF_THE_RUN.get(group, ())}
    target = _target_class(group, values.pop(TARGET), base, trust)
    if trust is not None:
        for nested in target_values(values):  # of candidates of a pattern
            trusted_class(nested, base, trust=trust, key=f"{group}.{TARGET}")
    with keys_of(group):
        # A class that is no settings class, as one of a user's own may be, would take any type.
        return target, checked_arguments(target, values, taker=group)


def nothing_chosen(group: str, node: Any) -> InvalidSetting:
    """The complaint about a group without an option."""
    listed = f"{program_command('run')} --help lists them"
    return InvalidSetting(group, node, f"choose an option of the group: {group}=NAME; {listed}")


def _target_class(group: str, name: Any, base: type, trust: Sequence[str] | None) -> type:
    """The class that a `_target_` names, which may belong to a package of the user's own."""
    key = f"{group}.{TARGET}"
    if not isinstance(name, str):
        raise InvalidSetting(key, name, "must be the full name of a class, package.module.Class")
    target = _imported(key, name) if trust is None else trusted_class(name, base, trust=trust, key=key)
    if missing := [*sorted(getattr(target, "__abstractmethods__", ())), *_unset_class_variables(target)]:
        raise InvalidSetting(key, name, f"does not define {', '.join(missing)}, which {group} needs")
    if not issubclass(target, base):
        raise InvalidSetting(key, name, f"must derive from {base.__module__}.{base.__name__}")
    return target


def _imported(key: str, name: str) -> type:
    """A class of whatever package."""
    module, _, attribute = name.rpartition(".")
    try:
        # Not Hydra's get_class, which logs several lines of advice, and none where the module's own imports fail.
        target = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # of the user's module itself, of any kind
        said = first_line(error)
        reason = said if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {said}"
        remedy = "name a class as package.module.Class; its package must be installed, or its folder be on PYTHONPATH"
        raise InvalidSetting(key, name, f"cannot be imported ({reason}); {remedy}") from error
    if not isinstance(target, type):
        raise InvalidSetting(key, name, "is no class; package.module.Class is expected")
    return target


def _unset_class_variables(target: type) -> list[str]:
    """Names that a base class declares as ClassVar without a value, and no class below it sets: `name`, `kinds`."""
    declared = {
        name
        for base in target.__mro__
        for name, hint in vars(base).get("__annotations__", {}).items()
        if "ClassVar" in str(hint)
    }
    return sorted(name for name in declared if not hasattr(target, name))


# The options of a configuration group: where their files are, and which of them takes a key that the chosen one does
# not.


def searched_folders(sources: Iterable[Any]) -> list[Path]:
    """Those that Hydra searches for options: conf/, `--config-dir`, and folders and packages of `hydra.searchpath`.

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
    """Names of the options of a group, each once."""
    return list(dict.fromkeys(file.stem for folder in folders for file in sorted((folder / group).glob("*.yaml"))))


def say_where(error: UnknownKey, choices: Mapping[str, str], folders: Iterable[Path]) -> InvalidSetting:
    """The same complaint, with what to type where the key belongs to other options of its group.

    Args:
        error: its key is written from the root.
        choices: group -> the name of its option, which does not take the key.
        folders: those that Hydra searches for options.
    """
    group, _, key = error.key.partition(".")
    chosen, options = choices[group], _options_with(group, key, folders)
    if not options or chosen in options:
        return error
    typed = " or ".join(f"{group}={option}" for option in options)
    return InvalidSetting(error.key, error.value, f"unknown key of {group}={chosen}; choose {typed}, which takes it")


def _options_with(group: str, key: str, folders: Iterable[Path]) -> list[str]:
    """The options whose file holds the key."""
    files = [file for folder in folders for file in sorted((folder / group).glob("*.yaml"))]
    return list(dict.fromkeys(file.stem for file in files if key in OmegaConf.load(file)))


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
        raise InvalidSetting(key, typed, f"must be {describe_type(hints[key])}") from error


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
            raise InvalidSetting(
                str(key),
                config[key],
                f"unknown key; {did_you_mean(str(key), list(known))}the root takes {', '.join(known)}",
            )
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
