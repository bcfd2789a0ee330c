"""A study that several processes share, that goes on after a kill with the points it would have had, each of them once."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna", minversion="4.5", reason="optuna is not installed: it comes with the extra `sweep`")

from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf

from sparsefront.errors import InvalidSetting
from sparsefront.search.space import parse_space
from sparsefront.search.study import Study
from sparsefront.search.sweep import run_search

SPACE = ["sparsity=interval(0.5,0.95)", "pattern=n_m,tile_wise", "granularity=range(8,65,8)", "seed=3"]
TPE = {"_target_": "optuna.samplers.TPESampler", "n_startup_trials": 3, "seed": 0}
NSGA2 = {"_target_": "optuna.samplers.NSGAIISampler", "population_size": 4, "seed": 0}


def study(root: Path, *, sampler=TPE, n_trials: int = 8, storage: str | None = None) -> Study:
    space, _ = parse_space(SPACE)
    directions = ["maximize", "minimize"]
    config = OmegaConf.create(sampler)
    return Study(root, "s", storage=storage, directions=directions, space=space, sampler=config, n_trials=n_trials)


def values(params: dict) -> list[float]:
    return [1 - params["sparsity"] ** 2, 1 / params["sparsity"] + (params["pattern"] == "n_m")]


def work(root: Path, **settings) -> list[dict]:
    done, here = [], study(root, **settings)
    while (asked := here.ask()) is not None:
        done.append({"number": asked.number, **asked.trial.params})
        here.tell(asked, values(asked.trial.params), f"run_{asked.number}")
    return done


def test_of_a_key_that_is_given_again_the_later_one_counts(tmp_path):
    space, fixed = parse_space(
        ["sparsity=interval(0.5,0.95)", "seed=1", "pattern=n_m", "sparsity=0.7", "pattern=n_m,uniform"]
    )
    assert set(space) == {"pattern"} and fixed == ["seed=1", "sparsity=0.7"]
    jobs = search(tmp_path, "sparsity=0.7", params={"recipe.lr": "interval(0.1,0.2)"})
    assert all("sparsity=0.7" in job and not job[-1].startswith("sparsity=") for job in jobs)


@pytest.mark.parametrize("sampler", [TPE, NSGA2], ids=["tpe", "nsgaii"])
@pytest.mark.parametrize("database", [False, True], ids=["journal", "sqlite"])
def test_a_study_that_is_gone_on_with_has_the_points_of_one_that_was_not(tmp_path, sampler, database):
    def at(name: str) -> dict:
        (tmp_path / name).mkdir()
        return {"storage": f"sqlite:///{tmp_path / name}/study.db" if database else None, "sampler": sampler}

    whole = work(tmp_path / "whole", **at("whole"))
    parts = at("parts")
    first = work(tmp_path / "parts", **parts, n_trials=3)
    asked = study(tmp_path / "parts", **parts).ask()
    kept = {"number": asked.number, **asked.trial.params}
    del asked  # its process is gone: nobody holds the point any more
    rest = work(tmp_path / "parts", **parts)
    assert rest[0] == kept, "the same point again"
    assert [point["number"] for point in first + rest] == list(range(8))
    assert first + rest == whole or sampler is NSGA2, "generations also go by Optuna's own numbers of trials"
    assert work(tmp_path / "parts", **parts) == []


def test_a_point_that_a_living_process_works_on_is_left_to_it(tmp_path):
    here = study(tmp_path, n_trials=2)
    first, second = here.ask(), study(tmp_path, n_trials=2).ask()
    assert first.number == 0 and second.number == 1 and here.ask() is None
    here.tell(second, None)
    here.tell(first, values(first.trial.params))
    assert here.ask() is None, "a point that failed is not tried again"


def test_one_that_was_killed_before_it_had_its_number_gets_it_later(tmp_path):
    here = study(tmp_path)
    held, lost = [here.ask()], here.ask()
    del lost
    held.append(here.ask())  # the lost one again, so that Optuna's own numbers run ahead
    here._study.ask(here.space)  # and no more of it: killed
    while (one := here.ask()) is not None:
        held.append(one)
    assert [one.number for one in held] == list(range(8))


def test_the_front_holds_the_runs_that_no_other_beats(tmp_path):
    here = study(tmp_path, n_trials=3)
    for given in ([0.9, 2.0], [0.8, 3.0], [0.7, 1.0]):
        asked = here.ask()
        here.tell(asked, given, f"results/{given[0]}")
    told, *runs = here.front.read_text().splitlines()
    assert runs == ["results/0.9", "results/0.7"]
    assert told == "# front of s: 2 of 3 finished points", "a reader of the front alone learns how many were tried"


WORKER = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_study import study, values
here = study(Path(sys.argv[2]), n_trials=10)
while (asked := here.ask()) is not None:
    time.sleep(0.05)
    here.tell(asked, values(asked.trial.params))
    with open(Path(sys.argv[2]) / "log", "a") as log:
        log.write(json.dumps([asked.number, asked.trial.params]) + "\\n")
"""


