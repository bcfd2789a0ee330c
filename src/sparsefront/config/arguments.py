"""Check command-line arguments before Hydra reads them: fix common slips, and report others in one line."""

import importlib.metadata
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from yaml import YAMLError

from sparsefront.config import schema as config
from sparsefront.config.settings import options_of, require_root_type
from sparsefront.config.sweeps import values_of
from sparsefront.errors import InvalidSetting, Obstacle, did_you_mean, first_line, yaml_complaint
from sparsefront.options import CONF, install_extra

# optional groups of the defaults list in conf/config.yaml: Hydra accepts GROUP=NAME for them, but not +GROUP=NAME
OPTIONAL = ("experiment", "debug")
GROUPS = (*config.GROUPS, *OPTIONAL)
ROOT_KEYS = tuple(vars(config.Config()))
# Hydra plugin group and option -> its distribution, and our extra with compatible versions
PLUGINS = {
    ("sweeper", "optuna"): ("optuna", "sweep"),
    ("launcher", "joblib"): ("hydra-joblib-launcher", "joblib"),
    ("launcher", "ray"): ("hydra-ray-launcher", "ray"),
    ("launcher", "submitit_local"): ("hydra-submitit-launcher", "submitit"),
    ("launcher", "submitit_slurm"): ("hydra-submitit-launcher", "submitit"),
}
SLURM_COMMANDS = ("sbatch", "srun")  # used by submitit to start jobs

