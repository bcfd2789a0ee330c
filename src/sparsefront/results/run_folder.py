"""A run's folder: marks while it runs, checkpoint link, command, and failure message."""

import errno
import json
import logging
import os
import re
import shlex
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from sparsefront.artifacts.bounded_files import (
    MOST_YAML_BYTES,
    parse_yaml_bounded,
    read_json_bounded,
    read_text_bounded,
)
from sparsefront.artifacts.durable import PARTIAL, free_bytes, in_units, whole_file
from sparsefront.artifacts.lease import ALONE, GONE_S, hold_in, working_under
from sparsefront.errors import InvalidSetting, printable
from sparsefront.options import program_command
from sparsefront.results.packed import is_in, read_text_in
from sparsefront.results.record import Result

log = logging.getLogger(__name__)
RUNNING, RESULT_FILE, FAILURE_FILE = ".running", "row.json", "failure.json"
KILLED = "the process was killed; what it had finished is stored, and a run with the same settings resumes from there"
ANOTHER_FOLDER = "compare folders that you may read"
# Suffix of a search's list of Pareto-optimal runs: one folder per line; "#" starts a note about them.
FRONT_FILE = ".front.txt"

LEAST_FREE_BYTES = 2**18  # for Hydra's files, the log and a result


def make_writable(results_dir: str, folder: Path) -> None:
    """Create the folder of a run or sweep and check that it is writable.

    Args:
        results_dir: the setting above it, for the message.
    Raises:
        InvalidSetting: it names no folder, or one in which no result can be written.
    """
    if not results_dir:  # runs would be written to the root of the disk
        raise InvalidSetting("results_dir", "", "names no folder; the folder you stand in is .")
    try:
        free = free_bytes(folder)
        if free < LEAST_FREE_BYTES:
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}, {in_units(free)} free")
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"no permission to write in {folder}")
    except OSError as error:
        allowed = f"cannot be written ({error.strerror or error}); name another folder"
        raise InvalidSetting("results_dir", results_dir, allowed) from error


@contextmanager
def mark_in_use(folder: Path) -> Iterator[None]:
    """Context that marks a run's folder as in use, by leases in its folder .running, until it exits or the process dies.

    If a process on another node was suspended, only a run started in the same folder may replace it, and `lease.require_all`
    then raises in the old one. If others declared it failed after a day, that mark is removed.
    """
    while (lease := hold_in(folder / RUNNING, ALONE)) is None:  # `close_killed_runs` holds it for a moment
        time.sleep(0.01)
    lease.renews = True
    with working_under(lease):
        (folder / FAILURE_FILE).unlink(missing_ok=True)  # from a killed job that is restarted here
        yield
        if not lease.lost:
            (folder / FAILURE_FILE).unlink(missing_ok=True)


def record_failure(folder: Path, error: BaseException) -> None:
    """Write why a run ended without a result to its folder. A full disk must not hide the original error."""
    message = str(error) or {"KeyboardInterrupt": "interrupted"}.get(type(error).__name__, "")
    with suppress(OSError):
        _write_failure(folder, type(error).__name__, message)


def discard_if_empty(folder: Path, *, log_counts: bool) -> bool:
    """Remove a run's folder if it contains only its configuration, and then the folder of results if it is empty.

    Args:
        log_counts: keep the folder if its log is not empty.
    Returns:
        whether it was removed.
    """
    for path in folder.iterdir():
        is_log = path.suffix == ".log" and not (log_counts and path.stat().st_size)
        if not is_log and path.name not in (".hydra", RUNNING, FAILURE_FILE):
            return False
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # not empty
        folder.parent.rmdir()
    return True


def close_killed_runs(results: Path) -> None:
    """Clean up after dead processes: remove partial files, and write a failure message to folders without a result. A run on
    another node, which may only be suspended, counts as dead after a day.

    Args:
        results: the folder of results; points of sweeps are one level deeper.
    """
    for outer in _folders_in(results):
        for folder in (outer, *_folders_in(outer)):
            marker = folder / RUNNING
            with suppress(OSError):  # another run is doing the same, or another user owns the folder
                if marker.is_dir():
                    _close_killed_run(marker)


def _folders_in(folder: Path) -> list[Path]:
    """Subfolders except hidden ones, such as leases; none if the folder was just removed."""
    with suppress(OSError), os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    return []


