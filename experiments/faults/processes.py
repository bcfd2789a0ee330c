"""Test that runs survive kills, sleeping machines and full disks.

    python -m experiments.faults.processes kills FOLDER [--tries 128] [--sweeps 10]
    python -m experiments.faults.processes sleeps FOLDER [--tries 20]
    python -m experiments.faults.processes full_disks FOLDER [--tries 20] [--megabytes 256]

kills: each try starts a tiny run in a new folder, kills it with SIGKILL at a random moment and starts the same command again: the
row must be exactly that of an undisturbed run. Then the main process of sweeps with two workers (extra `joblib`) is killed: a
sweep counts as lost if one of its processes is alive 5 s later.

sleeps: each try starts a tiny run as if on another machine, stops it with SIGSTOP at a random moment and backdates its leases, as
if it had slept for minutes. Then a run on a second machine works in the same folders, which alternately shares the sleeper's
dense network or nothing. After SIGCONT the sleeper must succeed, with exactly the row of an undisturbed run in its folder and in
rows.csv.

full_disks: a search (extra `sweep`) works on its own tmpfs, which is filled to the last byte, alternately at a random moment, and
at the end of a run whose lines in the study's journal need another block, so that a line is cut in half. When the search has
ended, the filler is removed and the command is started again, repeatedly. In the end the study must hold each point of an
undisturbed study once, with exactly its values; no start may fail before its disk is full. Mounting needs root; without it this
test is skipped.

FOLDER must not exist.
"""

import argparse
import csv
import os
import random
import runpy
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from experiments.harness import runs
from experiments.harness.rows import made_by, replace_lines
from experiments.harness.runs import log_of, rows_of
from sparsefront.artifacts import lease
from sparsefront.artifacts.lease import LEASE_S

HERE = Path(__file__).resolve().parent
COUNTS = HERE / "counts.csv"
TINY = [
    "debug=tiny",
    "model.dim=64",
    "model.depth=1",
    "measure.evaluate_limit=8",
    "measure.variants=[]",
    "kernel.fuse=false",
]
ENVIRONMENT = runs.ONE_THREAD | {"OMP_WAIT_POLICY": "PASSIVE", "CUDA_VISIBLE_DEVICES": ""}
ENDS_WITHIN_S = 5.0
SLEPT_S = LEASE_S + 60
OTHERS = {"nothing in common": ["seed=7"], "the same dense network": ["sparsity=0.5"]}
SEARCH = ["-m", "hydra/sweeper=optuna", "hydra/sweeper/sampler=random", "optimize=[val_sparse]"]
JOURNAL = Path("results", "studies", "search.journal")
BLOCK, OF_A_POINT = 4096, 2000  # bytes of a tmpfs block; of the journal lines that finish a point and ask for the next
ROOM = 32 * 2**20  # free bytes at a start
SPACE = ["sparsity=interval(0.5,0.9)", "pattern=n_m,tile_wise,block_wise", "granularity=8,16"]

