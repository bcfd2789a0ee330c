"""The command that made a run."""

import json
import shlex
from pathlib import Path
from typing import Any

import yaml

from sparsefront.report.result import Result

OVERRIDES_FILE = Path(".hydra") / "overrides.yaml"
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
    """With the overrides that Hydra kept in a run's folder; None where they are gone."""
    overrides = recorded_overrides(folder)
    return None if overrides is None else " ".join(["python run.py", *map(shlex.quote, overrides)])


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
