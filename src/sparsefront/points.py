"""A sweep over the points of a file, in order of priority, as processes on all GPUs of this machine."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from omegaconf import DictConfig, OmegaConf
from pydantic import BeforeValidator, PositiveFloat, PositiveInt

from sparsefront.artifacts.bounded_files import load_yaml_bounded
from sparsefront.errors import InvalidSetting, keys_of, printable
from sparsefront.processes import TERMINATED
from sparsefront.progress import counted
from sparsefront.records import without_machine, write_record
from sparsefront.results.packed import RECORD, SUFFIX
from sparsefront.results.run_folder import FAILURE_FILE, read_overrides, record_failure
from sparsefront.results.store import read_results
from sparsefront.results.study_blocks import find_split_block
from sparsefront.settings_class import parameters_of, require_known, settings_class

GRACE_S = 30.0  # from SIGTERM, which a training answers after its current step, to SIGKILL
POLL_S = 0.2


def _existing_file(name: Any) -> Path:
    if not isinstance(name, Path | str) or not os.path.isfile(name):
        raise ValueError("must be a file with a list of points")
    return Path(name)


def _folder(name: Any) -> Path | None:
    if name is None:
        return None
    if not isinstance(name, Path | str) or name == "" or os.path.isfile(name):
        raise ValueError("must be null or a folder")
    return Path(name)


@settings_class()
class SweepSettings:
    """Settings of conf/hydra/sweeper/points.yaml.

    Args:
        points: YAML file, a list of points, each a list of overrides; the first begin first.
        seconds: time limit: no point begins after it, and running ones stop at a checkpoint; None: no limit.
        workers: points at a time on each GPU, or on a machine without one.
        pack: folder for a packed record of each finished point; points that have one there are not run; None: nothing is packed.
    Raises:
        InvalidSetting: a value of another type, or out of its range.
    """

    points: Annotated[Path, BeforeValidator(_existing_file)]
    seconds: PositiveFloat | None = None
    workers: PositiveInt = 1
    pack: Annotated[Path | None, BeforeValidator(_folder)] = None


def sweep_settings(settings: Mapping[str, Any]) -> SweepSettings:
    """Check the sweeper's settings; raises InvalidSetting with a key of `sweep`."""
    with keys_of("sweep"):
        require_known(parameters_of(SweepSettings), settings, "sweep")
        return SweepSettings(**settings)


@dataclass(frozen=True)
class Point:
    """A point of the file.

    Args:
        number: counts the file's points from 0.
        shared, own: overrides of all points and its own, which replace them.
        gpus: how many it takes (`trainer.devices`); 0 on a CPU.
    """

    number: int
    shared: tuple[str, ...]
    own: tuple[str, ...]
    gpus: int


def read_points(file: Path) -> list[list[str]]:
    """Overrides of each point of a file.

    Raises:
        InvalidSetting: it is not a list of lists of overrides, or two points are equal.
    """
    try:
        points = load_yaml_bounded(file)
    except ValueError as error:
        raise InvalidSetting("sweep.points", file, str(error)) from None
    if not isinstance(points, list) or not points:
        raise InvalidSetting(
            "sweep.points", file, "must be a list of points, each a list such as [seed=0, pattern=n_m]"
        )
    for number, point in enumerate(points):
        if not isinstance(point, list) or not all(isinstance(text, str) and re.search("^~|=", text) for text in point):
            raise InvalidSetting("sweep.points", file, f"point {number} must be a list such as [seed=0, pattern=n_m]")
        if point in points[:number]:
            raise InvalidSetting("sweep.points", file, f"points {points.index(point)} and {number} are equal")
    return points


def identity(overrides: Sequence[str]) -> frozenset[str]:
    """What identifies a point: its overrides without output settings and folders; the last one of a key counts."""
    last = {text.partition("=")[0].lstrip("+"): text for text in without_machine(overrides)}
    return frozenset(text.lstrip("+") for text in last.values())


