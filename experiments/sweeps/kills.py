"""Does a search that is killed again and again give the rows of one that is not?

    python -m experiments.sweeps.kills FOLDER [--points 24] [--kills 20] [--workers 2] [OVERRIDE ...]

Several processes work on one study. At random moments one of them is killed with SIGKILL and another one started in its place. In
the end the study is compared with one that was left alone: the same points with the same quality, trainings that went on where
their last epoch had ended, and nothing that is still held. Writes FOLDER/kills.json, with what it was made by; ends with status 1
where any of that fails. kills_page.py makes the table of README.md from a kills.json beside it.
"""

import argparse
import json
import os
import platform
import random
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sparsefront.artifacts.content_digest import versions
from sparsefront.provenance import code_commit

ROOT = Path(__file__).resolve().parents[2]
SEARCH = ["hydra/sweeper=optuna", "hydra/sweeper/sampler=random", "optimize=[val_sparse,latency_sparse_ms]"]
SPACE = ["sparsity=interval(0.5,0.9)", "pattern=n_m,tile_wise,block_wise", "granularity=8,16"]
QUIET = ["trainer=cpu", "measure.device=cpu", "logger=none", "report.html=false", "report.plot=false"]
LIBRARIES = ("hydra-core", "optuna", "torch", "pytorch-lightning")
RESUMED = re.compile(r"going on after epoch (\d+) of \d+")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--points", type=int, default=24)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options, more = parser.parse_known_args()
    found = {"points": options.points, "workers": options.workers, "overrides": more, "made_by": _made_by()}
    for name, kills in (("undisturbed", 0), ("killed", options.kills)):
        folder = options.folder / name
        start = time.perf_counter()
        found[name] = {**_work(folder, kills, options, more), "seconds": round(time.perf_counter() - start)}
        found[name] |= {"held": len(list(folder.rglob("*.leases"))), "partial": len(list(folder.rglob("*.partial-*")))}
    rows = {name: _rows(options.folder / name) for name in ("undisturbed", "killed")}
    found["same_rows"] = rows["undisturbed"] == rows["killed"] and len(rows["killed"]) > 0
    found["rows"] = len(rows["killed"])
    (options.folder / "kills.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))
    sound = found["same_rows"] and not found["killed"]["held"] and not found["killed"]["partial"]
    return 0 if sound else 1


def _made_by() -> dict[str, Any]:
    date = datetime.now(UTC).date().isoformat()
    libraries = {"python": platform.python_version(), **versions(*LIBRARIES)}
    return {"date": date, "commit": code_commit(), "cores": os.cpu_count(), **libraries}


def _work(folder: Path, kills: int, options: argparse.Namespace, more: list[str]) -> dict[str, Any]:
    """Work on the study until it has its points; a last process of its own sweeps up after the last kill."""
    folder.mkdir(parents=True)
    draw, done, workers, resumed = random.Random(options.seed), 0, [], 0
    next_kill = time.monotonic() + draw.uniform(5, 15)
    while True:
        workers = [worker for worker in workers if worker.poll() is None]
        finished = len({file.parent for file in folder.glob("results/*/*/row.json")}) >= options.points
        if finished and not workers:
            break
        while len(workers) < options.workers and not finished:
            workers.append(_start(folder, options, more))
        if done < kills and time.monotonic() > next_kill and workers:
            victim = draw.choice(workers)
            os.kill(victim.pid, signal.SIGKILL)
            victim.wait()
            done, next_kill = done + 1, time.monotonic() + draw.uniform(5, 15)
        time.sleep(0.1)
    last = _start(folder, options, more)
    last.wait()
    resumed = sum(len(RESUMED.findall(log.read_text())) for log in folder.glob("results/*/*/*.log"))
    return {"kills": done, "trainings_resumed": resumed}


def _start(folder: Path, options: argparse.Namespace, more: list[str]) -> subprocess.Popen:
    places = [f"results_dir={folder / 'results'}", f"cache_dir={folder / 'cache'}"]
    command = [sys.executable, str(ROOT / "run.py"), "-m", *SEARCH, f"hydra.sweeper.n_trials={options.points}", *SPACE]
    with (folder / "workers.log").open("a") as log:
        return subprocess.Popen([*command, *QUIET, *places, *more], stdout=log, stderr=log)


def _rows(folder: Path) -> dict[str, Any]:
    """What was asked for and how good it is, by run; times are never the same twice."""
    found = {}
    for file in folder.glob("results/*/*/row.json"):
        row = json.loads(file.read_text())
        quality = {name: value for name, value in row["quality"].items() if isinstance(value, float)}
        key = [row["choice"]["pattern"], row["choice"]["granularity"], row["sparsity"]["sparsity_target"]]
        found[json.dumps(key)] = {**quality, "achieved": row["sparsity"]["sparsity_achieved"]}
    return found


if __name__ == "__main__":
    sys.exit(main())
