"""What a user types, before Hydra reads it: plain slips are understood, what Hydra would answer with a stack trace is not."""

import importlib.metadata
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from yaml import YAMLError

from sparsefront import config
from sparsefront.errors import InvalidSetting, first_line, yaml_complaint
from sparsefront.group_options import RENAMED_KEYS, renamed_key
from sparsefront.setting_types import require_root_type
from sparsefront.sweep_values import values_of

# of the defaults list in conf/config.yaml; Hydra takes GROUP=NAME for these, and +GROUP=NAME for none of them
OPTIONAL = ("experiment", "debug")
GROUPS = (*config.GROUPS, *OPTIONAL)
ROOT_KEYS = tuple(vars(config.Config()))
# group of Hydra's own and option -> the distribution that brings it, and our extra with versions that go together
PLUGINS = {
    ("sweeper", "optuna"): ("optuna", "sweep"),
    ("launcher", "joblib"): ("hydra-joblib-launcher", "joblib"),
    ("launcher", "ray"): ("hydra-ray-launcher", "ray"),
    ("launcher", "submitit_local"): ("hydra-submitit-launcher", "submitit"),
    ("launcher", "submitit_slurm"): ("hydra-submitit-launcher", "submitit"),
}
SLURM_COMMANDS = ("sbatch", "srun")  # what submitit starts jobs with

CONFIG_DIR = ("--config-dir", "-cd")
OWN_ROOT = ("--config-name", "-cn", "--config-path", "-cp")  # of somebody's own, which may choose among further groups
WITH_VALUE = ("--config-dir", "-cd", "--config-name", "-cn", "--config-path", "-cp", "--package", "-p", "--info", "-i")
WITH_VALUE += ("--cfg", "-c", "--experimental-rerun")


def understood(arguments: Sequence[str]) -> list[str]:
    """The arguments as Hydra takes them.

    `+experiment=NAME`, as other projects write it, is `experiment=NAME` here, and likewise for every group of ours;
    `experiment=null` and `debug=null` are what holds without them. Flags may stand anywhere.

    Args:
        arguments: of the command line, without the program's name.
    Raises:
        InvalidSetting: a plugin of Hydra's that is not installed, with the command that installs it; a sweep on Slurm where
            there is none; a group without an option, or with a list of them; an option whose file is no YAML; a key that was
            renamed, with its new name; a root key that there is not; a value of another type than its root key's.
    """
    _require_plugins(arguments)
    _require_slurm(arguments)
    _require_present_names(arguments)
    for group in config.GROUPS:
        if f"{group}=null" in arguments:
            raise InvalidSetting(group, "null", f"choose an option of the group: {group}=NAME; --help lists them")
    _require_single_options(arguments)
    added = re.compile(rf"\+({'|'.join(GROUPS)})=")
    plain = [added.sub(r"\1=", argument, count=1) if added.match(argument) else argument for argument in arguments]
    _require_readable_files(plain)
    absent = [f"{group}=null" for group in OPTIONAL]
    flags, overrides = _parted([argument for argument in plain if argument not in absent])
    if not any(flag.partition("=")[0] in OWN_ROOT for flag in flags):
        _require_root_keys(overrides)
        _require_root_types(overrides)
    return flags + overrides


def _parted(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Flags and overrides. Hydra takes overrides in one piece only: `a=1 --config-dir DIR b=2` would not be recognized."""
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


def _require_root_keys(overrides: Sequence[str]) -> None:
    """Hydra would advise to add the key, without a word of those that there are."""
    for override in overrides:
        key, _, value = override.partition("=")
        root = re.match(r"\w+", key)  # none of an addition (+) or a removal (~): these wait until all is composed
        if root and root[0] not in (*ROOT_KEYS, *OPTIONAL, "hydra"):
            raise InvalidSetting(key, value, f"unknown key; the root takes {', '.join(ROOT_KEYS)}")


def _require_root_types(overrides: Sequence[str]) -> None:
    """Hydra would tell of its own types, without a word of what the key takes."""
    parser = OverridesParser.create()
    for text in overrides:
        key = text.lstrip("+").partition("=")[0]
        if key not in ROOT_KEYS or key in config.GROUPS:
            continue
        with suppress(HydraException):  # of what Hydra cannot read, which it tells itself
            override = parser.parse_override(text)
            for given in values_of(override) if override.is_sweep_override() else [override.get_value_string()]:
                require_root_type(key, parser.parse_override(f"{key}={given}").value(), given)


def _require_plugins(arguments: Sequence[str]) -> None:
    for (kind, option), (distribution, extra) in PLUGINS.items():
        if f"hydra/{kind}={option}" in arguments and not _installed(distribution):
            install = f'pip install -e ".[{extra}]" in the checkout'
            raise InvalidSetting(f"hydra/{kind}", option, f"the package {distribution} is not installed: {install}")


def _require_slurm(arguments: Sequence[str]) -> None:
    """A configuration that is only shown needs no Slurm."""
    key, launcher = "hydra/launcher", "submitit_slurm"
    if f"{key}={launcher}" not in arguments or not {"-m", "--multirun"} & set(arguments):
        return
    if absent := [command for command in SLURM_COMMANDS if shutil.which(command) is None]:
        remedy = "start the sweep on a machine of the cluster (Debian's package slurm-client brings the commands)"
        without = "hydra/launcher=submitit_local and hydra/launcher=joblib need no Slurm"
        raise InvalidSetting(key, launcher, f"Slurm's {' and '.join(absent)} are not found here: {remedy}; {without}")


def _require_present_names(arguments: Sequence[str]) -> None:
    for argument in arguments:
        key, _, value = argument.lstrip("+~").partition("=")
        if key in RENAMED_KEYS:
            raise InvalidSetting(key, value, renamed_key(key))


def _require_single_options(arguments: Sequence[str]) -> None:
    """Hydra would take `GROUP=[a,b]` as options merged into one."""
    for argument in arguments:
        group, _, value = argument.lstrip("+").partition("=")
        if group in config.GROUPS and value.lstrip().startswith("["):
            allowed = f"takes one option: {group}=NAME; a sweep over several is -m {group}=NAME,NAME"
            raise InvalidSetting(group, value, allowed)


def _require_readable_files(arguments: Sequence[str]) -> None:
    """Those of the options chosen here: Hydra itself would end with the stack trace of a YAML parser."""
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
    except OSError as error:  # a number and the like alone, or no permission
        raise InvalidSetting(group, name, f"{file} cannot be read: {first_line(error)}") from error
    if not holds_keys:
        raise InvalidSetting(group, name, f"{file} holds a list, and not keys with values")


def option_folders(arguments: Sequence[str]) -> list[Path]:
    """Folders of options: of the checkout, of `--config-dir`, and those that `hydra.searchpath` names."""
    found = [Path(__file__).resolve().parents[2] / "conf"]
    for before, argument in zip(["", *arguments], arguments, strict=False):
        flag, _, value = argument.partition("=")
        if before in CONFIG_DIR:
            found.append(Path(argument))
        elif flag in CONFIG_DIR and value:
            found.append(Path(value))
        elif flag == "hydra.searchpath":
            found += map(Path, re.findall(r"file://([^\]'\",]+)", value))
    return found


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
