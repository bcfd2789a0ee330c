"""Sweeps: check all values before the first point begins, and report progress."""

import copy
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from math import prod
from pathlib import Path
from statistics import mean, median
from typing import Any

from hydra._internal.config_loader_impl import get_overrides_dirname
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, OverrideType, RangeSweep, ValueType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from sparsefront.artifacts.bounded_files import parse_json_bounded, read_text_bounded
from sparsefront.config.settings import check_types, list_config_folders
from sparsefront.errors import InvalidSetting, Obstacle, first_line, yaml_complaint
from sparsefront.processes import gc_disabled

# Check the values of a sweep, each by its type and range, before the first point begins.

Check = Callable[[Sequence[str]], None]
TELL_EVERY_S = 10.0
# Raised for overrides and files that are no configuration.
NOT_COMPOSED = (HydraException, OmegaConfBaseException, YAMLError, OSError)
log = logging.getLogger(__name__)


def check_values(overrides: Sequence[str], check: Check, loader: ConfigLoader) -> None:
    """Check one point per swept value, with the first value of all other keys; both ends of intervals and ranges.

    This takes as many checks as there are values, not combinations. A value rejected in one point is accepted if another value
    next to it makes it valid, such as another option of the group that reads it. Invalid combinations fail when their turn
    comes, while other points continue.

    Args:
        overrides: of the sweep.
        check: raises InvalidSetting for the overrides of a point with a wrong type or range, and HydraException if they
            cannot be composed, which the sweeper reports itself, because it composes its points first.
        loader: resolves globs.
    Raises:
        InvalidSetting: the first value that is invalid in every point.
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
            rejection = complaint(*point.values())
            if rejection is not None and all(complaint(*another.values()) is not None for another in beside):
                raise rejection


def point_check(config: DictConfig, loader: ConfigLoader) -> Check:
    """Create the check of a sweep's points, by type and range.

    Args:
        config: of the multirun, including Hydra's part.
    """
    folders = list_config_folders(config.hydra.runtime.get("config_sources") or ())

    def check(overrides: Sequence[str]) -> None:
        composed = loader.load_sweep_config(config, list(overrides))
        check_types(composed, dict(composed.hydra.runtime.choices), folders)

    return check


class PointLoader:
    """`load_sweep_config` of one sweep: options are composed once per choice of them, and values are set on a copy.

    Composing reads and merges all files, for every point twice and for each value once more before anything runs.

    Args:
        loader: Hydra's, whose result this equals.
        points: of the sweep, for messages; None if only its sweeper knows.
    Raises, when called:
        Obstacle: overrides that cannot be composed.
    """

    def __init__(self, loader: ConfigLoader, points: int | None) -> None:
        self._compose, self._exists = loader.load_sweep_config, loader.repository.group_exists
        self._set = loader._apply_overrides_to_config
        self._composed: dict[tuple[str, ...], DictConfig] = {}
        self._points, self._number, self._told = points, 0, time.monotonic()
        self.began = False  # the first point, whose lines are enough

    def __call__(self, master_config: DictConfig, sweep_overrides: Sequence[str]) -> DictConfig:
        self._tell()
        overrides = OverridesParser.create().parse_overrides(list(sweep_overrides))
        values = [override for override in overrides if self._is_value(override)]
        others = tuple(str(override.input_line) for override in overrides if override not in values)
        try:
            if others not in self._composed:
                with gc_disabled():  # as a decorator it could not be pickled, as launchers do
                    self._composed[others] = self._compose(master_config, list(others))
            point = copy.deepcopy(self._composed[others])
            self._set(values, point)
        except NOT_COMPOSED as error:
            raise Obstacle(" ".join(sweep_overrides), None, composition_complaint(error)) from error
        hydra, tasks = point.hydra, [override for override in overrides if not override.is_hydra_override()]
        hydra.overrides.task = [str(override.input_line) for override in tasks]
        hydra.job.override_dirname = get_overrides_dirname(tasks, **hydra.job.config.override_dirname)
        OmegaConf.copy_cache(from_config=master_config, to_config=point)
        return point

    def _is_value(self, override: Override) -> bool:
        key = override.key_or_group
        is_plain = (
            override.type is OverrideType.CHANGE and override.package is None and not override.is_hydra_override()
        )
        return is_plain and not self._exists(key)

    def _tell(self) -> None:
        self._number += 1
        if not self.began and time.monotonic() - self._told > TELL_EVERY_S:
            self._told = time.monotonic()
            of = "" if self._points is None else f" of a sweep of {self._points}"
            print(f"checking points{of} before the first one begins: {self._number} so far", flush=True)


def composition_complaint(error: Exception) -> str:
    """Hydra's message as one line, without its advice; for a file that is no YAML, the place."""
    if isinstance(error, YAMLError):
        return f"is no YAML: {yaml_complaint(error)}"
    text = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    text = text.partition("; Config search path:")[0].partition("; See https://")[0]
    text = re.sub(r"(Available options in '[^']*':); ", r"\1 ", text.replace(".; ", "; "))
    cause = error.__cause__
    return f"{text}: {first_line(cause)}" if isinstance(cause, OmegaConfBaseException) else text


