"""How far a sweep is: which point of how many this is, and about how long the rest will take.

<sweep>/progress.jsonl holds the number of points, then a line for each point that ended. It is a file because the points
may run in processes of their own.
"""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from statistics import mean, median

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ValueType
from omegaconf import DictConfig

from sparsefront.artifacts.bounded_files import parse_json_bounded, read_text_bounded

log = logging.getLogger(__name__)
PROGRESS_FILE = "progress.jsonl"


@dataclass
class Point:
    """A point of a sweep.

    Args:
        started: time stamp.
        seconds: wall clock, at its end.
        made: whether it did its work: not failed, nor finished by an earlier run, which takes no time worth counting.
        shared_seconds: the part that points to come may share: the training of the dense network.
    """

    started: float
    seconds: float = 0.0
    made: bool = False
    shared_seconds: float = 0.0


_running: list[Point] = []  # the one that this process is in, if any


def begin_sweep(folder: Path, points: int | None) -> None:
    """Before the first point; `points` is None where the sweeper decides on the way."""
    (folder / PROGRESS_FILE).write_text(json.dumps({"points": points}) + "\n")


def count_points(config: DictConfig) -> int | None:
    """Points of the sweep that a multirun's configuration asks for; None where that is known to its sweeper alone."""
    sweeper = config.hydra.sweeper
    if "n_trials" in sweeper:
        return sweeper.n_trials
    if not str(sweeper.get("_target_")).endswith(".BasicSweeper"):
        return None
    texts = [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]
    values = {}
    for override in OverridesParser.create().parse_overrides([*texts, *config.hydra.overrides.task]):
        if override.value_type is ValueType.GLOB_CHOICE_SWEEP:  # over the options of a folder
            return None
        swept = override.is_sweep_override()
        values[override.get_key_element()] = len(list(override.sweep_string_iterator())) if swept else 1
    return prod(values.values())


@contextmanager
def point_of_sweep(folder: Path, index: int) -> Iterator[None]:
    """Tells which point begins and how long the rest will take; what the block took counts for the next ones.

    Args:
        folder: of the sweep.
        index: of the point, from 0.
    """
    points, ended = _read(folder / PROGRESS_FILE)
    log.info(headline(points, ended, index, now=time.time()))
    point = Point(time.time())
    _running.append(point)
    try:
        yield
    except BaseException:
        point.made = False
        raise
    finally:
        _running.remove(point)
        point.seconds = time.time() - point.started
        with suppress(OSError), (folder / PROGRESS_FILE).open("a") as file:  # a full disk is reported elsewhere
            file.write(json.dumps(asdict(point)) + "\n")


def note_work(*, shared_seconds: float = 0.0) -> None:
    """The point that this process is in does its work, some seconds of which others may share."""
    for point in _running:
        point.made, point.shared_seconds = True, point.shared_seconds + shared_seconds


def headline(points: int | None, ended: list[Point], index: int, *, now: float) -> str:
    """`point 3 of 15, about 12 min left`."""
    if points is None:
        return f"point {index + 1}; how many there will be, the sweeper decides"
    left = seconds_left(points - len(ended), ended, now=now)
    known = "time left: known when a first point is done" if left is None else f"about {duration(left)} left"
    return f"point {index + 1} of {points}, {known}"


def seconds_left(remaining: int, ended: list[Point], *, now: float) -> float | None:
    """Wall-clock seconds until a number of points are done; None where none was made yet.

    A point takes the median of those made. What the first made for all is not expected again, unless later ones made such a
    thing too. Points in parallel are noticed by how much was done since the first began.
    """
    made = [point for point in ended if point.made]
    if not made:
        return None
    # Never negative: the shared part holds what killed runs had trained before.
    own = median(max(0.0, point.seconds - point.shared_seconds) for point in made)
    shared = mean(point.shared_seconds for point in made[1:]) if len(made) > 1 else 0.0
    elapsed = now - min(point.started for point in ended)
    in_parallel = max(1.0, sum(point.seconds for point in ended) / elapsed) if elapsed > 0 else 1.0
    return remaining * (own + shared) / in_parallel


def duration(seconds: float) -> str:
    """In the unit that a reader waits in."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def _read(file: Path) -> tuple[int | None, list[Point]]:
    """The number of points and those that ended; what cannot be read was not counted."""
    points, ended = None, []
    with suppress(ValueError):
        for line in read_text_bounded(file).splitlines():
            with suppress(ValueError, TypeError):
                content = parse_json_bounded(line)
                if not isinstance(content, dict):
                    continue
                if isinstance(content.get("points"), int):
                    points = content["points"]
                elif all(isinstance(value, int | float) for value in content.values()):
                    ended.append(Point(**content))
    return points, ended