def run_points(
    arguments: Sequence[str],
    settings: Mapping[str, Any],
    config: DictConfig,
    check: Callable[[Sequence[str]], DictConfig],
) -> None:
    """Run the points of a file that have no packed record yet. A point that fails does not stop the others.

    Args:
        arguments: overrides of all points; a point's own replace them.
        settings: of conf/hydra/sweeper/points.yaml.
        config: of the multirun, with Hydra's own part.
        check: composes a point from its overrides; raises InvalidSetting for one that cannot be composed.
    Raises:
        InvalidSetting: a wrong setting or point, before the first one begins; a time limit shorter than one point; a finished
            point that has another dense network than those of its study's block with a record.
        SystemExit: with status 1, points failed or could not be packed.
    """
    began = time.monotonic()
    sweep = sweep_settings(settings)
    folder, devices = Path(config.hydra.sweep.dir), visible_gpus()
    done, shortest = ({}, None) if sweep.pack is None else read_pack(sweep.pack)
    todo = []
    for number, own in enumerate(read_points(sweep.points)):
        composed = check([*arguments, *own])
        if identity([*arguments, *own]) not in done:
            todo.append(Point(number, tuple(arguments), tuple(own), _gpus_of(composed, devices)))
    if todo and sweep.seconds is not None and shortest is not None and sweep.seconds < shortest:
        allowed = (
            f"is too short for one point: the fastest of {counted(len(done), 'finished point')} took {shortest:.0f} s"
        )
        raise InvalidSetting("sweep.seconds", sweep.seconds, allowed)
    last = None if sweep.seconds is None else began + sweep.seconds
    _tell(f"{counted(len(todo), 'point')} to run, {len(done)} in {sweep.pack}" if done else counted(len(todo), "point"))
    with _Processes(folder, _flags(config), dict.fromkeys(devices or [""], sweep.workers)) as running:
        numbers = _work(todo, running, sweep, last, shortest or 0.0)
    complaints = [
        f"{counted(len(some), 'point')} {what}: {', '.join(map(str, sorted(some)))}"
        for what, some in numbers.items()
        if some
    ]
    if complaints:
        raise SystemExit("; ".join(complaints))


def read_pack(pack: Path) -> tuple[dict[frozenset[str], Path], float | None]:
    """Identity -> packed record in a folder, and the seconds of the fastest of these points without its dense training."""
    files = sorted(pack.glob(f"*{SUFFIX}"))
    places = {identity(overrides): file for file in files if (overrides := read_overrides(file)) is not None}
    results = read_results(files).results if files else []
    seconds = [
        sum(
            value or 0.0
            for value in (result.cost.prune_seconds, result.cost.recover_seconds, result.cost.measure_seconds)
        )
        for result in results
    ]
    return places, min(filter(None, seconds), default=None)


def _work(
    todo: list[Point], running: "_Processes", sweep: SweepSettings, last: float | None, shortest: float
) -> dict[str, list[int]]:
    """Begin points in their order as GPUs become free, until none is left or the time is over.

    Returns:
        "failed", or "finished but not packed" -> numbers of points.
    """
    numbers: dict[str, list[int]] = {"failed": [], "finished but not packed": []}
    stopped, total = 0, len(todo)
    while todo or running.points:
        late = last is not None and time.monotonic() + (shortest if todo else 0.0) >= last
        while todo and not late and running.begin(todo[0]):
            _tell(f"point {todo[0].number} begins: {shlex.join(todo.pop(0).own)}")
        if late and not running.points:
            break
        if last is not None and time.monotonic() >= last:
            running.stop()
        for point, status, log_file in running.collect():
            row = log_file.with_suffix("") / RECORD
            if status == 0:
                _tell(f"point {point.number} is finished")
                if sweep.pack is not None and row.exists():  # none where `stages` ends before the report
                    try:
                        record = write_record(row.parent, sweep.pack)
                    except (ValueError, OSError) as error:  # the others go on
                        numbers["finished but not packed"].append(point.number)
                        _tell(f"point {point.number} is not packed: {error}")
                    else:
                        _require_one_dense_network(record)
            elif running.stopped and status in (TERMINATED, -signal.SIGTERM, -signal.SIGKILL):
                stopped += 1
            else:
                numbers["failed"].append(point.number)
                reason = _last_line(log_file)
                if not (row.parent / FAILURE_FILE).exists():  # a killed process leaves none
                    row.parent.mkdir(exist_ok=True)
                    record_failure(row.parent, RuntimeError(f"it ended with status {status}: {reason}"))
                _tell(f"point {point.number} failed, {log_file}: {reason}")
        time.sleep(POLL_S)
    if todo or stopped:
        _tell(
            f"out of time: {stopped} of {total} points stopped, {len(todo)} have not begun; the same command continues"
        )
    return numbers