def overrides_of_sweep(config: DictConfig) -> list[str]:
    """Overrides from the sweeper's configuration, if it has any by key, and from the command line."""
    params = config.hydra.sweeper.get("params")
    overrides = [f"{key}={value}" for key, value in params.items()] if OmegaConf.is_dict(params) else []
    return [*overrides, *config.hydra.overrides.task]


def _split(overrides: Sequence[str], loader: ConfigLoader) -> tuple[list[str], dict[str, list[str]]]:
    """Split into overrides of every point, and the values of each swept key; later duplicates of a key win."""
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
    """The values of a swept key, as typed; both ends of an interval or range."""
    sweep: Any = override.value()
    if isinstance(sweep, IntervalSweep):
        return [str(sweep.start), str(sweep.end)]
    values = list(override.sweep_string_iterator())
    return [*values[:1], *values[-1:]] if isinstance(sweep, RangeSweep) else values


# Progress of a sweep: index of the point, and estimated remaining time.
#
# <sweep>/progress.jsonl holds the number of points, then a line per finished point. It is a file because points may run in
# separate processes.

PROGRESS_FILE = "progress.jsonl"


@dataclass
class Point:
    """A point of a sweep.

    Args:
        started: time stamp.
        seconds: wall clock, at its end.
        made: it did its work, instead of failing or being found finished, whose time is negligible.
        shared_seconds: work that later points may share: the training of the dense network.
    """

    started: float
    seconds: float = 0.0
    made: bool = False
    shared_seconds: float = 0.0


_running: list[Point] = []  # the point that this process runs, if any


def begin_sweep(folder: Path, points: int | None) -> None:
    """Record the number of points before the first one; None if the sweeper decides it along the way."""
    (folder / PROGRESS_FILE).write_text(json.dumps({"points": points}) + "\n", encoding="utf-8")


def count_points(config: DictConfig) -> int | None:
    """Number of points of a multirun; None if only its sweeper knows."""
    sweeper = config.hydra.sweeper
    if "n_trials" in sweeper:
        return sweeper.n_trials
    if not str(sweeper.get("_target_")).endswith(".BasicSweeper"):
        return None
    values = {}
    for override in OverridesParser.create().parse_overrides(overrides_of_sweep(config)):
        if override.value_type is ValueType.GLOB_CHOICE_SWEEP:  # over the options in a folder
            return None
        swept = override.is_sweep_override()
        values[override.get_key_element()] = len(list(override.sweep_string_iterator())) if swept else 1
    return prod(values.values())


@contextmanager
def point_of_sweep(folder: Path, index: int) -> Iterator[None]:
    """Context of a point: reports its index and the remaining time, and records its duration.

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
        ):  # full disks are reported elsewhere
            file.write(json.dumps(asdict(point)) + "\n")


def note_work(*, shared_seconds: float = 0.0) -> None:
    """Record that the current point does its work, some seconds of which others may share."""
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
    """Estimated wall-clock seconds for the remaining points; None if none was made yet.

    A point is expected to take the median of those made. Shared work of the first point is not expected again, unless later
    points did such work too. Parallelism is estimated from the work done since the first point began.
    """
    made = [point for point in ended if point.made]
    if not made:
        return None
    # Not negative: the shared part may include the work of killed runs.
    own = median(max(0.0, point.seconds - point.shared_seconds) for point in made)
    shared = mean(point.shared_seconds for point in made[1:]) if len(made) > 1 else 0.0
    elapsed = now - min(point.started for point in ended)
    in_parallel = max(1.0, sum(point.seconds for point in ended) / elapsed) if elapsed > 0 else 1.0
    return remaining * (own + shared) / in_parallel


def duration(seconds: float) -> str:
    """Format in a suitable unit."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def _read(file: Path) -> tuple[int | None, list[Point]]:
    """The number of points and those that ended; unreadable lines are ignored."""
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
