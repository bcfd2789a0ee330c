"""A search, as the sweeper runs it: its points go to the launcher, and its settings stay those of its study."""

import errno
import os
import pickle
import re
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna", minversion="4.5", reason="optuna is not installed: it comes with the extra `sweep`")

import optuna
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf
from optuna.distributions import CategoricalDistribution, FloatDistribution

from sparsefront.config.command_line import BadInput
from sparsefront.errors import InvalidSetting
from sparsefront.search.sweep import open_journal, run_search

TPE = {"_target_": "optuna.samplers.TPESampler", "n_startup_trials": 3, "seed": 0}
NSGA2 = {"_target_": "optuna.samplers.NSGAIISampler", "population_size": 4, "seed": 0}


class Returned:
    """What Hydra returns of a run."""

    def __init__(self, folder: Path) -> None:
        self.status, self.return_value = JobStatus.COMPLETED, (0.9, 2.0)
        self.hydra_cfg = OmegaConf.create({"hydra": {"runtime": {"output_dir": str(folder)}}})


class Launcher:
    def __init__(self) -> None:
        self.jobs, self.numbers = [], []

    def launch(self, jobs, initial_job_idx):
        self.jobs += jobs
        self.numbers += range(initial_job_idx, initial_job_idx + len(jobs))
        return [Returned(Path("results") / str(initial_job_idx + place)) for place in range(len(jobs))]


def compose(jobs: list[list[str]]) -> None:
    """As Hydra does, of which `tilewise` is no option."""
    if any("pattern=tilewise" in job for job in jobs):
        raise LookupError("Could not find 'pattern/tilewise'")


def search(
    root: Path,
    *overrides: str,
    optimize: tuple[str, ...] = ("val_sparse", "latency_sparse_ms"),
    sampler: dict = TPE,
    **other: Any,
) -> list[list[str]]:
    settings = {"study": "s", "storage": None, "sampler": OmegaConf.create(sampler), "n_trials": 2, "batch": 1}
    config = OmegaConf.create({"optimize": list(optimize), "results_dir": str(root)})
    launcher, space = Launcher(), ["sparsity=interval(0.5,0.95)"]
    run_search([*space, *overrides], settings | {"params": {}} | other, config, launcher, compose)
    return launcher.jobs


FLOAT, WIDE = FloatDistribution(0.5, 0.95), FloatDistribution(0.0, 10.0)
CLASS = CategoricalDistribution(["own_trap.Own"])
FOREIGN = {
    "a class": (
        {"sparsity": 0.6, "importance._target_": "own_trap.Own"},
        {"sparsity": FLOAT, "importance._target_": CLASS},
    ),
    "a wider interval": ({"sparsity": 5.0}, {"sparsity": WIDE}),
    "another kind": ({"sparsity": "own_trap.Own"}, {"sparsity": CLASS}),
}


@pytest.mark.parametrize(("params", "distributions"), FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("enqueued", [False, True], ids=["params", "enqueued"])
def test_waiting_point_outside_space_is_dropped(tmp_path, caplog, params, distributions, enqueued):
    """What a stranger's journal proposes never becomes an override."""
    search(tmp_path, n_trials=1)
    study = optuna.load_study(study_name="s", storage=open_journal(tmp_path / "studies" / "s.journal", lambda: None))
    if enqueued:
        study.enqueue_trial(params, user_attrs={"number": "../../elsewhere"})
    else:
        waiting = optuna.trial.TrialState.WAITING
        study.add_trial(optuna.trial.create_trial(state=waiting, params=params, distributions=distributions))
        study.set_user_attr("began", 2)  # so that it does not count among the study's points
    jobs = search(tmp_path, n_trials=3)
    assert jobs and all([word.partition("=")[0] for word in job] == ["sparsity"] for job in jobs)
    assert all(0.5 <= float(job[0].partition("=")[2]) <= 0.95 for job in jobs)
    assert "point 1 of study s waited with settings outside its space: it is not run" in caplog.text


ATTRIBUTES = {"fixed": [1], "began": "0", "again": [2], "run": "a\nb"}


@pytest.mark.parametrize("name", [*ATTRIBUTES, None])
def test_malformed_journal_is_one_line(tmp_path, name):
    search(tmp_path, n_trials=1)
    journal = tmp_path / "studies" / "s.journal"
    study = optuna.load_study(study_name="s", storage=open_journal(journal, lambda: None))
    if name in ("fixed", "began"):
        study.set_user_attr(name, ATTRIBUTES[name])
    elif name is not None:
        study.enqueue_trial({"sparsity": 0.75}, user_attrs={name: ATTRIBUTES[name]})
    else:
        journal.write_text(f'{journal.read_text()}{{"op_code": 99}}\n')
    with pytest.raises(InvalidSetting, match="^hydra.sweeper.study=s: .*: name another study") as raised:
        search(tmp_path, n_trials=2)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("optimize", "message"),
    [
        (("val_sparse", "sparse"), "sparse: is of the reporting split, .* must not choose: take val_sparse"),
        (("maximize:dense",), "dense: is of the reporting split, .* must not choose: take val_dense"),
        (("minimize:pattern",), "pattern: is no number, so OptunaSweeper would have nothing to optimize"),
        ((), r"\[\]: OptunaSweeper needs at least one value of the record"),
    ],
    ids=["reporting split", "with a direction", "no number", "nothing"],
)
def test_unfit_objective_begins_no_study(tmp_path, monkeypatch, optimize, message):
    monkeypatch.setattr(Launcher, "launch", None)
    with pytest.raises(InvalidSetting, match=f"^optimize={message}"):
        search(tmp_path, optimize=optimize)
    assert not list(tmp_path.iterdir()), "no study begins"


