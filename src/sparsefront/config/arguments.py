"""Convert command-line arguments to the form that Hydra accepts, and reject what it would take for something else."""

import importlib.metadata
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import HydraException

from sparsefront.config import schema as config
from sparsefront.config.settings import options_of
from sparsefront.errors import InvalidSetting, Obstacle, did_you_mean, first_line, unknown_key
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
WITH_VALUE = (*CONFIG_DIR, *OWN_ROOT, "--package", "-p", "--info", "-i", "--cfg", "-c", "--experimental-rerun")


def normalize_arguments(arguments: Sequence[str]) -> list[str]:
    """Convert the arguments to the form that Hydra accepts.

    `+experiment=NAME`, common in other projects, becomes `experiment=NAME`, likewise for all our groups; `experiment=null` and
    `debug=null` mean the default. Flags may be anywhere.

    Args:
        arguments: of the command line, without the program's name.
    Raises:
        InvalidSetting: a Hydra plugin is not installed (gives the command to install it); a Slurm sweep without Slurm; an
            unreadable override; an unknown root key, option or folder. What else is wrong, Hydra says in one line.
    """
    if any(argument in COMPLETION for argument in arguments):
        return list(arguments)
    arguments = _with_points(arguments)
    _require_plugins(arguments)
    absent = [f"{group}=null" for group in OPTIONAL]
    added = re.compile(rf"\+(?=({'|'.join(GROUPS)})=)")
    plain = [added.sub("", argument) if added.match(argument) else argument for argument in arguments]
    flags, overrides = _parted([argument for argument in plain if argument not in absent])
    parsed = list(map(_parse, overrides))
    if not any(flag.partition("=")[0] in OWN_ROOT for flag in flags):
        for override in parsed:
            _require_folders(override)
            _require_key(override)
        packages = any(
            override.key_or_group == "hydra.searchpath" and "pkg://" in override.input_line for override in parsed
        )
        if not packages:  # which are not imported for this check
            for override in parsed:
                _require_options(override, option_folders(arguments))
    return flags + overrides


def _with_points(arguments: Sequence[str]) -> list[str]:
    """`sweep.KEY=VALUE` as a setting of the sweeper `points`."""
    own = [text for text in arguments if text.startswith("sweep.")]
    if own and not {"-m", "--multirun"} & set(arguments):
        raise InvalidSetting(*own[0].partition("=")[::2], "is of a sweep: add -m")
    others = [text for text in arguments if text not in own]
    return [*others, *(["hydra/sweeper=points"] if own else []), *(f"hydra.sweeper.{text[6:]}" for text in own)]


def _require_plugins(arguments: Sequence[str]) -> None:
    """Check that chosen plugins are installed and, for a sweep, that Slurm is there."""
    for (kind, option), (distribution, extra) in PLUGINS.items():
        if f"hydra/{kind}={option}" in arguments and not _installed(distribution):
            install = install_extra(extra)
            raise InvalidSetting(f"hydra/{kind}", option, f"the package {distribution} is not installed: {install}")
    key, launcher = "hydra/launcher", "submitit_slurm"
    if f"{key}={launcher}" not in arguments or not {"-m", "--multirun"} & set(arguments):
        return
    absent = [command for command in SLURM_COMMANDS if shutil.which(command) is None]
    if absent:
        remedy = "start the sweep on a machine of the cluster (Debian's package slurm-client brings the commands)"
        without = "hydra/launcher=submitit_local and hydra/launcher=joblib need no Slurm"
        raise InvalidSetting(key, launcher, f"Slurm's {' and '.join(absent)} are not found here: {remedy}; {without}")


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


def _parse(text: str) -> Override:
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        why = first_line(error).partition(" expecting ")[0]
        quotes = "where a text with special characters stands in quotes, as \"key='a=b'\""
        raise Obstacle(text, None, f"cannot be read ({why}): an override is KEY=VALUE, {quotes}") from error
    if not override.key_or_group:
        raise Obstacle(text, None, "names no key: KEY=VALUE, as in sparsity=0.5")
    return override


def _require_folders(override: Override) -> None:
    """Reject empty and missing folders: Hydra would create an empty name here, and ignore a missing config folder."""
    key, value = override.key_or_group, str(override.input_line).partition("=")[2]
    if key in ("hydra.run.dir", "hydra.sweep.dir") and value in ("", "''", '""', "null"):
        raise InvalidSetting(key, value, "names no folder; the folder you stand in is .")
    if key != "hydra.searchpath":
        return
    for place in filter(None, map(str.strip, re.split(r"[\[\],'\"]+", value))):
        path = place.removeprefix("file://")
        if "${" not in place and "://" not in path and not os.path.isdir(path):
            raise InvalidSetting(key, place, "is no folder: name one that holds groups of options, as [file://DIR]")


def _require_key(override: Override) -> None:
    """Reject unknown root keys; Hydra would only suggest to add the key. Added ones are checked after composition."""
    root = re.split(r"[./@]", override.key_or_group, maxsplit=1)[0]
    if not override.is_add() and not override.is_delete() and root not in (*ROOT_KEYS, *OPTIONAL, "hydra"):
        key, _, value = str(override.input_line).partition("=")
        raise unknown_key(key, value, root, ROOT_KEYS, "the root")


def _require_options(override: Override, folders: Sequence[Path]) -> None:
    """Require one known option for each group, or several names of a sweep: Hydra would merge a list, and leave a group out."""
    group, value = override.key_or_group, str(override.input_line).partition("=")[2]
    if group not in GROUPS or (group in OPTIONAL and override.is_delete()):
        return
    if override.is_delete():
        names = [None]
    elif override.is_sweep_override():  # a glob finds options alone
        names = [] if override.value_type is ValueType.GLOB_CHOICE_SWEEP else list(override.sweep_iterator())
    else:
        names = [override.value()]
    for name in names:
        if not isinstance(name, str | int | float | None):
            raise InvalidSetting(group, value, f"takes one option: {group}=NAME; a sweep is -m {group}=NAME,NAME")
        # recipes are checked by `validate`
        known = "${" in str(name) or (group == "recipe" and name is not None)
        if not known and not any(
            (folder / group / f"{str(name).removesuffix('.yaml')}.yaml").is_file() for folder in folders
        ):
            options = options_of(group, folders)
            hint = did_you_mean(str(name), options)
            raise InvalidSetting(
                group, "null" if name is None else name, f"no such option; {hint}there are {', '.join(options)}"
            )


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