def _require_one_dense_network(record: Path) -> None:
    """Raise InvalidSetting if a study's block now has two dense networks, as after its first points ran on another machine."""
    (result,) = read_results([record]).results
    why = find_split_block(result, read_results(sorted(record.parent.glob(f"*{SUFFIX}"))).results)
    if why is not None:
        raise InvalidSetting(
            "sweep.pack", record.parent, f"{why}; another folder trains all points from the network here"
        )


class _Processes:
    """The running points, each a process group of its own with its GPUs; all are ended on exit from the context.

    Args:
        folder: of the sweep, for a folder and a log of each point.
        flags: of the command line.
        free: GPU -> how many more points it takes; "" where there is none.
    """

    def __init__(self, folder: Path, flags: Sequence[str], free: dict[str, int]) -> None:
        self._folder, self._flags, self._free = folder, flags, free
        self._most, self._kill_at = max(free.values()), float("inf")
        self.points: dict[subprocess.Popen, tuple[Point, list[str]]] = {}
        self.stopped = False

    def __enter__(self) -> "_Processes":
        self._before = signal.signal(signal.SIGTERM, _exit)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)
        self.stop()
        while self.points:
            for _ in self.collect():
                pass
            time.sleep(POLL_S)

    def begin(self, point: Point) -> bool:
        """Start a point on the GPUs with the fewest points; False where too few have room."""
        devices = sorted(self._free, key=self._free.__getitem__, reverse=True)[: max(1, point.gpus)]
        if not all(self._free[device] for device in devices):
            return False
        for device in devices:
            self._free[device] -= 1
        name = f"{point.number:03d}"
        command = [sys.executable, "-m", "sparsefront", "run", *self._flags, *point.shared, *point.own]
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "TQDM_DISABLE": "1"}
        if any(devices):
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        if self._most * len(self._free) > 1:
            environment["OMP_NUM_THREADS"] = "1"
        with (self._folder / f"{name}.log").open("ab") as output:
            process = subprocess.Popen(
                [*command, f"hydra.run.dir={self._folder / name}"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        self.points[process] = point, devices
        return True

    def collect(self) -> Iterator[tuple[Point, int, Path]]:
        """Points that have ended since the last call, with exit status and log; kills those that outlast `GRACE_S`."""
        if time.monotonic() > self._kill_at:
            self._signal(signal.SIGKILL)
        for process in [process for process in self.points if process.poll() is not None]:
            point, devices = self.points.pop(process)
            for device in devices:
                self._free[device] += 1
            yield point, process.returncode, self._folder / f"{point.number:03d}.log"

    def stop(self) -> None:
        """Ask all points to stop; a training does after its current step."""
        if not self.stopped:
            self.stopped, self._kill_at = True, time.monotonic() + GRACE_S
            self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        for process in self.points:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)


def visible_gpus() -> list[str]:
    """GPUs as `CUDA_VISIBLE_DEVICES` names them; all of the machine where it is not set."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    with suppress(OSError, subprocess.CalledProcessError):
        text = subprocess.run(["nvidia-smi", "-L"], capture_output=True, encoding="utf-8", check=True).stdout
        return [str(index) for index in range(sum(line.startswith("GPU ") for line in text.splitlines()))]
    return []


def _gpus_of(config: DictConfig, devices: Sequence[str]) -> int:
    if not devices or OmegaConf.select(config, "trainer.accelerator") == "cpu":
        return 0
    count = OmegaConf.select(config, "trainer.devices")
    if isinstance(count, int) and count > len(devices):
        raise InvalidSetting("trainer.devices", count, f"this machine has {counted(len(devices), 'GPU')}")
    return count if isinstance(count, int) else 1


def _flags(config: DictConfig) -> list[str]:
    """The flags and Hydra's overrides of the command line that hold for each point."""
    sources = [source.path for source in config.hydra.runtime.config_sources if source.provider == "command-line"]
    hydra = [
        text
        for text in config.hydra.overrides.hydra
        if not text.lstrip("+").startswith(("hydra/sweeper", "hydra.sweep", "hydra.mode", "hydra/launcher"))
    ]
    return [*(f"--config-dir={path}" for path in sources), *hydra]


def _last_line(log_file: Path) -> str:
    lines = log_file.read_text(encoding="utf-8", errors="replace").split("\n")
    return printable(next((line for line in reversed(lines) if line.strip()), "no output"))


def _tell(text: str) -> None:
    print(printable(text), flush=True)


def _exit(number: int, frame: object) -> None:
    raise SystemExit(TERMINATED)