def launch_failing(launcher: Launcher, jobs: list, initial_job_idx: int) -> list[JobReturn]:
    error, config = RuntimeError("no such kernel"), Returned(Path("results")).hydra_cfg
    return [JobReturn(_return_value=error, status=JobStatus.FAILED, hydra_cfg=config) for _ in jobs]


def test_failed_study_restarts_with_its_settings(tmp_path, monkeypatch):
    with monkeypatch.context() as context, pytest.raises(RuntimeError, match="no such kernel"):
        context.setattr(Launcher, "launch", launch_failing)
        search(tmp_path, "dataset.path=mistyped")
    assert len(search(tmp_path, "dataset.path=right")) == 2 and search(tmp_path, "dataset.path=right") == []


@pytest.mark.parametrize(
    ("before", "after", "differs"),
    [
        ("pattern=n_m,tile_wise", "pattern=n_m,tile_wise,block", "pattern=n_m,tile_wise, not n_m,tile_wise,block"),
        ("pattern=n_m,tile_wise", "pattern=n_m", "pattern=n_m,tile_wise, not n_m"),
        ("seed=interval(0,2)", "seed=interval(0,3)", "seed=interval(0.0,2.0), not interval(0.0,3.0)"),
        ("granularity=range(8,65,8)", "granularity=range(8,33,8)", "granularity=range(8,65,8), not range(8,33,8)"),
        ("recipe.lr=interval(0.1,0.2)", "seed=3", "recipe.lr=interval(0.1,0.2), not (default); seed=(default), not 3"),
    ],
)
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "of before the space was stored"])
def test_another_space_joins_no_study(tmp_path, monkeypatch, before, after, differs, stored):
    with monkeypatch.context() as context:
        if not stored:
            context.setattr("sparsefront.search.sweep.in_overrides", lambda space: {})
        search(tmp_path, before)
    assert len(search(tmp_path, before, n_trials=3)) == 1
    with pytest.raises(InvalidSetting, match=re.escape(f"this study has {differs.replace('; ', ', ')}: name another")):
        search(tmp_path, after, n_trials=4)


def test_points_that_cannot_start_failed(tmp_path, monkeypatch):
    def launch_nothing(launcher: Launcher, jobs: list, initial_job_idx: int) -> None:
        raise OSError("no queue")

    with monkeypatch.context() as context, pytest.raises(OSError, match="no queue"):
        context.setattr(Launcher, "launch", launch_nothing)
        search(tmp_path, "seed=3")
    assert len(search(tmp_path, "seed=3")) == 1, "the second point, and the first not again"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": 0}, "batch=0: must be greater than"),
        ({"n_trials": "abc"}, "n_trials=abc: must be a valid integer"),
        ({"study": "a/b"}, "study=a/b: must be a file name: without /"),
        ({"study": None}, "study=None: must be a valid string"),
        ({"storage": 3}, "storage=3: must be a valid string"),
        ({"storage": "foo://me:secret@host"}, "storage=foo://me:***@host: must be null or the URL of a database"),
        ({"storage": "sqlite:////nope/x.db"}, "storage=sqlite:////nope/x.db: must be null or the URL of a database"),
        ({"params": "x"}, "params=x: must hold overrides by key"),
        ({"jobs": 2}, "jobs=2: unknown key; hydra.sweeper takes study, storage, n_trials, batch, params, sampler"),
        ({"sampler": TPE | {"seed": -1}}, "sampler.seed=-1: must be greater than"),
        ({"sampler": NSGA2 | {"population_size": 0}}, "sampler=optuna.samplers.NSGAIISampler: does not take its"),
        ({"sampler": {"seed": 0}}, "sampler={'seed': 0}: is no sampler: choose one with hydra/sweeper/sampler=tpe"),
    ],
    ids=str,
)
def test_wrong_setting_begins_no_study(tmp_path, settings, message):
    with pytest.raises(InvalidSetting) as raised:
        search(tmp_path, **settings)
    assert str(raised.value).startswith(f"hydra.sweeper.{message}") and "\n" not in str(raised.value)
    assert "secret" not in str(raised.value) and not list(tmp_path.iterdir())


def launch_on_a_full_disk(launcher: Launcher, jobs: list, initial_job_idx: int) -> list[JobReturn]:
    """As a run's end comes back, also from another process."""
    error, config = BadInput("results: the disk is full"), Returned(Path("results")).hydra_cfg
    error.passing = True
    ended = pickle.loads(pickle.dumps(error)).exit()
    return [JobReturn(_return_value=pickle.loads(pickle.dumps(ended)), status=JobStatus.FAILED, hydra_cfg=config)]


def fail_on_a_full_disk(launcher: Launcher, jobs: list, initial_job_idx: int) -> list[JobReturn]:
    """As Hydra does where it cannot write a run's configuration."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def launch_and_be_killed(launcher: Launcher, jobs: list, initial_job_idx: int) -> list[JobReturn]:
    """As joblib does where one of its processes is killed."""
    raise BrokenProcessPool("A worker process was killed")


@pytest.mark.parametrize(
    ("launch", "expected"),
    [(launch_on_a_full_disk, SystemExit), (fail_on_a_full_disk, OSError), (launch_and_be_killed, BrokenProcessPool)],
    ids=["full disk in the run", "full disk before the run", "worker killed"],
)
def test_external_failure_leaves_the_point(tmp_path, monkeypatch, launch, expected):
    whole = search(tmp_path / "whole", n_trials=3)
    with monkeypatch.context() as context, pytest.raises(expected):
        context.setattr(Launcher, "launch", launch)
        search(tmp_path / "full", n_trials=3)
    assert search(tmp_path / "full", n_trials=3) == whole, "no point failed"
