"""The command that made a run."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from sparsefront.report.result import Result

OVERRIDES_FILE = Path(".hydra") / "overrides.yaml"
HYDRA_FILE = Path(".hydra") / "hydra.yaml"
COMMAND_LINE, SEARCH_PATH = "command-line", "hydra.searchpath in"  # Hydra's names of who added a folder of options
GROUPS = ("model", "dataset", "pattern", "importance", "allocation", "schedule", "recovery")
OPTION_OF_FIELD = {"kernel_mode": "kernel"}  # where the record's name is another


def run_command(result: Result, folder: Path | None) -> str:
    """For a shell, one line: with the overrides that Hydra kept in the run's folder; else the options that the record names,
    without their parameters, and a comment that says so.

    Args:
        folder: of the run's `row.json`; None where it is not at hand.
    """
    command = None if folder is None else overrides_command(folder)
    if command is not None:
        return command
    return " ".join(["python run.py", *map(shlex.quote, _options(result))]) + "  # from the record, parameters left out"


def override_text(key: str, value: Any) -> str:
    """What was chosen, as `run.py` takes it: `recovery=none`, `pattern.m=null`, `kernel=auto`.

    Args:
        key: a field of `choice`, or `part.parameter`.
    """
    if key == "recovery" and value is None:
        value = "none"
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":")).replace('"', "")
    return f"{OPTION_OF_FIELD.get(key, key)}={text}"


def overrides_command(folder: Path) -> str | None:
    """With the overrides that Hydra kept in a run's folder, and the folders of a user's own options; None where they are gone."""
    overrides = recorded_overrides(folder)
    if overrides is None:
        return None
    sources = own_sources(folder)
    flags = [word for by, source in sources if by == COMMAND_LINE for word in ("--config-dir", _path(source))]
    searched = [search_path([source for by, source in sources if by != COMMAND_LINE])]
    return " ".join(["python run.py", *map(shlex.quote, [*flags, *filter(None, searched), *overrides])])


def search_path(sources: Sequence[str]) -> str | None:
    """The override by which Hydra finds options there; None for none.

    Args:
        sources: `file://DIR`, `pkg://own.conf`.
    """
    quoted = ["'" + source.replace("'", r"\'") + "'" for source in sources]
    return f"hydra.searchpath=[{','.join(quoted)}]" if quoted else None


def own_sources(folder: Path) -> list[tuple[str, str]]:
    """Where a run found options beside the program's own: who named it, as Hydra says, and `file://DIR` or `pkg://own.conf`."""
    try:
        text = (folder / HYDRA_FILE).read_text()
    except OSError:
        return []
    if f"provider: {COMMAND_LINE}" not in text and f"provider: {SEARCH_PATH}" not in text:
        return []  # nearly always: many times as fast as a parser
    try:
        found = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        sources = [
            (part["provider"], part["schema"], part["path"]) for part in found["hydra"]["runtime"]["config_sources"]
        ]
    except (yaml.YAMLError, KeyError, TypeError):
        return []
    named = [source for source in sources if str(source[0]).startswith((COMMAND_LINE, SEARCH_PATH))]
    return [(str(by), f"{schema}://{path}") for by, schema, path in named]


def _path(source: str) -> str:
    return source.partition("://")[2]


def recorded_overrides(folder: Path) -> list[str] | None:
    """Those of a run, from the file that Hydra wrote into its folder; None where it is gone or no such list."""
    try:
        text = (folder / OVERRIDES_FILE).read_text()
    except OSError:
        return None
    lines = text.splitlines()
    if all(line.startswith("- ") and line[2:3].isalpha() and ": " not in line and " #" not in line for line in lines):
        return [line[2:] for line in lines]  # plain scalars, as nearly always: ten times as fast as a parser
    try:
        found = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return None
    return [str(override) for override in found] if isinstance(found, list) else None


def _options(result: Result) -> list[str]:
    options = [f"{group}={value}" for group in GROUPS if (value := result.value_of(group)) is not None]
    options += [f"dataset.task={result.choice.dataset_task}"] if result.choice.dataset_task else []
    options += [f"granularity={result.choice.granularity}"] if result.choice.granularity is not None else []
    return [*options, f"sparsity={result.sparsity.sparsity_target:g}", f"seed={result.identity.seed}"]
