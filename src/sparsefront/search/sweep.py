"""Optuna studies that several processes share, and the launch of their points."""

import json
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.utils import instantiate
from omegaconf import DictConfig

from sparsefront.artifacts.durable import full_disk, whole_file
from sparsefront.artifacts.lease import Lease, LeaseLost, do_alone, hold_alone
from sparsefront.errors import InvalidSetting, Obstacle, first_line, printable
from sparsefront.options import program_command, shorten
from sparsefront.results.run_folder import FRONT_FILE
from sparsefront.search.space import (
    Objective,
    covering_points,
    in_overrides,
    objective,
    parse_space,
    require_choosable,
    search_settings,
)

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.storages import JournalStorage


# The journal of a study: Optuna's append-only file with a line per event.
#
# A full disk, or a kill, may leave half a line at its end. Optuna ignores that when it reads, but would append its next line
# to it, and could then read neither. So half a line is cut off, with a warning, before anything is appended. No process has
# acted on it yet: a point that was being asked or told is asked again, and a finished run is loaded from the store.

log = logging.getLogger(__name__)
SUFFIX = ".journal"


def open_journal(journal: Path, before_each_line: Callable[[], None]) -> "JournalStorage":
    """Optuna's storage in a journal file, created if missing. The caller holds the study's lease whenever it appends.

    Args:
        before_each_line: raises if nothing may be appended.
    Raises:
        Obstacle: a line of the journal is damaged.
        OSError: it cannot be read or written.
    """
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    if journal.exists():
        _require_sound(journal)
    return JournalStorage(JournalFileBackend(str(journal), lock_obj=_Lock(journal, before_each_line)))


class _Lock:
    """Optuna's lock for appending a line. The study's lease keeps others away; Optuna's own would wait half a minute for a killed
    process.
    """

    def __init__(self, journal: Path, before_each_line: Callable[[], None]) -> None:
        self._journal, self._before_each_line = journal, before_each_line

    def acquire(self) -> bool:
        self._before_each_line()
        cut_half_line(self._journal)
        return True

    def release(self) -> None:
        pass


def cut_half_line(journal: Path) -> None:
    """Truncate a journal after its last complete line."""
    with journal.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        if file.read() not in (b"\n", b""):
            _cut(journal, journal.read_bytes().rfind(b"\n") + 1)


def _require_sound(journal: Path) -> None:
    """Raise Obstacle for a damaged line; a damaged last line, which no process has read, is cut off instead."""
    with journal.open("rb") as file:
        lines = file.readlines()
    damaged = next((number for number, line in enumerate(lines) if not _is_record(line)), None)
    if damaged is not None and damaged == len(lines) - 1:
        _cut(journal, sum(map(len, lines[:-1])))
    elif damaged is not None:
        remedy = f"keep the {damaged} lines before it (head -n {damaged}), and what they lack is asked for again, its"
        allowed = f"is damaged, so this study cannot be read: {remedy} finished runs shown from the store; or"
        allowed += " name another hydra.sweeper.study"
        raise Obstacle(f"{journal}, line {damaged + 1}", None, allowed)


