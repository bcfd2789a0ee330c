"""The points of a search: a study of Optuna's that several processes work on, and its points launched."""

import json
import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.utils import instantiate
from omegaconf import DictConfig

from sparsefront.artifacts.durable import full_disk, whole_file
from sparsefront.artifacts.lease import Lease, LeaseLost, do_alone, held_alone, hold_alone
from sparsefront.errors import InvalidSetting, Obstacle, first_line
from sparsefront.options import program_command
from sparsefront.results.run_folder import FRONT_FILE
from sparsefront.search.space import (
    Objective,
    in_overrides,
    objective,
    parse_space,
    points_of_each_option,
    require_choosable,
    search_settings,
)

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.storages import JournalStorage


# A study of Optuna's that several processes work on, each point of which survives the process that took it.

# The journal of a study: Optuna's file, to which each thing that happens adds a line.
#
# A full disk, or a kill, may leave half a line at its end. Optuna passes over that when it reads, but would append
# its next line to it, and could read neither from then on. Here half a line is cut off, with a warning, before
# anything follows it. What it said had not happened yet for anybody: a point that was being asked for or told is
# asked for again, and a finished run is shown again from the store.

log = logging.getLogger(__name__)
SUFFIX = ".journal"
BLOCK = 2**16  # bytes that are read at once from the end


def open_journal(journal: Path, before_each_line: Callable[[], None]) -> "JournalStorage":
    """Optuna's storage in a journal, which is made where it is missing; what was half-written at its end is cut off.

    Args:
        before_each_line: raises where nothing may be appended.
    Raises:
        Obstacle: a line of the journal is damaged.
        OSError: it cannot be read or written.
    """
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    if journal.exists():
        with held_alone(journal):
            _require_sound(journal)
    return JournalStorage(JournalFileBackend(str(journal), lock_obj=_Lock(journal, before_each_line)))


class _Lock:
    """Held while a line is appended. Optuna's own one stays for half a minute where its holder is killed."""

    def __init__(self, journal: Path, before_each_line: Callable[[], None]) -> None:
        self._journal, self._before_each_line = journal, before_each_line

    def acquire(self) -> bool:
        self._held = held_alone(self._journal)
        self._lease = self._held.__enter__()
        try:
            self._before_each_line()
            cut_half_line(self._journal)
        except BaseException:
            self._held.__exit__(None, None, None)
            raise
        return True

    def release(self) -> None:
        try:
            with suppress(LeaseLost):  # what is half-written there now is another process's
                self._lease.require()
                cut_half_line(self._journal)  # the disk was full
        finally:
            self._held.__exit__(None, None, None)


def cut_half_line(journal: Path) -> None:
    """End a journal after its last whole line. The caller holds it."""
    with suppress(FileNotFoundError), journal.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        whole = _end_of_last_line(file, size)
        if whole < size:
            _cut(file, journal, whole, size)


def _end_of_last_line(file: BinaryIO, size: int) -> int:
    """Bytes up to and with the last line end; 0 where there is none."""
    end = size
    while end > 0:
        start = max(0, end - BLOCK)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _require_sound(journal: Path) -> None:
    """Every line can be read; a last one that cannot was never read by anybody, and is cut off."""
    cut_half_line(journal)
    with journal.open("rb+") as file:
        lines = file.readlines()
        damaged = [number for number, line in enumerate(lines, start=1) if not _is_record(line)]
        if damaged and damaged[0] == len(lines):
            size = file.tell()
            _cut(file, journal, size - len(lines[-1]), size)
        elif damaged:
            before = damaged[0] - 1
            raise Obstacle(
                f"{journal}, line {damaged[0]}",
                None,
                f"is damaged, so this study cannot be read: keep the {before} lines before it (head -n {before}), and what they"
                " lack is asked for again, its finished runs shown from the store; or name another hydra.sweeper.study",
            )


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _cut(file: BinaryIO, journal: Path, whole: int, size: int) -> None:
    file.truncate(whole)
    os.fsync(file.fileno())
    why = "left by a full disk or a killed process"
    told = f"%s ended in half a line, {why}: its %d bytes were dropped, and what they said is done again"
    log.warning(told, journal, size - whole)


# A study of Optuna's that several processes work on, each point of which survives the process that took it.
#
# A process asks and tells under a lease on the study, and holds a lease on each point that it works on
# (`artifacts.lease`). Where a point runs for Optuna and nobody holds it, its process was killed: the next one that
# asks gets the same settings again. Its run then resumes from what the killed one had stored.

