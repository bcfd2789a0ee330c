"""Does a disk that fills up while a search runs cost the search a point?

    python -m experiments.faults.disk_full FOLDER [--tries 20] [--megabytes 256]

A search (extra `sweep`) works on a disk of its own, a tmpfs, which is filled to the last byte: by turns at a random moment, and
at the end of a run whose lines in the journal of the study need another block, so that one of them is cut in half. Once the
search has ended, the file that filled the disk is removed and the same command started again, and so on. In the end the study has
to hold the points of one that was left alone, with their values to the digit, each once; no start may fail before its disk is
full. Mounting takes root: without it nothing is tried. FOLDER must not exist.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from experiments.faults.tiny_runs import count, finish, found, log_of, start

SEARCH = ["-m", "hydra/sweeper=optuna", "hydra/sweeper/sampler=random", "optimize=[val_sparse]"]
JOURNAL = Path("results", "studies", "search.journal")
BLOCK, OF_A_POINT = 4096, 2000  # bytes of a tmpfs's block; of the lines that tell of a point and ask for the next one
ROOM = 32 * 2**20  # bytes that a start finds free
SPACE = ["sparsity=interval(0.5,0.9)", "pattern=n_m,tile_wise,block_wise", "granularity=8,16"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if find_spec("optuna") is None:
        print("skipped: optuna is not installed (extra `sweep`)")
        return 0
    folder, disk = options.folder.absolute(), options.folder.absolute() / "disk"
    disk.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={options.megabytes}m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        print("skipped: a tmpfs cannot be mounted here; it takes root")
        return 0
    try:
        return _search_on(disk, folder, options.tries, random.Random(options.seed))
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def _search_on(disk: Path, folder: Path, tries: int, draw: random.Random) -> int:
    tried, lost, many = 0, 0, f"hydra.sweeper.n_trials={10 * tries}"
    while tried < tries:
        before = _points(disk)
        _leave(disk, ROOM)
        search = start(disk, *SEARCH, *SPACE, many)
        _wait_for_a_moment(disk, search, draw, in_a_line=tried % 2 == 1)
        tried += 1
        if search.poll() is not None:
            lost += 1
            print(f"lost: the search ended before the disk was full: see {disk}.log")
            break
        _fill(disk / "filler")
        search.wait()
        (disk / "filler").unlink()
        after = _points(disk)
        if missing := [point for point in before if before[point] != after.get(point)]:
            lost += 1
            print(f"lost: points {missing}")
    (disk / "ballast").unlink()
    asked = max(_points(disk, finished=False), default=0) + 1
    finish(disk, *SEARCH, *SPACE, f"hydra.sweeper.n_trials={asked}")
    finish(folder / "undisturbed", *SEARCH, *SPACE, f"hydra.sweeper.n_trials={asked}")
    here, there = _points(disk), _points(folder / "undisturbed")
    if not (here == there and sorted(here) == list(range(asked)) and found(disk) == found(folder / "undisturbed")):
        print(f"lost: the study holds {here}, and one that was left alone {there}")
        lost = max(lost, 1)
    log = log_of(disk)
    dropped, traces = log.count("ended in half a line"), log.count("Traceback")
    note = f"one search of {asked} points; half a line was dropped {dropped} times; {traces} stack traces"
    count("the disk fills up while a search works (optuna)", tried, lost, note)
    return 1 if lost else 0


def _wait_for_a_moment(disk: Path, search: subprocess.Popen, draw: random.Random, *, in_a_line: bool) -> None:
    """Some seconds; or until a run has added its row and its next lines in the journal need another block. At most a minute."""
    began, at_least = time.monotonic(), draw.uniform(0.0, 15.0)
    rows = _size(disk / "results" / "rows.csv")
    while search.poll() is None and (waited := time.monotonic() - began) < 60:
        if not in_a_line and waited > at_least:
            return
        if in_a_line and _size(disk / "results" / "rows.csv") > rows:
            rows = _size(disk / "results" / "rows.csv")
            if _size(disk / JOURNAL) % BLOCK > BLOCK - OF_A_POINT:
                return
        time.sleep(0.001)


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _leave(disk: Path, free: int) -> None:
    """Fill the disk but for so many bytes, so that the rest takes no time."""
    (disk / "ballast").unlink(missing_ok=True)
    with (disk / "ballast").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, shutil.disk_usage(disk).free - free))


def _fill(filler: Path) -> None:
    """Take every byte."""
    with filler.open("wb", buffering=0) as file:
        for size in (2**20, BLOCK, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def _points(place: Path, *, finished: bool = True) -> dict[int, Any]:
    """Number of a point -> its settings and values, of those that are finished or of all; twice the same is an error."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    journal = place / JOURNAL
    if not journal.exists() or not journal.read_bytes().count(b"\n"):
        return {}
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.load_study(study_name="search", storage=JournalStorage(JournalFileBackend(str(journal))))
    points: dict[int, Any] = {}
    for trial in study.get_trials(deepcopy=False):
        if "number" not in trial.user_attrs or (finished and trial.state.name != "COMPLETE"):
            continue
        number = trial.user_attrs["number"]
        assert not finished or number not in points, f"point {number} is there twice"
        points[number] = [trial.params, trial.values]
    return points


if __name__ == "__main__":
    sys.exit(main())