def _is_record(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _cut(journal: Path, whole: int) -> None:
    dropped = journal.stat().st_size - whole
    os.truncate(journal, whole)
    why = "left by a full disk or a killed process"
    message = f"%s ended in half a line, {why}: its %d bytes were dropped, and what they said is done again"
    log.warning(message, journal, dropped)


# A study that several processes work on, whose points survive killed processes.
#
# A process asks and tells under a lease on the study, and holds a lease on each point that it works on (`artifacts.lease`). If a
# point is running in Optuna but nobody holds its lease, its process was killed: the next process that asks gets the same
# settings, and its run resumes from what the killed one had stored.

Found = TypeVar("Found")
ABANDONED, RUN, NUMBER, FIXED, BEGAN = "abandoned", "run", "number", "fixed", "began"
ENQUEUED = "fixed_params"  # Optuna's system attribute of `enqueue_trial`
AGAIN = "again"  # user attribute of a point asked again: Optuna's number of the abandoned trial
ATTRIBUTES = {FIXED: dict, BEGAN: int, RUN: str, AGAIN: int}
ANOTHER = "name another study with hydra.sweeper.study=..."
PASSWORD = re.compile(r"(?<=:)[^/].*(?=@)")  # in a URL


@dataclass(frozen=True)
class Asked:
    """A point to work on: `number` counts the study's points from 0, and stays when a point is asked again; `point`: key ->
    value, of the keys of the space alone.
    """

    trial: "optuna.Trial"
    number: int
    point: dict[str, Any]
    lease: Lease


class Study:
    """An Optuna study shared by processes.

    Args:
        folder: of studies, shared by all processes.
        name: of this study.
        storage: URL of a database; None = a journal file in the folder.
        directions: `maximize` or `minimize`, per value.
        space: distribution by key.
        sampler: Hydra configuration of a sampler, with its seed.
        n_trials: points of the whole study.
        fixed: settings of all points, by key; the same for each process that joins the study.
    Raises:
        InvalidSetting: the study has other fixed settings or another space; or its database cannot be opened.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        storage: str | None,
        directions: Sequence[str],
        space: "dict[str, BaseDistribution]",
        sampler: Any,
        n_trials: int,
        fixed: Mapping[str, str] | None = None,
    ) -> None:
        self.place, self.space, self.sampler, self.n_trials = folder / name, space, sampler, n_trials
        _require_database(storage)
        folder.mkdir(parents=True, exist_ok=True)

        def join() -> None:
            self._study = self._open(storage, list(directions))
            self._join(dict(fixed or {}), directions)

        self._with_lease(join)

    def _with_lease(self, do: Callable[[], Found]) -> Found:
        """Call `do` while holding the lease on the study."""

        def under(lease: Lease) -> Found:
            self._held = lease
            return do()

        return do_alone(self.place, under)

    def _open(self, storage: str | None, directions: list[str]) -> "optuna.Study":
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        name = self.place.name
        if storage is not None:
            with _report_database_errors(storage):
                known = optuna.storages.get_storage(storage)
            return optuna.create_study(storage=known, study_name=name, directions=directions, load_if_exists=True)
        try:
            # raises LeaseLost if this process was suspended and another one has taken over the study
            journal = open_journal(self.place.with_name(f"{name}{SUFFIX}"), lambda: self._held.require())
            return optuna.create_study(storage=journal, study_name=name, directions=directions, load_if_exists=True)
        except InvalidSetting:
            raise
        except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            why = f"has a journal with events that no study writes ({first_line(error)}): {ANOTHER}"
            raise InvalidSetting("hydra.sweeper.study", name, why) from error

    def _join(self, fixed: dict[str, str], directions: Sequence[str]) -> None:
        """Bind the study to its settings and its space.

        A study whose points all failed restarts, since a setting may have been wrong, if Optuna accepts the new categories and
        directions. With unchanged settings it restarts only after all its points: the cause was elsewhere, such as a path.
        """
        fixed |= in_overrides(self.space)
        trials, attributes = self._study.get_trials(deepcopy=False), self._study.user_attrs
        self._validate_attributes([attributes, *(trial.user_attrs for trial in trials)])
        if FIXED not in attributes:
            self._study.set_user_attr(FIXED, fixed)
            return
        # Older studies have their space only in their points.
        searched = [in_overrides(trial.distributions) for trial in trials[attributes.get(BEGAN, 0) :]]
        known = {key: text for point in searched for key, text in point.items()} | attributes[FIXED]
        if known == fixed and len(self._points(trials)) < self.n_trials:
            return
        same_directions = [one.name.lower() for one in self._study.directions] == list(directions)
        if same_directions and self._all_failed(trials):
            self._study.set_user_attr(FIXED, fixed)
            self._study.set_user_attr(BEGAN, len(trials))
        elif known != fixed:
            keys = sorted(key for key in known.keys() | fixed.keys() if known.get(key) != fixed.get(key))
            differ = ", ".join(
                f"{key}={known.get(key, '(default)')}, not {fixed.get(key, '(default)')}" for key in keys
            )
            raise InvalidSetting("hydra.sweeper.study", self.place.name, f"this study has {differ}: {ANOTHER}")

    def _validate_attributes(self, of_study_and_trials: Iterable[Mapping[str, Any]]) -> None:
        """Raise InvalidSetting for another type than this class writes: a study is data, and anybody may have written it."""
        for attributes in of_study_and_trials:
            for name, kind in ATTRIBUTES.items():
                value = attributes.get(name, kind())
                if type(value) is not kind or (name == RUN and not str(value).isprintable()):
                    why = f"has {name}={printable(shorten(value))}, where a study has one {kind.__name__}: {ANOTHER}"
                    raise InvalidSetting("hydra.sweeper.study", self.place.name, why)

    def _all_failed(self, trials: "Sequence[optuna.trial.FrozenTrial]") -> bool:
        """Whether all points failed, and Optuna accepts this space after the earlier ones."""
        from optuna.distributions import check_distribution_compatibility
        from optuna.trial import TrialState

        try:
            for key, distribution in (pair for trial in trials for pair in trial.distributions.items()):
                check_distribution_compatibility(distribution, self.space.get(key, distribution))
        except ValueError:
            return False
        return all(trial.state == TrialState.FAIL for trial in trials)

    def _points(self, trials: "Sequence[optuna.trial.FrozenTrial]") -> "list[optuna.trial.FrozenTrial]":
        """Trials since the study's last restart, without abandoned ones, which are asked again."""
        return [trial for trial in trials[self._study.user_attrs.get(BEGAN, 0) :] if ABANDONED not in trial.user_attrs]

    def ask(self) -> Asked | None:
        """The next point, abandoned ones first; None if all are taken."""
        return self._with_lease(self._ask)

    def _ask(self) -> Asked | None:
        from optuna.trial import TrialState

        self._requeue_abandoned()
        self._drop_foreign()
        points = self._points(self._study.get_trials(deepcopy=False))
        waiting = [trial for trial in points if trial.state == TrialState.WAITING]
        taken = len(points) - len(waiting)
        if taken >= self.n_trials:
            self._write_front()  # a full disk may have kept the last process from writing it
            return None
        # One seed per point, so that a resumed study draws the same points.
        seed = self.sampler.get("seed")
        self._study.sampler = instantiate(self.sampler, seed=None if seed is None else seed + taken)
        trial = self._study.ask(self.space)
        number = trial.user_attrs.get(NUMBER)
        number = number if isinstance(number, int) and 0 <= number < self.n_trials else taken
        trial.set_user_attr(NUMBER, number)
        lease = self._hold(trial.number)
        if lease is None:  # this process was suspended, and another one took the point
            self._held.require()
            raise LeaseLost(f"{self.place}: point {number} was taken back")
        return Asked(trial, number, {key: trial.params[key] for key in self.space}, lease)

    def _drop_foreign(self) -> None:
        """Drop waiting points with keys or values outside the space: a journal is data, and anybody may have written it."""
        from optuna.trial import TrialState

        for trial in self._study.get_trials(deepcopy=False, states=[TrialState.WAITING]):
            proposed = [trial.params, trial.system_attrs.get(ENQUEUED, {})]
            same_space = all(self.space.get(key) == other for key, other in trial.distributions.items())
            if not (same_space and all(map(self._in_space, proposed))):
                self._study._storage.set_trial_user_attr(trial._trial_id, ABANDONED, True)
                self._study._storage.set_trial_state_values(trial._trial_id, state=TrialState.FAIL)
                message = "point %d of study %s waited with settings outside its space: it is not run"
                log.warning(message, trial.number, self.place.name)

    def _in_space(self, point: Any) -> bool:
        try:
            return all(
                self.space[key]._contains(self.space[key].to_internal_repr(value)) for key, value in point.items()
            )
        except (AttributeError, KeyError, TypeError, ValueError):  # no mapping, no such key, another category or type
            return False

    def tell(self, asked: Asked, values: Sequence[float] | None, run: str | None = None) -> None:
        """Report the values of a point; None if it failed. `run`: the folder of its result."""
        self._with_lease(lambda: self._tell(asked, values, run))
        asked.lease.release()

    def _tell(self, asked: Asked, values: Sequence[float] | None, run: str | None) -> None:
        from optuna.trial import TrialState

        if self._study.get_trials(deepcopy=False)[asked.trial.number].state.is_finished():
            message = "point %d of study %s was given to another process while this one slept: that one's result counts"
            log.warning(message, asked.number, self.place.name)
            return
        if run is not None:
            asked.trial.set_user_attr(RUN, run)
        self._study.tell(asked.trial, values, state=TrialState.FAIL if values is None else TrialState.COMPLETE)
        self._write_front()

    def release(self, asked: Asked) -> None:
        """Release a point that failed for an external reason; the next process that asks gets it again."""
        asked.lease.release()

    @property
    def front(self) -> Path:
        """File with the folders of the study's Pareto-optimal runs, one per line, after a line with counts."""
        return self.place.with_name(self.place.name + FRONT_FILE)

    def _write_front(self) -> None:
        """Write `front`, unless no point is finished."""
        from optuna.trial import TrialState

        runs = [trial.user_attrs[RUN] for trial in self._study.best_trials if RUN in trial.user_attrs]
        if not runs:
            return
        finished = len(self._study.get_trials(deepcopy=False, states=[TrialState.COMPLETE]))
        header = f"# front of {self.place.name}: {len(runs)} of {finished} finished points"
        with whole_file(self.front) as file:
            file.write_text("".join(f"{line}\n" for line in (header, *runs)), encoding="utf-8")

    def _requeue_abandoned(self) -> None:
        """Enqueue points whose process was killed, to be asked again.

        Safe against a kill, or a full disk, between any two lines: no point is lost or enqueued twice.
        """
        from optuna.trial import TrialState

        trials = self._study.get_trials(deepcopy=False)
        asked_again = {trial.user_attrs[AGAIN] for trial in trials if AGAIN in trial.user_attrs}
        for trial in [trial for trial in trials if trial.state == TrialState.RUNNING]:
            lease = self._hold(trial.number)
            if lease is None:
                continue
            # A trial without a number never began and is the last one: the next process draws the same point.
            began = NUMBER in trial.user_attrs and trial.number not in asked_again
            if began and all(self.space.get(key) == distribution for key, distribution in trial.distributions.items()):
                attributes = {NUMBER: trial.user_attrs[NUMBER], AGAIN: trial.number}
                point = (
                    trial.system_attrs.get(ENQUEUED, {}) | trial.params
                )  # one asked again may not have all its values yet
                self._study.enqueue_trial(point, user_attrs=attributes)
            self._study._storage.set_trial_user_attr(trial._trial_id, ABANDONED, True)
            self._study.tell(trial.number, state=TrialState.FAIL)
            lease.release()

    def _hold(self, number: int) -> Lease | None:
        return hold_alone(self.place.with_name(f"{self.place.name}.trial_{number}"))


@contextmanager
def _report_database_errors(storage: str) -> Iterator[None]:
    """Convert any error to an InvalidSetting of one line, without the URL's password."""
    try:
        yield
    except Exception as error:
        url, why = PASSWORD.sub("***", storage), PASSWORD.sub("***", first_line(error))
        allowed = f"must be null or the URL of a database, such as sqlite:///study.db ({why})"
        raise InvalidSetting("hydra.sweeper.storage", url, allowed) from error


def _require_database(storage: str | None) -> None:
    """Check the connection before a folder or table is made."""
    if storage is None:
        return
    with _report_database_errors(storage):
        from sqlalchemy import create_engine

        engine = create_engine(storage)
        engine.connect().close()
        engine.dispose()


STUDIES = "studies"  # subfolder of the results
SWEEPER = "OptunaSweeper"  # name in messages
PLACES = ("_dir", ".path")  # suffixes of keys that may differ between hosts


def run_search(
    arguments: list[str],
    settings: Mapping[str, Any],
    config: DictConfig,
    launcher: Launcher,
    compose: Callable[[list[list[str]]], None],
) -> None:
    """Work on a study until it has all its points. The search continues after a failed point and raises the first failure at
    its end. External failures, such as a full disk, stop it at once, and their points are asked again.

    Args:
        arguments: overrides, with the space.
        settings: of conf/hydra/sweeper/optuna.yaml.
        config: of the first point, with Hydra's own part.
        launcher: starts runs.
        compose: raises if Hydra cannot compose one of several lists of overrides.
    Raises:
        InvalidSetting: a wrong setting of the sweeper, an unknown direction, a field that cannot be optimized, no space, another
            number of values than the study's, or a study of other settings or another space.
    """
    objectives = _objectives(config.optimize, _metric(config))
    search = search_settings(settings)
    params = [f"{key}={value}" for key, value in search.params.items()]
    space, fixed = parse_space([*params, *arguments])
    # a mistyped option must end the search before the study is made
    compose([_overrides(point, fixed) for point in covering_points(space)])
    study = Study(
        Path(config.results_dir) / STUDIES,
        search.study,
        storage=search.storage,
        directions=[one.direction for one in objectives],
        space=space,
        sampler=search.sampler,
        n_trials=search.n_trials,
        fixed=_pick_shared(fixed) | {"optimize": ",".join(config.optimize)},
    )
    failures, launched = [], set[int]()
    while batch := _ask(study, search.batch):
        numbers = _job_numbers(batch, launched)
        launched.update(numbers)
        jobs = [_overrides(asked.point, fixed) for asked in batch]
        stopped = []
        for asked, returned in zip(batch, _launch(launcher, jobs, study, batch, numbers), strict=True):
            failed = returned.status is not JobStatus.COMPLETED
            if failed and _is_external(returned._return_value):
                study.release(asked)
                stopped.append(returned)
                continue
            study.tell(
                asked,
                None if failed else _values(returned, len(objectives)),
                str(returned.hydra_cfg.hydra.runtime.output_dir),
            )
            failures += [returned] if failed else []
        if stopped:
            failures = stopped
            break
    if not launched:
        message = (
            "all %s points of study %s are taken: raise hydra.sweeper.n_trials, or name another hydra.sweeper.study"
        )
        log.warning(message, search.n_trials, search.study)
    if study.front.exists():
        log.info("the points that no other beats: %s %s", program_command("compare"), study.front)
    for returned in failures:
        returned.return_value  # noqa: B018  (raises what the run raised)


def _metric(config: DictConfig) -> str | None:
    """The metric of the first point's task if it is known in advance; else None, also for wrong settings."""
    try:
        kind = instantiate(config.dataset).info.kind
    except Exception:  # each point reports its own error
        return None
    from sparsefront.tasks.causal_lm import CausalLM  # with Lightning, which a launcher may never need

    return CausalLM.metric_name if kind == CausalLM.kind else None


def _objectives(optimize: Sequence[str], metric: str | None) -> list[Objective]:
    """The objectives, checked here instead of in each point."""
    objectives = [objective(text, metric) for text in optimize]
    require_choosable([one.name for one in objectives], SWEEPER)
    return objectives


def _ask(study: Study, most: int) -> list[Asked]:
    asked: list[Asked] = []
    while len(asked) < most and (one := study.ask()) is not None:
        asked.append(one)
    return asked


def _job_numbers(batch: Sequence[Asked], launched: Collection[int]) -> range:
    """Hydra's job numbers for a batch, which name its folders: consecutive from the first point's number, or after all numbers
    that this process launched if a folder would repeat. The points' own numbers have gaps for other processes' points.
    """
    numbers = range(batch[0].number, batch[0].number + len(batch))
    if not launched.isdisjoint(numbers):
        numbers = range(max(launched) + 1, max(launched) + 1 + len(batch))
    return numbers


def _launch(
    launcher: Launcher, jobs: list[list[str]], study: Study, batch: list[Asked], numbers: range
) -> Sequence[JobReturn]:
    """Launch a batch. If the launcher itself fails, its points count as failed, or are released if the cause is external, such as
    a full disk or a killed process.
    """
    try:
        return launcher.launch(jobs, initial_job_idx=numbers.start)
    except Exception as error:
        for asked in batch:
            if _is_external(error):
                study.release(asked)
            else:
                study.tell(asked, None)
        raise


def _is_external(error: Any) -> bool:
    """Whether a failure has an external cause, so that the same point may work later."""
    if isinstance(error, BrokenExecutor):  # a process of joblib was killed
        return True
    if getattr(error, "passing", False):  # from a run, maybe in another process
        return True
    return isinstance(error, Exception) and full_disk(error, {Path.cwd(): "results_dir"}) is not None


def _pick_shared(fixed: list[str]) -> dict[str, str]:
    """The fixed settings that all processes of a study must share."""
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
