"""Does a process that sleeps past its lease, on a machine of its own, lose its row to runs of other machines?

    python -m experiments.faults.sleep FOLDER [--tries 20]

Each try starts a tiny run as if on another machine, stops it with SIGSTOP at a random moment and sets the time of its leases
back, as if it had slept for minutes. Then a run of a second machine works in the same folders: by turns one that has nothing in
common with the sleeper, and one that shares its dense network. After that the sleeper is woken (SIGCONT): it has to end well,
with the row of a run that was left alone, to the digit, in its folder and in rows.csv. FOLDER must not exist.
"""

import argparse
import csv
import os
import random
import runpy
import shutil
import signal
import sys
import time
from pathlib import Path

from experiments.faults.tiny_runs import ROOT, count, finish, found, log_of, start
from sparsefront.artifacts import lease
from sparsefront.artifacts.lease import LEASE_S

SLEPT_S = LEASE_S + 60
OTHERS = {"nothing in common": ["seed=7"], "the same dense network": ["sparsity=0.5"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder, draw = options.folder.absolute(), random.Random(options.seed)
    began = time.monotonic()
    assert finish(folder / "undisturbed") == 0, f"the undisturbed run failed: see {folder / 'undisturbed.log'}"
    life, expected = time.monotonic() - began, found(folder / "undisturbed")
    tried = lost = 0
    while tried < options.tries:
        place, other = folder / f"sleep_{tried}", list(OTHERS)[tried % len(OTHERS)]
        sleeper = start(place, program=_on("sleeper_0"))
        time.sleep(draw.uniform(0.1 * life, life))
        sleeper.send_signal(signal.SIGSTOP)
        if not _set_back(place, "sleeper_0"):  # it holds nothing yet, or no more
            sleeper.kill()
            sleeper.wait()
            shutil.rmtree(place)
            continue
        tried += 1
        ends = [finish(place, *OTHERS[other], program=_on("awake_0"))]
        sleeper.send_signal(signal.SIGCONT)
        ends.append(sleeper.wait())
        if why := _what_is_wrong(place, ends, expected):
            lost += 1
            print(f"lost, beside a run with {other}: {why}; see {place}.log")
        else:
            shutil.rmtree(place)
    count(
        "a process sleeps past its lease, and wakes",
        tried,
        lost,
        "by turns a run with nothing or the dense network in common",
    )
    return 1 if lost else 0


def _on(host: str) -> list[str | Path]:
    """What runs the program as if on a machine of this name."""
    return ["-m", __spec__.name, "--as-host", host]


def _set_back(folder: Path, host: str) -> int:
    """Make the signs of life of a host old; gives how many there are."""
    files = [file for file in folder.rglob(f"*.{host}.*") if file.parent.name.endswith((".leases", ".running"))]
    for file in files:
        os.utime(file, (time.time() - SLEPT_S,) * 2)
    return len(files)


def _what_is_wrong(folder: Path, ends: list[int], expected: dict) -> str:
    """Empty where nothing is lost."""
    (point,) = expected
    rows = found(folder)
    if ends != [0, 0]:
        return f"exit statuses {ends}"
    if rows.get(point) != expected[point]:
        return "its row is missing" if point not in rows else "its row is another one"
    if len(rows) != 2:
        return f"{len(rows)} rows"
    with (folder / "results" / "rows.csv").open(newline="") as file:
        if len(list(csv.DictReader(file))) != 2:
            return "rows.csv lacks a line"
    if failures := list(folder.rglob("failure.json")):
        return f"{failures[0]} says that it failed"
    return "a stack trace" if "Traceback" in log_of(folder) else ""


def _run_as(host: str, arguments: list[str]) -> None:
    lease.host = lambda: host
    sys.path[0] = str(ROOT)
    sys.argv = [str(ROOT / "run.py"), *arguments]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-host"]:
        _run_as(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main())