Program = tuple[str | Path, ...]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("fault", choices=("kills", "sleeps", "full_disks"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tries", type=int, help="128 kills, or 20 of the others")
    parser.add_argument("--sweeps", type=int, default=10, help="of joblib that are killed")
    parser.add_argument("--megabytes", type=int, default=256, help="of the disk")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    tries = options.tries if options.tries is not None else 128 if options.fault == "kills" else 20
    work = {
        "kills": partial(_kills, sweeps=options.sweeps),
        "sleeps": _sleeps,
        "full_disks": partial(_full_disks, megabytes=options.megabytes),
    }[options.fault]
    return 1 if work(options.folder.absolute(), tries, random.Random(options.seed)) else 0


def _start(folder: Path, *overrides: str, program: Program = (runs.ROOT / "run.py",)) -> subprocess.Popen:
    """Start a tiny run below a folder."""
    return runs.start(folder, *TINY, *runs.ON_CPU, *overrides, program=program, environment=ENVIRONMENT)


def _finish(folder: Path, *overrides: str, program: Program = (runs.ROOT / "run.py",)) -> int:
    """Start a tiny run and wait for it; return the exit status."""
    return _start(folder, *overrides, program=program).wait()


def _count(fault: str, tried: int, lost: int, note: str) -> None:
    """Print a line of the table and add it to counts.csv."""
    print(f"{'what':<60} {'tried':>6} {'lost':>6}\n{fault:<60} {tried:>6} {lost:>6}   {note}", flush=True)
    line = {"fault": fault, "tried": tried, "lost": lost, **made_by("torch"), "note": note}
    replace_lines(COUNTS, {"fault": fault}, [line])


def _kills(folder: Path, tries: int, draw: random.Random, sweeps: int) -> int:
    """Kill runs, then joblib sweeps."""
    lost = _killed_runs(folder, tries, draw) if tries else 0
    if sweeps and find_spec("hydra_plugins.hydra_joblib_launcher") is None:
        print("sweeps skipped: hydra-joblib-launcher is not installed (extra `joblib`)")
        return lost
    return lost + _killed_sweeps(folder, sweeps, draw) if sweeps else lost


def _killed_runs(folder: Path, tries: int, draw: random.Random) -> int:
    began = time.monotonic()
    _finish(folder / "undisturbed")
    life, expected = time.monotonic() - began, rows_of(folder / "undisturbed")
    assert len(expected) == 1, "the undisturbed run has a row"
    tried = lost = 0
    while tried < tries:
        place, began = folder / f"run_{tried}", time.monotonic()
        run = _start(place)
        if _ended_within(draw.uniform(0.0, life), run):
            life = time.monotonic() - began  # at the machine's current load
            shutil.rmtree(place)
            continue
        run.kill()
        run.wait()
        tried, life = tried + 1, 1.1 * life
        if _finish(place) == 0 and rows_of(place) == expected and not _failures_beside_rows(place):
            shutil.rmtree(place)
        else:
            lost += 1
            print(f"lost: see {place}", flush=True)
    _count(
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
        sweep = _start(
            place, "-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "sparsity=0.5,0.75", "seed=0,1,2"
        )
        while len(list(place.glob("results/*/*/.running/*"))) < 2:  # until two points run
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
    _count(
        "a sweep with joblib is killed (its main process)",
        sweeps,
        lost,
        f"a worker lives {ENDS_WITHIN_S:g} s later = lost",
    )
    return lost


def _of_session(leader: int) -> list[int]:
    """Live processes in the session of this leader."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[:4]
        except OSError:  # it has just ended
            continue
        if int(session) == leader and state not in ("Z", "X"):
            pids.append(int(folder.name))
    return pids


def _sleeps(folder: Path, tries: int, draw: random.Random) -> int:
    """Let processes sleep past their lease."""
    began = time.monotonic()
    assert _finish(folder / "undisturbed") == 0, f"the undisturbed run failed: see {folder / 'undisturbed.log'}"
    life, expected = time.monotonic() - began, rows_of(folder / "undisturbed")
    tried = lost = 0
    while tried < tries:
        place, other = folder / f"sleep_{tried}", list(OTHERS)[tried % len(OTHERS)]
        sleeper = _start(place, program=_on("sleeper_0"))
        time.sleep(draw.uniform(0.1 * life, life))
        sleeper.send_signal(signal.SIGSTOP)
        if not _set_back(place, "sleeper_0"):  # it holds no lease
            sleeper.kill()
            sleeper.wait()
            shutil.rmtree(place)
            continue
        tried += 1
        ends = [_finish(place, *OTHERS[other], program=_on("awake_0"))]
        sleeper.send_signal(signal.SIGCONT)
        ends.append(sleeper.wait())
        why = _what_is_wrong(place, ends, expected)
        if why:
            lost += 1
            print(f"lost, beside a run with {other}: {why}; see {place}.log")
        else:
            shutil.rmtree(place)
    _count(
        "a process sleeps past its lease, and wakes",
        tried,
        lost,
        "by turns a run with nothing or the dense network in common",
    )
    return lost


def _on(host: str) -> Program:
    """Command prefix that runs the program as if on a machine of this name."""
    return ("-m", "experiments.faults.processes", "--as-host", host)


def _set_back(folder: Path, host: str) -> int:
    """Backdate a host's leases; return how many there are."""
    files = [file for file in folder.rglob(f"*.{host}.*") if file.parent.name.endswith((".leases", ".running"))]
    for file in files:
        os.utime(file, (time.time() - SLEPT_S,) * 2)
    return len(files)


def _what_is_wrong(folder: Path, ends: list[int], expected: dict) -> str:
    """Describe what was lost; "" if nothing."""
    (point,) = expected
    rows = rows_of(folder)
    if ends != [0, 0]:
        return f"exit statuses {ends}"
    if rows.get(point) != expected[point]:
        return "its row is missing" if point not in rows else "its row is another one"
    if len(rows) != 2:
        return f"{len(rows)} rows"
    with (folder / "results" / "rows.csv").open(newline="", encoding="utf-8") as file:
        if len(list(csv.DictReader(file))) != 2:
            return "rows.csv lacks a line"
    failures = list(folder.rglob("failure.json"))
    if failures:
        return f"{failures[0]} says that it failed"
    return "a stack trace" if "Traceback" in log_of(folder) else ""


def _run_as(host: str, arguments: list[str]) -> None:
    lease.host = lambda: host
    sys.path[0] = str(runs.ROOT)
    sys.argv = [str(runs.ROOT / "run.py"), *arguments]
    runpy.run_path(sys.argv[0], run_name="__main__")


def _full_disks(folder: Path, tries: int, draw: random.Random, megabytes: int) -> int:
    """Fill the disk of a search."""
    if find_spec("optuna") is None:
        print("skipped: optuna is not installed (extra `sweep`)")
        return 0
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        print("skipped: a tmpfs cannot be mounted here; it takes root")
        return 0
    try:
        return _search_on(disk, folder, tries, draw)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def _search_on(disk: Path, folder: Path, tries: int, draw: random.Random) -> int:
    tried, lost, many = 0, 0, f"hydra.sweeper.n_trials={10 * tries}"
    while tried < tries:
        before = _points_of(disk)
        _leave(disk, ROOM)
        search = _start(disk, *SEARCH, *SPACE, many)
        _wait_for_a_moment(disk, search, draw, in_a_line=tried % 2 == 1)
        tried += 1
        if search.poll() is not None:
            lost += 1
            print(f"lost: the search ended before the disk was full: see {disk}.log")
            break
        _fill(disk / "filler")
        search.wait()
        (disk / "filler").unlink()
        after = _points_of(disk)
        missing = [point for point in before if before[point] != after.get(point)]
        if missing:
            lost += 1
            print(f"lost: points {missing}")
    (disk / "ballast").unlink()
    asked = max(_points_of(disk, finished=False), default=0) + 1
    _finish(disk, *SEARCH, *SPACE, f"hydra.sweeper.n_trials={asked}")
    _finish(folder / "undisturbed", *SEARCH, *SPACE, f"hydra.sweeper.n_trials={asked}")
    here, there = _points_of(disk), _points_of(folder / "undisturbed")
    if not (here == there and sorted(here) == list(range(asked)) and rows_of(disk) == rows_of(folder / "undisturbed")):
        print(f"lost: the study holds {here}, and one that was left alone {there}")
        lost = max(lost, 1)
    log = log_of(disk)
    dropped, traces = log.count("ended in half a line"), log.count("Traceback")
    note = f"one search of {asked} points; half a line was dropped {dropped} times; {traces} stack traces"
    _count("the disk fills up while a search works (optuna)", tried, lost, note)
    return lost


def _wait_for_a_moment(disk: Path, search: subprocess.Popen, draw: random.Random, *, in_a_line: bool) -> None:
    """Wait some seconds; or, up to a minute, until a run has added its row and its next journal lines need another block."""
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
    """Fill the disk up to `free` bytes, so that filling the rest is fast."""
    (disk / "ballast").unlink(missing_ok=True)
    with (disk / "ballast").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, shutil.disk_usage(disk).free - free))


def _fill(filler: Path) -> None:
    """Fill the disk to the last byte."""
    with filler.open("wb", buffering=0) as file:
        for size in (2**20, BLOCK, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def _points_of(place: Path, *, finished: bool = True) -> dict[int, Any]:
    """Point number -> settings and values, of finished or all points; duplicates are an error."""
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
    if sys.argv[1:2] == ["--as-host"]:
        _run_as(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main())
