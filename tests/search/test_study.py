"""A study that several processes share, that goes on after a kill with the points it would have had, each of them once."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("optuna", minversion="4.5", reason="optuna is not installed: it comes with the extra `sweep`")

from omegaconf import OmegaConf

from sparsefront.search.space import parse_space
from sparsefront.search.study import Study

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


def test_what_a_killed_process_left_is_not_taken_outside_the_space(tmp_path):
    here = study(tmp_path)
    other, _ = parse_space([*SPACE[:1], "pattern=n_m,tile_wise", "granularity=range(8,129,8)"])
    here._study.ask(other)  # and its process is gone
    assert here.ask().trial.number == 1 and here._study.get_trials()[0].state.name == "FAIL"
    assert {trial.state.name for trial in here._study.get_trials()} == {"FAIL", "RUNNING"}, "nothing waits"