CONFIG_DIR = ("--config-dir", "-cd")
OWN_ROOT = ("--config-name", "-cn", "--config-path", "-cp")  # a user's own root config, which may have other groups
COMPLETION = ("--shell-completion", "-sc")  # its arguments are Hydra's own, such as install=bash
WITH_VALUE = ("--config-dir", "-cd", "--config-name", "-cn", "--config-path", "-cp", "--package", "-p", "--info", "-i")
WITH_VALUE += ("--cfg", "-c", "--experimental-rerun")
SWITCHES = ("--help", "-h", "--hydra-help", "--version", "--resolve", "--run", "-r", "--multirun", "-m", *COMPLETION)
FLAGS = (*SWITCHES, *WITH_VALUE)
FLAG_CHOICES = dict.fromkeys(("--cfg", "-c"), ("job", "hydra", "all"))
FLAG_CHOICES |= dict.fromkeys(("--info", "-i"), ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"))


def normalize_arguments(arguments: Sequence[str]) -> list[str]:
    """Convert the arguments to the form that Hydra accepts.

    `+experiment=NAME`, common in other projects, becomes `experiment=NAME`, likewise for all our groups; `experiment=null` and
    `debug=null` mean the default. Flags may be anywhere.

    Args:
        arguments: of the command line, without the program's name.
    Raises:
        InvalidSetting: a Hydra plugin is not installed (gives the command to install it); a Slurm sweep without Slurm; an
            unknown option, several options, or an option file that is not YAML; an unknown flag or root key; an argument
            that is not KEY=VALUE; several values without `-m`; a value with a wrong type for its root key.
    """
    if any(argument in COMPLETION for argument in arguments):
        return list(arguments)
    arguments = _with_points(arguments)
    _require_plugins(arguments)
    _require_slurm(arguments)
    for group in config.GROUPS:
        if f"{group}=null" in arguments:
            raise InvalidSetting(group, "null", f"choose an option of the group: {group}=NAME; --help lists them")
    for argument in arguments:
        group, equals, value = argument.removeprefix("~").partition("=")
        if argument.startswith("~") and group in config.GROUPS:
            allowed = f"a group cannot be left out; choose an option of it: {group}=NAME; --help lists them"
            raise Obstacle(argument, None, allowed)
    _require_single_options(arguments)
    added = re.compile(rf"\+({'|'.join(GROUPS)})=")
    plain = [added.sub(r"\1=", argument, count=1) if added.match(argument) else argument for argument in arguments]
    _require_readable_files(plain)
    absent = [f"{group}=null" for group in OPTIONAL]
    flags, overrides = _parted([argument for argument in plain if argument not in absent])
    _require_flags(flags)
    _require_one_value_each(overrides, sweeps=bool({"-m", "--multirun", "hydra.mode=MULTIRUN"} & {*flags, *overrides}))
    if not any(flag.partition("=")[0] in OWN_ROOT for flag in flags):
        _require_root_keys(overrides)
        _require_root_types(overrides)
        _require_folders(overrides)
        _require_options(overrides, option_folders(arguments))
    return flags + overrides


def _with_points(arguments: Sequence[str]) -> list[str]:
    """`sweep.KEY=VALUE` as a setting of the sweeper `points`."""
    own = [text for text in arguments if text.startswith("sweep.")]
    if own and not {"-m", "--multirun"} & set(arguments):
        raise InvalidSetting(*own[0].partition("=")[::2], "is of a sweep: add -m")
    others = [text for text in arguments if text not in own]
    return [*others, *(["hydra/sweeper=points"] if own else []), *(f"hydra.sweeper.{text[6:]}" for text in own)]


def _require_folders(overrides: Sequence[str]) -> None:
    """Reject empty and missing folders: Hydra would create an empty name here, and ignore a missing config folder."""
    for text in overrides:
        key, _, value = text.lstrip("+").partition("=")
        if key in ("hydra.run.dir", "hydra.sweep.dir") and value in ("", "''", '""', "null"):
            raise InvalidSetting(key, value, "names no folder; the folder you stand in is .")
        if key != "hydra.searchpath":
            continue
        for place in filter(None, map(str.strip, re.split(r"[\[\],'\"]+", value))):
            path = place.removeprefix("file://")
            if "${" not in place and "://" not in path and not os.path.isdir(path):
                raise InvalidSetting(key, place, "is no folder: name one that holds groups of options, as [file://DIR]")


def _parted(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate flags from overrides. Hydra needs overrides to be contiguous, unlike `a=1 --config-dir DIR b=2`."""
    flags: list[str] = []
    overrides: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-"):
            overrides.append(argument)
            continue
        flags.append(argument)
        if argument in WITH_VALUE and (value := next(rest, None)) is not None:
            flags.append(value)
    return flags, overrides


def _require_flags(flags: Sequence[str]) -> None:
    """Reject unknown flags, for which Hydra's parser would print its whole usage."""
    rest = iter(flags)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name not in FLAGS and not (name.startswith("--") and any(flag.startswith(name) for flag in FLAGS)):
            raise Obstacle(argument, None, f"no such flag; {did_you_mean(name, FLAGS)}there are {', '.join(FLAGS)}")
        if equals and name not in WITH_VALUE:
            raise InvalidSetting(name, value, "takes no value")
        if name not in WITH_VALUE or (not equals and (value := next(rest, "")) == "" and name in ("--info", "-i")):
            continue
        if not value:
            raise Obstacle(name, None, "takes a value behind it; --hydra-help shows which")
        if (choices := FLAG_CHOICES.get(name)) is not None and value not in choices:
            raise InvalidSetting(name, value, f"must be one of {', '.join(choices)}")


BRACKETS = {"[": "]", "{": "}", "(": ")"}


def _require_one_value_each(overrides: Sequence[str], *, sweeps: bool) -> None:
    """Reject several values without a sweep, for which Hydra would explain its grammar in several lines."""
    parser = OverridesParser.create()
    for text in overrides:
        key, equals, value = text.partition("=")
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            if not equals:
                raise Obstacle(text, None, "is neither KEY=VALUE, as in sparsity=0.5, nor a flag") from error
            raise InvalidSetting(key, value, f"cannot be read: {_unreadable(text, value, error)}") from error
        if not override.key_or_group:
            raise Obstacle(text, None, "names no key: KEY=VALUE, as in sparsity=0.5")
        if override.is_sweep_override() and not sweeps:
            allowed = f"several values are a sweep: add -m; a list is {key}=[{value}], and a text stands in quotes"
            raise InvalidSetting(key, value, allowed)


def _unreadable(text: str, value: str, error: HydraException) -> str:
    """What is wrong with an override, in plain words if known."""
    for opening, closing in BRACKETS.items():
        if (left := value.count(opening)) != (right := value.count(closing)):
            return f"{opening} is not closed by {closing}" if left > right else f"{closing} closes no {opening}"
    if any(value.count(quote) % 2 for quote in "'\""):
        return "a quotation mark is not closed"
    if " while evaluating " in str(error):
        return first_line(error)
    if value.endswith(","):
        return "a value is missing behind the last comma"
    hint = "; several overrides stand apart, each an argument of its own" if "=" in value and " " in value else ""
    return f"an override is KEY=VALUE, and a text with special characters stands in quotes, as \"key='a=b'\"{hint}"


def _require_root_keys(overrides: Sequence[str]) -> None:
    """Reject unknown root keys and list the known ones; Hydra would only suggest to add the key."""
    for override in overrides:
        key, _, value = override.partition("=")
        root = re.match(r"\w+", key)  # None for additions (+) and removals (~), which are checked after composition
        if root and root[0] not in (*ROOT_KEYS, *OPTIONAL, "hydra"):
            raise InvalidSetting(
                key, value, f"unknown key; {did_you_mean(root[0], ROOT_KEYS)}the root takes {', '.join(ROOT_KEYS)}"
            )


def _require_root_types(overrides: Sequence[str]) -> None:
    """Reject root values with a wrong type and say what is allowed; Hydra would only name its own types."""
    parser = OverridesParser.create()
    for text in overrides:
        key = text.lstrip("+").partition("=")[0]
        if key not in ROOT_KEYS or key in config.GROUPS:
            continue
        with suppress(HydraException):  # Hydra reports what it cannot parse
            override = parser.parse_override(text)
            for value in values_of(override) if override.is_sweep_override() else [override.get_value_string()]:
                require_root_type(key, parser.parse_override(f"{key}={value}").value(), value)


def _require_options(overrides: Sequence[str], folders: Sequence[Path]) -> None:
    """Reject unknown options; Hydra would list the known ones below a stack trace."""
    if any(text.startswith("hydra.searchpath=") and "pkg://" in text for text in overrides):
        return  # a package, which is not imported for this check
    parser = OverridesParser.create()
    for text in overrides:
        group = text.partition("=")[0]
        if group not in GROUPS:
            continue
        with suppress(HydraException):
            override = parser.parse_override(text)
            options = values_of(override) if override.is_choice_sweep() else [override.value()]
            for name in options:
                if not isinstance(name, str | int | float) or "${" in str(name) or group == "recipe":
                    continue  # recipes are checked by `validate`
                name = str(name)
                if not any((folder / group / f"{name.removesuffix('.yaml')}.yaml").is_file() for folder in folders):
                    names = options_of(group, folders)
                    allowed = f"no such option; {did_you_mean(name, names)}there are {', '.join(names)}"
                    raise InvalidSetting(group, name, allowed)


def _require_plugins(arguments: Sequence[str]) -> None:
    for (kind, option), (distribution, extra) in PLUGINS.items():
        if f"hydra/{kind}={option}" in arguments and not _installed(distribution):
            install = install_extra(extra)
            raise InvalidSetting(f"hydra/{kind}", option, f"the package {distribution} is not installed: {install}")


def _require_slurm(arguments: Sequence[str]) -> None:
    """Check that Slurm is available, unless the configuration is only printed."""
    key, launcher = "hydra/launcher", "submitit_slurm"
    if f"{key}={launcher}" not in arguments or not {"-m", "--multirun"} & set(arguments):
        return
    if absent := [command for command in SLURM_COMMANDS if shutil.which(command) is None]:
        remedy = "start the sweep on a machine of the cluster (Debian's package slurm-client brings the commands)"
        without = "hydra/launcher=submitit_local and hydra/launcher=joblib need no Slurm"
        raise InvalidSetting(key, launcher, f"Slurm's {' and '.join(absent)} are not found here: {remedy}; {without}")


def _require_single_options(arguments: Sequence[str]) -> None:
    """Reject `GROUP=[a,b]`, which Hydra would merge into one."""
    for argument in arguments:
        group, _, value = argument.lstrip("+").partition("=")
        if group in config.GROUPS and value.lstrip().startswith("["):
            allowed = f"takes one option: {group}=NAME; a sweep over several is -m {group}=NAME,NAME"
            raise InvalidSetting(group, value, allowed)


def _require_readable_files(arguments: Sequence[str]) -> None:
    """Check that the chosen option files are YAML; Hydra would end with a parser's stack trace."""
    folders = option_folders(arguments)
    for argument in arguments:
        group, _, value = argument.partition("=")
        for name in value.split(",") if group in GROUPS else ():
            for file in (folder / group / f"{name}.yaml" for folder in folders):
                if file.is_file():
                    _require_readable(file, group, name)


def _require_readable(file: Path, group: str, name: str) -> None:
    try:
        holds_keys = OmegaConf.is_dict(OmegaConf.load(file))
    except YAMLError as error:
        raise InvalidSetting(group, name, f"is no YAML: {yaml_complaint(error)}") from error
    except OSError as error:  # not a YAML mapping, or not readable
        raise InvalidSetting(group, name, f"{file} cannot be read: {first_line(error)}") from error
    if not holds_keys:
        raise InvalidSetting(group, name, f"{file} holds a list, and not keys with values")


def option_folders(arguments: Sequence[str]) -> list[Path]:
    """Config folders: our own, `--config-dir`, and those in `hydra.searchpath`."""
    folders = [CONF]
    for before, argument in zip(["", *arguments], arguments, strict=False):
        flag, _, value = argument.partition("=")
        if before in CONFIG_DIR:
            folders.append(Path(argument))
        elif flag in CONFIG_DIR and value:
            folders.append(Path(value))
        elif flag == "hydra.searchpath":
            folders += map(Path, re.findall(r"file://([^\]'\",]+)", value))
    return folders


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
