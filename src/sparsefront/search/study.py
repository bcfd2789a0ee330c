"""A study of Optuna's that several processes work on, each point of which survives the process that took it.

A process asks and tells under a lease on the study, and holds a lease on each point that it works on (`artifacts.lease`). Where a
point runs for Optuna and nobody holds it, its process was killed: the next one that asks gets the same settings again. Its run
then goes on from what the killed one had stored.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hydra.utils import instantiate

from sparsefront.artifacts.durable import whole_file
from sparsefront.artifacts.lease import Lease, LeaseLost, do_alone, hold_alone
from sparsefront.errors import InvalidSetting, first_line
from sparsefront.report.store import FRONT_FILE
from sparsefront.search.journal import SUFFIX, open_journal
from sparsefront.search.space import in_overrides

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

Found = TypeVar("Found")
log = logging.getLogger(__name__)
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
            file.write_text("".join(f"{line}\n" for line in (told, *runs)))

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
