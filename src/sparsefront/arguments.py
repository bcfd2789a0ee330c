"""What a user types, before Hydra reads it: plain slips are understood, what Hydra would answer with a stack trace is not."""

import importlib.metadata
import re
import shutil
from collections.abc import Sequence

from sparsefront import config
from sparsefront.errors import InvalidSetting
from sparsefront.group_options import RENAMED_KEYS, renamed_key

# of the defaults list in conf/config.yaml; Hydra takes GROUP=NAME for these, and +GROUP=NAME for none of them
OPTIONAL = ("experiment", "debug")
GROUPS = (*config.GROUPS, *OPTIONAL)
# group of Hydra's own and option -> the distribution that brings it, and our extra with versions that go together
PLUGINS = {
    ("sweeper", "optuna"): ("optuna", "sweep"),
    ("launcher", "joblib"): ("hydra-joblib-launcher", "joblib"),
    ("launcher", "ray"): ("hydra-ray-launcher", "ray"),
    ("launcher", "submitit_local"): ("hydra-submitit-launcher", "submitit"),
    ("launcher", "submitit_slurm"): ("hydra-submitit-launcher", "submitit"),
}
SLURM_COMMANDS = ("sbatch", "srun")  # what submitit starts jobs with

WITH_VALUE = ("--config-dir", "-cd", "--config-name", "-cn", "--config-path", "-cp", "--package", "-p", "--info", "-i")
WITH_VALUE += ("--cfg", "-c", "--experimental-rerun")


def understood(arguments: Sequence[str]) -> list[str]:
    """The arguments as Hydra takes them.

    `+experiment=NAME`, as other projects write it, is `experiment=NAME` here, and likewise for every group of ours;
    `experiment=null` and `debug=null` are what holds without them. Flags may stand anywhere.

    Args:
        arguments: of the command line, without the program's name.
    Raises:
        InvalidSetting: a plugin of Hydra's that is not installed, with the command that installs it, a sweep on Slurm where there
            is none, a group without an option, or a key that was renamed, with its new name.
    """
    _require_plugins(arguments)
    _require_slurm(arguments)
    _require_present_names(arguments)
    for group in config.GROUPS:
        if f"{group}=null" in arguments:
            raise InvalidSetting(group, "null", f"choose an option of the group: {group}=NAME; --help lists them")
    added = re.compile(rf"\+({'|'.join(GROUPS)})=")
    plain = [added.sub(r"\1=", argument, count=1) if added.match(argument) else argument for argument in arguments]
    return _flags_first([argument for argument in plain if argument not in [f"{group}=null" for group in OPTIONAL]])


def _flags_first(arguments: Sequence[str]) -> list[str]:
    """Hydra takes overrides in one piece only: `a=1 --config-dir DIR b=2` would not be recognized."""
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
    return flags + overrides


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


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
