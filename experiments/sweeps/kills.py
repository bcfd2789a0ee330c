"""Does a search that is killed again and again give the rows of one that is not?

    python -m experiments.sweeps.kills FOLDER [--points 24] [--kills 20] [--workers 2] [OVERRIDE ...]
    python -m experiments.sweeps.kills --page

Several processes work on one study. At random moments one of them is killed with SIGKILL and another one started in its place. In
the end the study is compared with one that was left alone: the same points with the same quality, trainings that went on where
their last epoch had ended, and nothing that is still held. Writes FOLDER/kills.json, with what it was made by; ends with status 1
where any of that fails. --page writes the table of README.md from a kills.json beside it.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from experiments.harness import page, runs
from experiments.harness.rows import made_by
from sparsefront.provenance import code_commit

HERE = Path(__file__).resolve().parent
MARKS = "<!-- kills: written by kills.py from kills.json -->", "<!-- end of the kills -->"
HEAD = ("study", "SIGKILLs", "seconds", "trainings resumed from an epoch", "leases left", "partial files left")
SEARCH = ["hydra/sweeper=optuna", "hydra/sweeper/sampler=random", "optimize=[val_sparse,latency_sparse_ms]"]
SPACE = ["sparsity=interval(0.5,0.9)", "pattern=n_m,tile_wise,block_wise", "granularity=8,16"]
STUDIES = ("undisturbed", "killed")
LIBRARIES = ("hydra-core", "optuna", "torch", "pytorch-lightning")
RESUMED = re.compile(r"going on after epoch (\d+) of \d+")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--page", action="store_true", help="only write the table of README.md")
    parser.add_argument("--points", type=int, default=24)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options, more = parser.parse_known_args()
    if options.page:
        page.fill(
            HERE / "README.md", MARKS, "\n".join(table(json.loads((HERE / "kills.json").read_text(encoding="utf-8"))))
        )
        return 0
    if options.folder is None:
        parser.error("FOLDER is where the studies work")
    made = {"commit": code_commit(), "cores": os.cpu_count(), **made_by(*LIBRARIES)}
    report = {"points": options.points, "workers": options.workers, "overrides": more, "made_by": made}
    for name, kills in (("undisturbed", 0), ("killed", options.kills)):
        folder = options.folder / name
        start = time.perf_counter()
        report[name] = {**_work(folder, kills, options, more), "seconds": round(time.perf_counter() - start)}
        report[name] |= {"held": len(list(folder.rglob("*.leases"))), "partial": len(list(folder.rglob("*.partial-*")))}
    rows = {name: runs.rows_of(options.folder / name) for name in STUDIES}
    report["same_rows"] = rows["undisturbed"] == rows["killed"] and len(rows["killed"]) > 0
    report["rows"] = len(rows["killed"])
    (options.folder / "kills.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=2))
    sound = report["same_rows"] and not report["killed"]["held"] and not report["killed"]["partial"]
    return 0 if sound else 1


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
    resumed = sum(len(RESUMED.findall(log.read_text(encoding="utf-8"))) for log in folder.glob("results/*/*/*.log"))
    return {"kills": done, "trainings_resumed": resumed}


def _start(folder: Path, options: argparse.Namespace, more: list[str]) -> subprocess.Popen:
    return runs.start(folder, "-m", *SEARCH, f"hydra.sweeper.n_trials={options.points}", *SPACE, *runs.ON_CPU, *more)


def table(found: dict[str, Any]) -> list[str]:
    """Markdown, of kills.json: a line per study, then what both share; what they were made by is in the file."""
    keys = ("kills", "seconds", "trainings_resumed", "held", "partial")
    lines = page.table(HEAD, [[name, *(found[name][key] for key in keys)] for name in STUDIES], rule=" --- |")
    same = f"the same {found['rows']} rows, bit-identical quality" if found["same_rows"] else "**other rows**"
    made = found["made_by"]
    overrides = " ".join(found["overrides"])
    setting = f"{found['points']} points, {found['workers']} workers on {made['cores']} cores, `{overrides}`"
    return [*lines, "", f"Both studies: {same} ({setting})."]


if __name__ == "__main__":
    sys.exit(main())