def test_several_processes_and_kills_give_each_point_once(tmp_path):
    command = [sys.executable, "-c", WORKER, str(Path(__file__).parent), str(tmp_path)]
    log, workers, kills = tmp_path / "log", [], 0
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        workers = [worker for worker in workers if worker.poll() is None]
        done = len(log.read_text().splitlines()) if log.exists() else 0
        if done >= 10 and not workers:
            break
        if len(workers) < 2 and done < 10:
            workers.append(subprocess.Popen(command))
        if kills < 2 and done > 3 * kills and workers:
            os.kill(workers[0].pid, signal.SIGKILL)
            workers[0].wait(30)
            kills += 1
        time.sleep(0.05)
    work(tmp_path, n_trials=10)  # what the last killed one left
    trials = study(tmp_path, n_trials=10)._study.get_trials()
    finished = [trial for trial in trials if trial.state.name == "COMPLETE"]
    assert sorted(trial.user_attrs["number"] for trial in finished) == list(range(10)) and kills == 2
    assert not list(tmp_path.glob(".*.leases/*")), "nothing is held"
    assert {json.loads(line)[0] for line in log.read_text().splitlines()} <= set(range(10))


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


def test_no_two_runs_of_a_process_have_one_folder(tmp_path, monkeypatch):
    """Its first batch is points 0 and 2, and the next one begins with point 1 of a process that was killed meanwhile."""
    ask, launch = Study.ask, Launcher.launch
    elsewhere, launched = [], []

    def ask_beside_another(here: Study):
        asked = ask(here)
        if asked is not None and not launched and not elsewhere:
            elsewhere.append(ask(here))
        return asked

    def launch_while_it_is_killed(launcher, jobs, initial_job_idx):
        elsewhere.clear()
        found = launch(launcher, jobs, initial_job_idx)
        launched[:] = launcher.numbers
        return found

    monkeypatch.setattr(Study, "ask", ask_beside_another)
    monkeypatch.setattr(Launcher, "launch", launch_while_it_is_killed)
    search(tmp_path, n_trials=4, batch=2)
    assert launched == [0, 1, 2, 3]
    front = (tmp_path / "studies" / "s.front.txt").read_text().splitlines()[1:]
    assert len(set(front)) == len(front) == 4, "all points are equal here, and none took the folder of another"


def test_a_search_of_other_settings_does_not_join_a_study(tmp_path):
    assert len(search(tmp_path, "pattern=n_m", "seed=3", "dataset.path=one")) == 2
    for overrides, differs in (
        (["pattern=uniform", "seed=3"], "pattern=n_m, not uniform"),
        (["pattern=n_m"], r"seed=3, not \(default\)"),
        (["pattern=n_m", "seed=3", "recipe.lr=0.1"], r"recipe.lr=\(default\), not 0.1"),
    ):
        with pytest.raises(
            InvalidSetting, match=rf"hydra.sweeper.study=s: this study has {differs}: name another study"
        ):
            search(tmp_path, *overrides, n_trials=4)
    elsewhere = ["pattern=n_m", "seed=3", "dataset.path=two", "cache_dir=three"]
    assert len(search(tmp_path, *elsewhere, n_trials=4)) == 2, "another host may keep its data elsewhere"


@pytest.mark.parametrize(
    ("optimize", "message"),
    [
        (
            ("val_sparse", "sparse"),
            "sparse: is of the reporting split, by which OptunaSweeper must not choose: take val_sp",
        ),
        (
            ("maximize:dense",),
            "dense: is of the reporting split, by which OptunaSweeper must not choose: take val_dense",
        ),
        (("minimize:pattern",), "pattern: is no number, so OptunaSweeper would have nothing to optimize"),
        ((), r"\[\]: OptunaSweeper needs at least one value of the record"),
    ],
    ids=["reporting split", "with a direction", "no number", "nothing"],
)
def test_a_value_that_nothing_may_be_chosen_by_is_refused_before_the_first_point(
    tmp_path, monkeypatch, optimize, message
):
    monkeypatch.setattr(Launcher, "launch", None)
    with pytest.raises(InvalidSetting, match=f"^optimize={message}"):
        search(tmp_path, optimize=optimize)
    assert not list(tmp_path.iterdir()), "no study begins"


