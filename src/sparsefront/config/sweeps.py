"""The points of a sweep: each value checked before the first begins, and how far the sweep is."""

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from math import prod
from pathlib import Path
from statistics import mean, median
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep, ValueType
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from sparsefront.artifacts.bounded_files import parse_json_bounded, read_text_bounded
from sparsefront.config.settings import check_types, searched_folders
from sparsefront.errors import InvalidSetting

# The values of a sweep, each by its own type and range, before the first point begins.

Check = Callable[[Sequence[str]], None]


def check_values(overrides: Sequence[str], check: Check, loader: ConfigLoader) -> None:
    """Check a point for each value that is swept, with the first of all other keys; of intervals and ranges both ends.

    As many points are looked at as there are values, not as there are combinations. A value that one point rejects is right
    where another value beside it accepts it, such as another option of the group that reads it: points that do not go
    together fail when their turn comes, and the others go on.

    Args:
        overrides: of the sweep.
        check: raises InvalidSetting for the overrides of a point with a value of a wrong type or out of its range, and
            HydraException where they cannot be composed: that the sweeper tells itself, which composes its points first.
        loader: finds what a glob means.
    Raises:
        InvalidSetting: the first value that can be right in no point.
    """
    fixed, swept = _split(overrides, loader)

    @cache
    def complaint(*values: str) -> InvalidSetting | None:
        try:
            check([*fixed, *(f"{key}={value}" for key, value in zip(swept, values))])
        except InvalidSetting as error:
            return error
        except (HydraException, OmegaConfBaseException):
            return None
        return None

    first = {key: values[0] for key, values in swept.items()}
    for key, values in swept.items():
        for value in values:
            point = first | {key: value}
            beside = (point | {other: one} for other in swept if other != key for one in swept[other])
            found = complaint(*point.values())
            if found is not None and all(complaint(*another.values()) is not None for another in beside):
                raise found


def point_check(
    config: DictConfig,
    loader: ConfigLoader,
    by: Callable[[DictConfig, dict[str, str], Sequence[Path]], None] = check_types,
) -> Check:
    """The check of the points of a sweep.

    Args:
        config: of the multirun, Hydra's own part included.
        by: what checks a composed point, given the names of its options and the folders of options.
    """

    folders = searched_folders(config.hydra.runtime.get("config_sources") or ())

    def check(overrides: Sequence[str]) -> None:
        composed = loader.load_sweep_config(config, list(overrides))
        by(composed, dict(composed.hydra.runtime.choices), folders)

    return check


def _split(overrides: Sequence[str], loader: ConfigLoader) -> tuple[list[str], dict[str, list[str]]]:
    """What holds for every point, and the values of each swept key; where a key is given again the later one counts."""
    fixed: dict[str, str] = {}
    swept: dict[str, list[str]] = {}
    for override in OverridesParser.create(config_loader=loader).parse_overrides(list(overrides)):
        key = override.get_key_element()
        fixed.pop(key, None)
        swept.pop(key, None)
        if override.is_sweep_override():
            swept[key] = values_of(override)
        else:
            fixed[key] = str(override.input_line)
    return list(fixed.values()), swept


def values_of(override: Override) -> list[str]:
    """What a sweep gives to its key, as typed; of an interval and a range both ends."""
    sweep: Any = override.value()
    if isinstance(sweep, IntervalSweep):
        return [str(sweep.start), str(sweep.end)]
    values = list(override.sweep_string_iterator())
    return [*values[:1], *values[-1:]] if isinstance(sweep, RangeSweep) else values


# How far a sweep is: which point of how many this is, and about how long the rest will take.
#
# <sweep>/progress.jsonl holds the number of points, then a line for each point that ended. It is a file because the
# points may run in processes of their own.

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
    (folder / PROGRESS_FILE).write_text(json.dumps({"points": points}) + "\n", encoding="utf-8")


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
        with (
            suppress(OSError),
            (folder / PROGRESS_FILE).open("a", encoding="utf-8") as file,
        ):  # a full disk is reported elsewhere
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
