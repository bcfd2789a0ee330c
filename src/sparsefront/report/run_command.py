"""The command that made a run."""

import json
import logging
import os
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from sparsefront.artifacts.bounded_files import MOST_YAML_BYTES, parse_yaml_bounded, read_text_bounded
from sparsefront.printable import printable
from sparsefront.report.result import Result

log = logging.getLogger(__name__)
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
    text = _text(folder / HYDRA_FILE)
    if f"provider: {COMMAND_LINE}" not in text and f"provider: {SEARCH_PATH}" not in text:
        return []  # nearly always: many times as fast as a parser
    try:
        parts = parse_yaml_bounded(text)["hydra"]["runtime"]["config_sources"]
        sources = [(part["provider"], part["schema"], part["path"]) for part in parts]
    except (ValueError, KeyError, TypeError) as error:
        _tell(folder / HYDRA_FILE, f"names no sources of options ({type(error).__name__}: {error})")
        return []
    named = [source for source in sources if str(source[0]).startswith((COMMAND_LINE, SEARCH_PATH))]
    return [(str(by), f"{schema}://{path}") for by, schema, path in named]


def _text(file: Path) -> str:
    """The text of a file that Hydra wrote; empty where it is gone, or cannot be read, of which a line is logged."""
    if not os.path.lexists(file):
        return ""
    try:
        text = read_text_bounded(file, max_bytes=MOST_YAML_BYTES)
        if not text.strip():
            _tell(file, "is empty")
        return text
    except ValueError as error:
        _tell(file, str(error))
        return ""


@cache
def _tell(file: Path, why: str) -> None:
    """Once: a comparison asks several times."""
    log.warning("%s", printable(f"{file}: {why}; the run's command is taken from its record"))


def _path(source: str) -> str:
    return source.partition("://")[2]


def recorded_overrides(folder: Path) -> list[str] | None:
    """Those of a run, from the file that Hydra wrote into its folder; None where it is gone or no such list."""
    file = folder / OVERRIDES_FILE
    text = _text(file)
    lines = text.splitlines()
    if lines and all(map(_is_plain, lines)):
        return [line[2:] for line in lines]  # as nearly always: ten times as fast as a parser
    if not lines:
        return None
    try:
        found = parse_yaml_bounded(text)
    except ValueError as error:
        _tell(file, str(error))
        return None
    if not isinstance(found, list) or any(isinstance(override, dict | list) for override in found):
        _tell(file, "is no list of overrides")
        return None
    return [str(override) for override in found]


def _is_plain(line: str) -> bool:
    """Whether a line of YAML is the entry of a list that is a plain scalar."""
    plain = line.startswith("- ") and line[2:3].isalpha() and line.isprintable()
    return plain and ": " not in line and " #" not in line


def _options(result: Result) -> list[str]:
    options = [f"{group}={value}" for group in GROUPS if (value := result.value_of(group)) is not None]
    options += [f"dataset.task={result.choice.dataset_task}"] if result.choice.dataset_task else []
    options += [f"granularity={result.choice.granularity}"] if result.choice.granularity is not None else []
    return [*options, f"sparsity={result.sparsity.sparsity_target:g}", f"seed={result.identity.seed}"]