def launch_failing(launcher: Launcher, jobs: list, initial_job_idx: int) -> list[JobReturn]:
    error, config = RuntimeError("no such kernel"), Returned(Path("results")).hydra_cfg
    return [JobReturn(_return_value=error, status=JobStatus.FAILED, hydra_cfg=config) for _ in jobs]


def test_a_study_without_a_finished_point_has_no_front(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    with monkeypatch.context() as context, pytest.raises(RuntimeError, match="no such kernel"):
        context.setattr(Launcher, "launch", launch_failing)
        search(tmp_path, "seed=3")
    assert "compare.py" not in caplog.text and not list(tmp_path.rglob("*.front.txt"))
    search(tmp_path, "seed=4")
    assert f"no other beats: python compare.py {tmp_path / 'studies' / 's.front.txt'}" in caplog.text


def test_a_study_of_which_every_point_failed_begins_anew(tmp_path, monkeypatch):
    with monkeypatch.context() as context, pytest.raises(RuntimeError, match="no such kernel"):
        context.setattr(Launcher, "launch", launch_failing)
        search(tmp_path, "kernel=none")
    assert len(search(tmp_path, "kernel=auto")) == 2, "the wrong setting took neither the name nor the points"
    with pytest.raises(InvalidSetting, match="name another study with hydra.sweeper.study="):
        search(tmp_path, "kernel=none")


def test_it_does_so_with_the_same_settings_once_it_has_all_its_points(tmp_path, monkeypatch):
    with monkeypatch.context() as context, pytest.raises(RuntimeError, match="no such kernel"):
        context.setattr(Launcher, "launch", launch_failing)
        search(tmp_path, "dataset.path=mistyped")
    assert len(search(tmp_path, "dataset.path=right")) == 2 and search(tmp_path, "dataset.path=right") == []


@pytest.mark.parametrize("optimize", [("latency_sparse_ms",), ("val_sparse", "latency_sparse_ms")])
def test_a_study_of_which_every_point_failed_keeps_its_directions(tmp_path, monkeypatch, optimize):
    with monkeypatch.context() as context, pytest.raises(RuntimeError, match="no such kernel"):
        context.setattr(Launcher, "launch", launch_failing)
        search(tmp_path, optimize=("val_sparse",))
    differs = f"this study has optimize=val_sparse, not {','.join(optimize)}: name another study"
    with pytest.raises(InvalidSetting, match=differs):
        search(tmp_path, optimize=optimize)


def test_a_study_with_all_its_points_says_so(tmp_path, caplog):
    assert len(search(tmp_path, "seed=3")) == 2 and "are taken" not in caplog.text
    assert search(tmp_path, "seed=3") == []
    assert "all 2 points of study s are taken: raise hydra.sweeper.n_trials, or name another" in caplog.text


def test_a_mistyped_option_begins_no_study(tmp_path):
    with pytest.raises(LookupError, match="Could not find"):
        search(tmp_path, "pattern=n_m,tilewise")
    assert not list(tmp_path.iterdir())
    assert len(search(tmp_path, "pattern=n_m,tile_wise")) == 2


@pytest.mark.parametrize(
    ("before", "after", "differs"),
    [
        ("pattern=n_m,tile_wise", "pattern=n_m,tile_wise,block", "pattern=n_m,tile_wise, not n_m,tile_wise,block"),
        ("pattern=n_m,tile_wise", "pattern=n_m", "pattern=n_m,tile_wise, not n_m"),
        (
            "recipe.lr=interval(0.1,0.2)",
            "recipe.lr=interval(0.1,0.3)",
            "recipe.lr=interval(0.1,0.2), not interval(0.1,0.3)",
        ),
        ("granularity=range(8,65,8)", "granularity=range(8,33,8)", "granularity=range(8,65,8), not range(8,33,8)"),
        ("recipe.lr=interval(0.1,0.2)", "seed=3", "recipe.lr=interval(0.1,0.2), not (default); seed=(default), not 3"),
    ],
)
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "of before the space was stored"])
def test_a_search_of_another_space_does_not_join_a_study(tmp_path, monkeypatch, before, after, differs, stored):
    with monkeypatch.context() as context:
        if not stored:
            context.setattr("sparsefront.search.study.in_overrides", lambda space: {})
        search(tmp_path, before)
    assert len(search(tmp_path, before, n_trials=3)) == 1
    with pytest.raises(InvalidSetting, match=re.escape(f"this study has {differs.replace('; ', ', ')}: name another")):
        search(tmp_path, after, n_trials=4)


