"""Points that ended without a result: why a cell of a study is missing."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from sparsefront.artifacts.bounded_files import read_json_bounded
from sparsefront.report.run_command import overrides_command


def failed_runs(failures: Sequence[Path], finished: Iterable[Path] = ()) -> list[dict[str, str]]:
    """One line per failure, for a table: where, the command, and why.

    Args:
        failures: files in which runs say so; one whose command finished in another folder is left out.
        finished: folders of runs that have a result.
    """
    done = set(map(overrides_command, finished)) - {None} if failures else set()
    return [
        {"failed": file.parent.name, "command": command or "–", "because": failure_message(file)}
        for file in failures
        if (command := overrides_command(file.parent)) not in done
    ]


def failure_message(file: Path) -> str:
    """Why a run failed, as its file says; or that the file cannot be read."""
    try:
        content = read_json_bounded(file)
    except ValueError as error:
        return f"{file} cannot be read ({error})"
    if not isinstance(content, dict) or not isinstance(content.get("message"), str):
        return f"{file} cannot be read (it holds no message)"
    return content["message"]