def _close_killed_run(marker: Path) -> None:
    lease = hold_in(marker, ALONE, create=False, lapses_s=GONE_S)
    if lease is None:  # running, or just removed
        return
    try:
        if lease.took_over:  # else it is just starting or ending
            for path in marker.parent.rglob(f"{PARTIAL}*"):
                path.unlink(missing_ok=True)
            if not (marker.parent / RESULT_FILE).exists() and not discard_if_empty(marker.parent, log_counts=True):
                _write_failure(marker.parent, "Killed", KILLED)
    finally:
        lease.release()


def _write_failure(folder: Path, error: str, message: str) -> None:
    with whole_file(folder / FAILURE_FILE) as file:
        file.write_text(json.dumps({"error": error, "message": message}), encoding="utf-8")


LINK, PATH_FILE = "checkpoint", "checkpoint.txt"


def link_checkpoint(checkpoint: Path, directory: Path) -> str:
    """Link a checkpoint from a run's folder: `checkpoint`, or `checkpoint.txt` with its path if links are not possible.

    The link is relative if both are below the working directory, so that a project can be moved.

    Args:
        checkpoint: folder of an export.
    Returns:
        the message for the user: the checkpoint's path, or that it was removed, in which case nothing is linked.
    """
    if not checkpoint.is_dir():
        return f"not stored any more ({checkpoint}); reuse=false makes it again"
    inside = all(path.resolve().is_relative_to(Path.cwd()) for path in (checkpoint, directory))
    target = os.path.relpath(checkpoint.resolve(), directory.resolve()) if inside else checkpoint.resolve()
    link = directory / LINK
    try:
        link.unlink(missing_ok=True)
        link.symlink_to(target, target_is_directory=True)
    except OSError:
        (directory / PATH_FILE).write_text(f"{checkpoint.resolve()}\n", encoding="utf-8")
    return str(checkpoint)


MOST_PATH_BYTES = 2**14
EXPORT = re.compile(r"/export/[0-9a-f]{16}$")


def find_checkpoint(folder: Path) -> Path | None:
    """The folder of the run's export; None if it does not exist. A link or path that leads to anything but an export of a cache
    is not followed.
    """
    path, written = folder / LINK, folder / PATH_FILE
    if os.path.lexists(written):
        with suppress(ValueError):
            path = Path(read_text_bounded(written, max_bytes=MOST_PATH_BYTES).strip())
    with suppress(OSError, ValueError):  # a loop of links; a null character
        if path.is_dir() and (path.resolve().parent == folder.resolve() or EXPORT.search(path.resolve().as_posix())):
            return path
    return None


OVERRIDES_FILE = Path(".hydra") / "overrides.yaml"
HYDRA_FILE = Path(".hydra") / "hydra.yaml"
CONFIG_FILE = Path(".hydra") / "config.yaml"
# How Hydra names the origin of a folder of the user's own options -> the argument that adds it.
OWN_OPTIONS = {"command-line": "--config-dir", "hydra.searchpath in": "hydra.searchpath"}
REFERENCE = re.compile(
    r"\$\{\.*[A-Za-z_][\w.]*\}"
)  # to another key, such as ${seed}; anything else may call a resolver
GROUPS = ("model", "dataset", "structured", "pattern", "importance", "allocation", "schedule", "recovery")
OPTION_OF_FIELD = {"kernel_mode": "kernel"}  # fields named differently in the record


def run_command(result: Result, folder: Path | None) -> str:
    """The shell command of a run, one line: with the overrides stored by Hydra in the run's folder; else with the options in
    the record, without their parameters, and a comment that says so.

    Args:
        folder: of the run's `row.json`; None if it is not available.
    """
    if folder is not None and (command := overrides_command(folder)) is not None:
        return command
    choice, precision = result.choice, result.speed.precision
    options = [f"{group}={value}" for group in GROUPS if (value := result.value_of(group)) is not None]
    settings = {
        "dataset.task": choice.dataset_task or None,
        "granularity": choice.granularity,
        "structured.sparsity": choice.structured_parameters.get("sparsity"),
        "precision": None if precision == result.speed.dtype else precision,
        "sparsity": result.sparsity.sparsity_target,
    }
    texts = {
        key: f"{value:g}" if key.endswith("sparsity") else value for key, value in settings.items() if value is not None
    }
    arguments = [
        *filter(_sets_data, options),
        *(f"{key}={text}" for key, text in texts.items()),
        f"seed={result.identity.seed}",
    ]
    command = " ".join([program_command("run"), *map(shlex.quote, arguments)])
    return f"{command}  # from the record, parameters left out"


