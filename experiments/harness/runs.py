"""Run the whole program, in this process, in a process pool, or in new processes.

A study is a list of points; each is one run of `run.py` and becomes one row. Finished points are never repeated, so the next
call resumes a stopped study.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsefront.results.record import Result

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
# overrides of every point of a study
QUIET = ("logger=none", "trainer.progress_bar=false", "report.html=false", "report.plot=false")
# of runs that need no GPU
ON_CPU = ("trainer=cpu", "measure.device=cpu", "logger=none", "report.html=false", "report.plot=false")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
PLACES = ("model.path", "dataset.path", "cache_dir", "results_dir")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add --minutes, which studies share."""
    parser.add_argument("--minutes", type=float, default=float("inf"), help="nothing is begun after so many")


def ends_at(minutes: float) -> float:
    """The value of `time.monotonic()` in this many minutes."""
    return time.monotonic() + 60 * minutes


def over(ends_at: float) -> bool:
    """Whether the time is up, so that nothing new starts."""
    return time.monotonic() >= ends_at


def record_of(overrides: Iterable[str]) -> "Result | str | None":
    """Run a point in this process, reusing stored stages.

    Args:
        overrides: of run.py.
    Returns:
        its result; None if it ends before it is measured; or the reason why the point is unsupported.
    Raises:
        Obstacle: the point could not run for lack of disk space, memory or a package.
    """
    from sparsefront.errors import InvalidSetting, Obstacle
    from sparsefront.runs import run

    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):  # tables of each result
        try:
            return run(*overrides).record
        except Obstacle:
            raise
        except InvalidSetting as error:
            return " ".join(str(error).split())


def without_places(overrides: Iterable[str]) -> list[str]:
    """Overrides without local folders, which do not identify a point."""
    return [text for text in overrides if text.partition("=")[0] not in PLACES]


def folders_below(folder: Path) -> list[str]:
    """Overrides that place results and cache below a folder."""
    return [f"results_dir={folder / 'results'}", f"cache_dir={folder / 'cache'}"]


def start(
    folder: Path,
    *overrides: str,
    program: Sequence[str | Path] = (ROOT / "run.py",),
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen:
    """Start the program in a new process below a folder, with its output appended to the log. It leads a new session, which
    identifies its child processes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, *map(str, program), *overrides, *folders_below(folder)]
    with _log(folder).open("a", encoding="utf-8") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, env=os.environ | dict(environment or {}), start_new_session=True
        )


def _log(folder: Path) -> Path:
    """The log file, next to the folder, whose disk may be full."""
    return folder.parent / f"{folder.name}.log"


def log_of(folder: Path) -> str:
    """The output of all runs below a folder."""
    return _log(folder).read_text(encoding="utf-8")


def rows_of(folder: Path) -> dict[str, Any]:
    """Point -> its row below a folder, without times: exact quality, sparsity and bytes."""
    rows = {}
    for file in sorted(folder.glob("results/**/row.json")):
        row = json.loads(file.read_text(encoding="utf-8"))
        choice, sparsity = row["choice"], row["sparsity"]
        point = [choice["pattern"], choice["granularity"], sparsity["sparsity_target"], row["identity"]["seed"]]
        quality = {name: value for name, value in row["quality"].items() if isinstance(value, float | int)}
        rows[json.dumps(point)] = [quality, sparsity, row["size"].get("weight_bytes_sparse")]
    return rows
