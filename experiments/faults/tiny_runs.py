"""What the fault scripts share: tiny runs of the program in processes of their own, what they found, and the table of counts."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sparsefront.artifacts.content_digest import versions
from sparsefront.results.store import put_line

ROOT = Path(__file__).resolve().parents[2]
COUNTS = Path(__file__).resolve().parent / "counts.csv"
SMALL = [
    "debug=tiny",
    "model.dim=64",
    "model.depth=1",
    "measure.evaluate_limit=8",
    "measure.variants=[]",
    "kernel.fuse=false",
]
QUIET = ["trainer=cpu", "measure.device=cpu", "logger=none", "report.html=false", "report.plot=false"]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "CUDA_VISIBLE_DEVICES": ""}


def start(folder: Path, *overrides: str, program: Sequence[str | Path] = (ROOT / "run.py",)) -> subprocess.Popen:
    """A tiny run into a folder, which takes what it prints too (`log`); it leads a session, whose processes are found by that."""
    folder.mkdir(parents=True, exist_ok=True)
    places = [f"results_dir={folder / 'results'}", f"cache_dir={folder / 'cache'}"]
    command = [sys.executable, *map(str, program), *SMALL, *QUIET, *places, *overrides]
    with (folder.parent / f"{folder.name}.log").open("a") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | ONE_THREAD, start_new_session=True)


def finish(folder: Path, *overrides: str, program: Sequence[str | Path] = (ROOT / "run.py",)) -> int:
    """Start and wait for the end; gives the exit status."""
    return start(folder, *overrides, program=program).wait()


def log_of(folder: Path) -> str:
    """What all runs into a folder printed; it lies beside it, since its disk may be full."""
    return (folder.parent / f"{folder.name}.log").read_text()


def found(folder: Path) -> dict[str, Any]:
    """By point what its row says but for times: every digit of quality and sparsity, and bytes."""
    rows = {}
    for row in _rows(folder):
        point = [row["choice"]["pattern"], row["sparsity"]["sparsity_target"], row["identity"]["seed"]]
        quality = {name: value for name, value in row["quality"].items() if isinstance(value, float | int)}
        rows[json.dumps(point)] = [quality, row["sparsity"], row["size"].get("weight_bytes_sparse")]
    return rows


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(folder.glob("results/**/row.json")):
        yield json.loads(file.read_text())


def count(fault: str, tried: int, lost: int, note: str) -> None:
    """Print a line of the table, and put it into counts.csv."""
    print(f"{'what':<60} {'tried':>6} {'lost':>6}\n{fault:<60} {tried:>6} {lost:>6}   {note}", flush=True)
    made_by = {"date": datetime.now(UTC).date().isoformat(), "python": platform.python_version(), **versions("torch")}
    put_line(COUNTS, {"fault": fault, "tried": tried, "lost": lost, **made_by, "note": note}, key="fault")
