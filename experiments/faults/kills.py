"""Does a run that is killed at any moment, and started again, give the same row? Do joblib's workers end with their sweep?

    python -m experiments.faults.kills FOLDER [--tries 128] [--sweeps 10]

Each try starts a tiny run in a new folder, kills it with SIGKILL at a random moment of its life, and starts the same command
again: the row has to be that of a run that was left alone, to the digit. Then sweeps of two workers (extra `joblib`) are begun,
and their main process is killed: a sweep counts as lost where a process of it lives 5 s later. FOLDER must not exist.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from experiments.faults.tiny_runs import count, finish, found, start

ENDS_WITHIN_S = 5.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tries", type=int, default=128)
    parser.add_argument("--sweeps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    draw = random.Random(options.seed)
    lost = _killed_runs(options.folder.absolute(), options.tries, draw) if options.tries else 0
    if options.sweeps and find_spec("hydra_plugins.hydra_joblib_launcher") is None:
        print("sweeps skipped: hydra-joblib-launcher is not installed (extra `joblib`)")
    elif options.sweeps:
        lost += _killed_sweeps(options.folder.absolute(), options.sweeps, draw)
    return 1 if lost else 0


def _killed_runs(folder: Path, tries: int, draw: random.Random) -> int:
    began = time.monotonic()
    finish(folder / "undisturbed")
    life, expected = time.monotonic() - began, found(folder / "undisturbed")
    assert len(expected) == 1, "the undisturbed run has a row"
    tried = lost = 0
    while tried < tries:
        place, began = folder / f"run_{tried}", time.monotonic()
        run = start(place)
        if _ended_within(draw.uniform(0.0, life), run):
            life = time.monotonic() - began  # of the machine as busy as it is now
            shutil.rmtree(place)
            continue
        run.kill()
        run.wait()
        tried, life = tried + 1, 1.1 * life
        if finish(place) == 0 and found(place) == expected and not _failures_beside_rows(place):
            shutil.rmtree(place)
        else:
            lost += 1
            print(f"lost: see {place}", flush=True)
    count(
        "a run is killed (SIGKILL at a random moment)",
        tried,
        lost,
        "the same command again gives the same row to the digit",
    )
    return lost


def _ended_within(seconds: float, run: subprocess.Popen) -> bool:
    try:
        run.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _failures_beside_rows(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("failure.json") if (file.parent / "row.json").exists()]


def _killed_sweeps(folder: Path, sweeps: int, draw: random.Random) -> int:
    lost = 0
    for number in range(sweeps):
        place = folder / f"sweep_{number}"
        sweep = start(
            place, "-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "sparsity=0.5,0.75", "seed=0,1,2"
        )
        while len(list(place.glob("results/*/*/.running/*"))) < 2:  # two points work
            assert sweep.poll() is None, f"the sweep ended: see {place}.log"
            time.sleep(0.05)
        time.sleep(draw.uniform(0.0, 5.0))
        sweep.kill()
        sweep.wait()
        deadline = time.monotonic() + ENDS_WITHIN_S
        while (left := _of_session(sweep.pid)) and time.monotonic() < deadline:
            time.sleep(0.1)
        lost += bool(left)
        for process in left:
            os.kill(process, signal.SIGKILL)
        shutil.rmtree(place)
    count(
        "a sweep with joblib is killed (its main process)",
        sweeps,
        lost,
        f"a worker lives {ENDS_WITHIN_S:g} s later = lost",
    )
    return lost


def _of_session(leader: int) -> list[int]:
    """The living processes that a process which led a session started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:  # it ended at this moment
            continue
        if int(session) == leader and state not in ("Z", "X"):
            found.append(int(folder.name))
    return found


if __name__ == "__main__":
    sys.exit(main())