def test_a_study_without_a_finished_point_takes_another_interval_but_no_other_categories(tmp_path, monkeypatch):
    with monkeypatch.context() as context, pytest.raises(RuntimeError, match="no such kernel"):
        context.setattr(Launcher, "launch", launch_failing)
        search(tmp_path, "pattern=n_m,tile_wise", "recipe.lr=interval(8,9)")
    with pytest.raises(InvalidSetting, match="pattern=n_m,tile_wise, not n_m,block: name another study"):
        search(tmp_path, "pattern=n_m,block", "recipe.lr=interval(8,9)")
    assert len(search(tmp_path, "pattern=n_m,tile_wise", "recipe.lr=interval(0.1,0.2)")) == 2


def test_points_that_the_launcher_could_not_start_have_failed(tmp_path, monkeypatch):
    def launch_nothing(launcher: Launcher, jobs: list, initial_job_idx: int) -> None:
        raise OSError("no queue")

    with monkeypatch.context() as context, pytest.raises(OSError, match="no queue"):
        context.setattr(Launcher, "launch", launch_nothing)
        search(tmp_path, "seed=3")
    assert len(search(tmp_path, "seed=3")) == 1, "the second point, and the first not again"


def test_what_a_killed_process_left_is_not_taken_outside_the_space(tmp_path):
    here = study(tmp_path)
    other, _ = parse_space([*SPACE[:1], "pattern=n_m,tile_wise", "granularity=range(8,129,8)"])
    here._study.ask(other)  # and its process is gone
    assert here.ask().trial.number == 1 and here._study.get_trials()[0].state.name == "FAIL"
    assert {trial.state.name for trial in here._study.get_trials()} == {"FAIL", "RUNNING"}, "nothing waits"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": 0}, "batch=0: must be a whole number of at least 1"),
        ({"batch": -1}, "batch=-1: must be a whole number of at least 1"),
        ({"n_trials": 0}, "n_trials=0: must be a whole number of at least 1"),
        ({"n_trials": "abc"}, "n_trials=abc: must be a whole number of at least 1"),
        ({"n_trials": 1.5}, "n_trials=1.5: must be a whole number of at least 1"),
        ({"study": "a/b"}, "study=a/b: must be a file name: without /"),
        ({"study": ".."}, "study=..: must be a file name: without /, with no dot in front"),
        ({"study": None}, "study=None: must be text"),
        ({"storage": 3}, "storage=3: must be text or null"),
        ({"storage": "foo://me:secret@host"}, "storage=foo://me:***@host: must be null or the URL of a database"),
        ({"storage": "sqlite:////nope/x.db"}, "storage=sqlite:////nope/x.db: must be null or the URL of a database"),
        ({"params": "x"}, "params=x: must hold overrides by key"),
        ({"jobs": 2}, "jobs=2: is no setting; there are study, storage, n_trials, batch, params, sampler"),
        ({"sampler": TPE | {"seed": "abc"}}, "sampler.seed=abc: must be a whole number from 0 to 2147483647 or null"),
        ({"sampler": TPE | {"seed": -1}}, "sampler.seed=-1: must be a whole number from 0 to"),
        (
            {"sampler": NSGA2 | {"population_size": 0}},
            "sampler=optuna.samplers.NSGAIISampler: does not take its settings",
        ),
        ({"sampler": {"seed": 0}}, "sampler={'seed': 0}: is no sampler: choose one with hydra/sweeper/sampler=tpe"),
    ],
    ids=str,
)
def test_a_setting_that_is_wrong_is_one_line_and_begins_nothing(tmp_path, settings, message):
    with pytest.raises(InvalidSetting) as raised:
        search(tmp_path, **settings)
    assert str(raised.value).startswith(f"hydra.sweeper.{message}") and "\n" not in str(raised.value)
    assert "secret" not in str(raised.value) and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("interval(0.9,0.5)", "must be finite numbers, the smaller one first"),
        ("interval(9,5)", "must be finite numbers, the smaller one first"),
        ("interval(0,inf)", "must be finite numbers, the smaller one first"),
        ("tag(log,interval(0,1e-2))", "must begin above 0, as by a logarithm"),
        ("tag(log,int(interval(0,9)))", "must begin above 0, as by a logarithm"),
        ("glob(*)", "cannot be searched: write the options out"),
    ],
)
def test_a_space_that_nothing_can_be_drawn_from_is_one_line(text, allowed):
    with pytest.raises(InvalidSetting, match=re.escape(f"recipe.lr={text}: {allowed}")):
        parse_space([f"recipe.lr={text}"])


@pytest.mark.parametrize("text", ["shuffle(n_m,tile_wise,uniform)", "shuffle(range(0,30,10))"])
def test_all_processes_have_a_shuffled_space_in_the_same_order(text):
    assert all(parse_space([f"x={text}"]) == parse_space([f"x={text}"]) for _ in range(9))