Found = TypeVar("Found")
ABANDONED, RUN, NUMBER, FIXED, BEGAN = "abandoned", "run", "number", "fixed", "began"
AGAIN = "again"  # of a point that is asked for again: Optuna's number of the abandoned one
PASSWORD = re.compile(r"(?<=:)[^/].*(?=@)")  # of a URL


@dataclass(frozen=True)
class Asked:
    """A point to work on: `number` counts the study's points from 0, those asked for again not twice."""

    trial: "optuna.Trial"
    number: int
    lease: Lease


class Study:
    """Args:
    folder: of studies, which all processes see; `name` of this one.
    storage: URL of a database; None = a journal file in the folder.
    directions: of each value, `maximize` or `minimize`.
    space: distribution by key.
    sampler: Hydra configuration of a sampler, with its seed.
    n_trials: points of the whole study.
    fixed: what every point has in common, by key; each process that joins the study has to have the same.
    Raises:
        InvalidSetting: the study has points of other fixed settings, or of another space; or its database cannot be opened.
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

        self._alone(join)

    def _alone(self, do: Callable[[], Found]) -> Found:
        """What `do` gives, while no other process works on the study."""

        def under(lease: Lease) -> Found:
            self._held = lease
            return do()

        return do_alone(self.place, under)

    def _open(self, storage: str | None, directions: list[str]) -> "optuna.Study":
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        name = self.place.name
        known: optuna.storages.BaseStorage
        if storage is None:
            # One that slept appends nothing once another process works on the study: LeaseLost.
            known = open_journal(self.place.with_name(f"{name}{SUFFIX}"), lambda: self._held.require())
        else:
            with _opening(storage):
                known = optuna.storages.get_storage(storage)
        return optuna.create_study(storage=known, study_name=name, directions=directions, load_if_exists=True)

    def _join(self, fixed: dict[str, str], directions: Sequence[str]) -> None:
        """Bind the study to its settings and its space.

        One of which every point failed begins anew, since a setting may have been wrong; Optuna takes no other categories and no
        other directions for it. With the same settings it does so once it has all its points: what was wrong lay elsewhere, such
        as in a path.
        """
        fixed |= in_overrides(self.space)
        trials, attributes = self._study.get_trials(deepcopy=False), self._study.user_attrs
        if FIXED not in attributes:
            self._study.set_user_attr(FIXED, fixed)
            return
        # Studies of before the space was stored have it in their points alone.
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
            another = "name another study with hydra.sweeper.study=..."
            raise InvalidSetting("hydra.sweeper.study", self.place.name, f"this study has {differ}: {another}")

    def _all_failed(self, trials: "Sequence[optuna.trial.FrozenTrial]") -> bool:
        """Whether no point finished or runs, and Optuna takes this space after those that there were."""
        from optuna.distributions import check_distribution_compatibility
        from optuna.trial import TrialState

        try:
            for key, distribution in (pair for trial in trials for pair in trial.distributions.items()):
                check_distribution_compatibility(distribution, self.space.get(key, distribution))
        except ValueError:
            return False
        return all(trial.state == TrialState.FAIL for trial in trials)

    def _points(self, trials: "Sequence[optuna.trial.FrozenTrial]") -> "list[optuna.trial.FrozenTrial]":
        """Those since the study began, without the abandoned ones, which are asked for again."""
        return [trial for trial in trials[self._study.user_attrs.get(BEGAN, 0) :] if ABANDONED not in trial.user_attrs]

    def ask(self) -> Asked | None:
        """The next point, abandoned ones first; None where all were taken."""
        return self._alone(self._ask)

    def _ask(self) -> Asked | None:
        from optuna.trial import TrialState

        self._take_back_abandoned()
        points = self._points(self._study.get_trials(deepcopy=False))
        waiting = [trial for trial in points if trial.state == TrialState.WAITING]
        taken = len(points) - len(waiting)
        if taken >= self.n_trials:
            self._write_front()  # a full disk may have kept the last process from it
            return None
        # Another seed for each point, and the same for the same point: a study that goes on draws what it would have.
        seed = self.sampler.get("seed")
        self._study.sampler = instantiate(self.sampler, seed=None if seed is None else seed + taken)
        trial = self._study.ask(self.space)
        number = trial.user_attrs.get(NUMBER, taken)
        trial.set_user_attr(NUMBER, number)
        if (lease := self._hold(trial.number)) is None:  # this process slept, and another one takes the point back
            self._held.require()
            raise LeaseLost(f"{self.place}: point {number} was taken back")
        return Asked(trial, number, lease)

    def tell(self, asked: Asked, values: Sequence[float] | None, run: str | None = None) -> None:
        """What a point gave; None where it failed. `run`: the folder of its result."""
        self._alone(lambda: self._tell(asked, values, run))
        asked.lease.release()

    def _tell(self, asked: Asked, values: Sequence[float] | None, run: str | None) -> None:
        from optuna.trial import TrialState

        if self._study.get_trials(deepcopy=False)[asked.trial.number].state.is_finished():
            told = "point %d of study %s was given to another process while this one slept: that one's result counts"
            log.warning(told, asked.number, self.place.name)
            return
        if run is not None:
            asked.trial.set_user_attr(RUN, run)
        self._study.tell(asked.trial, values, state=TrialState.FAIL if values is None else TrialState.COMPLETE)
        self._write_front()

    def leave(self, asked: Asked) -> None:
        """A point that could not be worked on for a reason outside of it: the next process that asks gets it again."""
        asked.lease.release()

    @property
    def front(self) -> Path:
        """The folders of the runs that no other run of the study beats, a line each, below how many points there were."""
        return self.place.with_name(self.place.name + FRONT_FILE)

    def _write_front(self) -> None:
        """Nothing where no point is finished."""
        from optuna.trial import TrialState

        runs = [trial.user_attrs[RUN] for trial in self._study.best_trials if RUN in trial.user_attrs]
        if not runs:
            return
        finished = len(self._study.get_trials(deepcopy=False, states=[TrialState.COMPLETE]))
        told = f"# front of {self.place.name}: {len(runs)} of {finished} finished points"
        with whole_file(self.front) as file:
            file.write_text("".join(f"{line}\n" for line in (told, *runs)), encoding="utf-8")

    def _take_back_abandoned(self) -> None:
        """The points that nobody holds any more wait to be asked for again.

        A kill, or a full disk, between any two lines of this loses no point and gives none twice.
        """
        from optuna.trial import TrialState

        trials = self._study.get_trials(deepcopy=False)
        asked_again = {trial.user_attrs[AGAIN] for trial in trials if AGAIN in trial.user_attrs}
        for trial in [trial for trial in trials if trial.state == TrialState.RUNNING]:
            if (lease := self._hold(trial.number)) is None:
                continue
            # One without a number never began, and is the last one: who asks next draws the same point and gives it the number.
            began = NUMBER in trial.user_attrs and trial.number not in asked_again
            if began and all(self.space.get(key) == given for key, given in trial.distributions.items()):
                attributes = {NUMBER: trial.user_attrs[NUMBER], AGAIN: trial.number}
                self._study.enqueue_trial(trial.params, user_attrs=attributes)
            self._study._storage.set_trial_user_attr(trial._trial_id, ABANDONED, True)
            self._study.tell(trial.number, state=TrialState.FAIL)
            lease.release()

    def _hold(self, number: int) -> Lease | None:
        return hold_alone(self.place.with_name(f"{self.place.name}.trial_{number}"))


@contextmanager
def _opening(storage: str) -> Iterator[None]:
    """What fails in the block is one line about the setting; the URL's password is left out."""
    try:
        yield
    except Exception as error:
        given, why = PASSWORD.sub("***", storage), PASSWORD.sub("***", first_line(error))
        allowed = f"must be null or the URL of a database, such as sqlite:///study.db ({why})"
        raise InvalidSetting("hydra.sweeper.storage", given, allowed) from error


def _require_database(storage: str | None) -> None:
    """Connect once, before a folder or a table is made."""
    if storage is None:
        return
    with _opening(storage):
        from sqlalchemy import create_engine

        engine = create_engine(storage)
        engine.connect().close()
        engine.dispose()


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
    objectives = _objectives(config.optimize, _metric(config))
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
        log.info("the points that no other beats: %s %s", program_command("compare"), study.front)
    for returned in failures:
        returned.return_value  # noqa: B018  (raises what the run raised)


def _metric(config: DictConfig) -> str | None:
    """What the first point's data is evaluated by, where its task has one metric; None also where its settings are wrong."""
    try:
        kind = instantiate(config.dataset).info.kind
    except Exception:  # each point tells what is wrong
        return None
    from sparsefront.tasks.causal_lm import CausalLM  # with Lightning, which a launcher may never need

    return CausalLM.metric_name if kind == CausalLM.kind else None


def _objectives(optimize: Sequence[str], metric: str | None) -> list[Objective]:
    """Refused here where each point would refuse it."""
    objectives = [objective(text, metric) for text in optimize]
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
