"""The points of a search, launched one after the other, or as many at a time as the launcher takes."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig

from sparsefront.artifacts.disk_space import full_disk
from sparsefront.errors import InvalidSetting
from sparsefront.search.choosable import require_choosable
from sparsefront.search.objective import Objective, objective
from sparsefront.search.settings import search_settings
from sparsefront.search.space import parse_space, points_of_each_option
from sparsefront.search.study import Asked, Study

log = logging.getLogger(__name__)
STUDIES = "studies"  # below the folder of results
SWEEPER = "OptunaSweeper"  # as points are told who chooses
PLACES = ("_dir", ".path")  # ends of keys that may differ from host to host


def run_search(
    arguments: list[str],
    settings: Mapping[str, Any],
    config: DictConfig,
    launcher: Launcher,
    compose: Callable[[list[list[str]]], None],
) -> None:
    """Work on a study until it has all its points. A point that fails is no reason to stop; the first failure ends the search.
    What says nothing about a point, such as a full disk, stops it at once, and the point is asked for again.

    Args:
        arguments: overrides, with the space.
        settings: of conf/hydra/sweeper/optuna.yaml.
        config: of the first point, with Hydra's own part.
        launcher: starts runs.
        compose: raises where Hydra cannot compose one of several lists of overrides.
    Raises:
        InvalidSetting: a setting of the sweeper that is wrong, an unknown direction, a value that nothing may be chosen by, no
            space, another number of values than the study has, or a study of other settings or another space.
    """
    objectives = _objectives(config.optimize)
    search = search_settings(settings)
    params = [f"{key}={value}" for key, value in search.params.items()]
    space, fixed = parse_space([*params, *arguments])
    # A mistyped option ends the search here, and no study remembers it.
    compose([_overrides(point, fixed) for point in points_of_each_option(space)])
    study = Study(
        Path(config.results_dir) / STUDIES,
        search.study,
        storage=search.storage,
        directions=[one.direction for one in objectives],
        space=space,
        sampler=search.sampler,
        n_trials=search.n_trials,
        fixed=_same_everywhere(fixed) | {"optimize": ",".join(config.optimize)},
    )
    failures, launched = [], set[int]()
    while batch := _ask(study, search.batch):
        numbers = _job_numbers(batch, launched)
        launched.update(numbers)
        jobs = [_overrides(asked.trial.params, fixed) for asked in batch]
        stopped = []
        for asked, returned in zip(batch, _launch(launcher, jobs, study, batch, numbers), strict=True):
            failed = returned.status is not JobStatus.COMPLETED
            if failed and _passes(returned._return_value):
                study.leave(asked)
                stopped.append(returned)
                continue
            study.tell(asked, None if failed else _values(returned, len(objectives)), _folder(returned))
            failures += [returned] if failed else []
        if stopped:
            failures = stopped
            break
    if not launched:
        told = "all %s points of study %s are taken: raise hydra.sweeper.n_trials, or name another hydra.sweeper.study"
        log.warning(told, search.n_trials, search.study)
    if study.front.exists():
        log.info("the points that no other beats: python compare.py %s", study.front)
    for returned in failures:
        returned.return_value  # noqa: B018  (raises what the run raised)


def _objectives(optimize: Sequence[str]) -> list[Objective]:
    """Refused here where each point would refuse it."""
    objectives = [objective(text) for text in optimize]
    require_choosable([one.name for one in objectives], SWEEPER)
    return objectives


def _ask(study: Study, most: int) -> list[Asked]:
    asked: list[Asked] = []
    while len(asked) < most and (one := study.ask()) is not None:
        asked.append(one)
    return asked


def _job_numbers(batch: Sequence[Asked], launched: Collection[int]) -> range:
    """What Hydra counts the runs of a batch by, and names their folders: in a row from the number of the first point on, or
    behind all that this process launched where that would name a folder again. Points that other processes took, or lost, lie
    between those of a batch.
    """
    numbers = range(batch[0].number, batch[0].number + len(batch))
    if not launched.isdisjoint(numbers):
        numbers = range(max(launched) + 1, max(launched) + 1 + len(batch))
    return numbers


def _launch(
    launcher: Launcher, jobs: list[list[str]], study: Study, batch: list[Asked], numbers: range
) -> Sequence[JobReturn]:
    """What the runs returned. Where the launcher itself fails, the points failed: going on with them would fail again. Where
    the disk is full, or a process was killed, they are left.
    """
    try:
        return launcher.launch(jobs, initial_job_idx=numbers.start)
    except Exception as error:
        for asked in batch:
            if _passes(error):
                study.leave(asked)
            else:
                study.tell(asked, None)
        raise


def _passes(error: Any) -> bool:
    """Whether a failure says nothing about its point, so that the same point may work later."""
    if isinstance(error, BrokenExecutor):  # a process of joblib was killed
        return True
    if getattr(error, "passing", False):  # of a run, which may have been in another process
        return True
    return isinstance(error, Exception) and full_disk(error, {Path.cwd(): "results_dir"}) is not None


def _same_everywhere(fixed: list[str]) -> dict[str, str]:
    """What all processes of a study have to agree on."""
    pairs = (line.partition("=")[::2] for line in fixed)
    return {key: value for key, value in pairs if not key.endswith(PLACES)}


def _overrides(point: Mapping[str, Any], fixed: list[str]) -> list[str]:
    return [*fixed, *(f"{key}={value}" for key, value in point.items())]


def _values(returned: JobReturn, expected: int) -> list[float]:
    values = returned.return_value
    values = list(values) if isinstance(values, tuple) else [values]
    if len(values) != expected or None in values:
        raise InvalidSetting("optimize", expected, f"a run gave {values}")
    return values


def _folder(returned: JobReturn) -> str:
    return str(returned.hydra_cfg.hydra.runtime.output_dir)