def override_text(key: str, value: Any) -> str:
    """A choice as an argument of `run.py`: `recovery=none`, `pattern.m=null`, `kernel=auto`.

    Args:
        key: a field of `choice`, or `part.parameter`.
    """
    if key == "recovery" and value is None:
        value = "none"
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":")).replace('"', "")
    return f"{OPTION_OF_FIELD.get(key, key)}={text}"


def overrides_command(folder: Path) -> str | None:
    """The command with the overrides that Hydra stored; None if they are gone.

    Whoever copies it runs nothing that came with the folder: options from folders, classes, resolvers and Hydra's own settings
    are left out, and a comment names them.
    """
    overrides = read_overrides(folder)
    if overrides is None:
        return None
    text = _text(folder, HYDRA_FILE)
    left_out = [name for provider, name in OWN_OPTIONS.items() if f"provider: {provider}" in text]
    left_out += [_key(override) for override in overrides if not _sets_data(override)]
    command = " ".join([program_command("run"), *map(shlex.quote, filter(_sets_data, overrides))])
    return f"{command}  # without {printable(', '.join(left_out))}" if left_out else command


def _sets_data(override: str) -> bool:
    """Whether an override names neither Hydra's own settings, a class, a resolver, nor a file instead of an option."""
    key, _, value = override.partition("=")
    names_file = (
        "." not in key and _key(override) not in ("cache_dir", "results_dir") and ("/" in value or ".." in value)
    )
    own = re.match(r"[+~]*hydra\b", key) or "@" in key or "_target_" in override
    return override.isprintable() and not own and not names_file and not needs_resolver(override)


def needs_resolver(text: str) -> bool:
    """Whether a value interpolates more than another key. Escaped braces count: Hydra removes the escapes later."""
    return re.search(r"\$\\*\{", REFERENCE.sub("", text)) is not None


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def _text(place: Path, name: Path) -> str:
    """A file that Hydra wrote, from a run's folder or packed record; empty if it is missing, or unreadable, which is logged."""
    if not is_in(place, name.as_posix()):
        return ""
    file = place / name
    try:
        text = read_text_in(place, name.as_posix(), max_bytes=MOST_YAML_BYTES)
        if not text.strip():
            _tell(file, "is empty")
        return text
    except ValueError as error:
        _tell(file, str(error))
        return ""


@cache
def _tell(file: Path, why: str) -> None:
    """Log once per file."""
    log.warning("%s", printable(f"{file}: {why}; the run's command is taken from its record"))


def read_overrides(folder: Path) -> list[str] | None:
    """The overrides of a run, from the file that Hydra wrote; None if it is missing or invalid.

    Args:
        folder: the run's, or its packed record.
    """
    file, text = folder / OVERRIDES_FILE, _text(folder, OVERRIDES_FILE)
    lines = text.splitlines()
    if not lines:
        return None
    if all(map(_is_plain, lines)):
        return [line[2:] for line in lines]  # fast path, ten times as fast as a YAML parser
    try:
        entries = parse_yaml_bounded(text)
    except ValueError as error:
        _tell(file, str(error))
        return None
    if not isinstance(entries, list) or any(isinstance(override, dict | list) for override in entries):
        _tell(file, "is no list of overrides")
        return None
    return [str(override) for override in entries]


def _is_plain(line: str) -> bool:
    """Whether a YAML line is a list entry with a plain scalar."""
    plain = line.startswith("- ") and line[2:3].isalpha() and line.isprintable()
    return plain and ": " not in line and " #" not in line


def list_failures(failures: Sequence[Path], finished: Iterable[Path] = ()) -> list[dict[str, str]]:
    """One line per failure, for a table: folder, command, and reason.

    Args:
        failures: failure files of runs; skipped if their command has a result in another folder.
        finished: folders of runs with a result.
    """
    done = list(map(read_overrides, finished)) if failures else []
    return [
        {"failed": folder.name, "command": overrides_command(folder) or "–", "because": failure_message(file)}
        for file, folder in ((file, file.parent) for file in failures)
        if (overrides := read_overrides(folder)) is None or overrides not in done
    ]


def failure_message(file: Path) -> str:
    """The reason in a run's failure file, or that it cannot be read."""
    try:
        content = read_json_bounded(file)
    except ValueError as error:
        return f"{file} cannot be read ({error})"
    if not isinstance(content, dict) or not isinstance(content.get("message"), str):
        return f"{file} cannot be read (it holds no message)"
    return content["message"]
