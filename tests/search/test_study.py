"""A study that several processes share, that goes on after a kill with the points it would have had, each of them once."""

import json
from pathlib import Path

import pytest

pytest.importorskip("optuna", minversion="4.5", reason="optuna is not installed: it comes with the extra `sweep`")

from omegaconf import OmegaConf

from sparsefront.errors import Obstacle
from sparsefront.search.space import parse_space
from sparsefront.search.sweep import Study

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
def test_resumed_study_has_the_same_points(tmp_path, sampler, database):
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


def test_living_process_keeps_its_point(tmp_path):
    here = study(tmp_path, n_trials=2)
    first, second = here.ask(), study(tmp_path, n_trials=2).ask()
    assert first.number == 0 and second.number == 1 and here.ask() is None
    here.tell(second, None)
    here.tell(first, values(first.trial.params))
    assert here.ask() is None, "a point that failed is not tried again"


def test_front_holds_the_best_runs(tmp_path):
    here = study(tmp_path, n_trials=3)
    for given in ([0.9, 2.0], [0.8, 3.0], [0.7, 1.0]):
        asked = here.ask()
        here.tell(asked, given, f"results/{given[0]}")
    told, *runs = here.front.read_text().splitlines()
    assert runs == ["results/0.9", "results/0.7"]
    assert told == "# front of s: 2 of 3 finished points", "a reader of the front alone learns how many were tried"


WORKER = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_study import study, values
here, left = study(Path(sys.argv[2]), n_trials=10), int(sys.argv[3])
while (asked := here.ask()) is not None:
    left -= 1
    if left == 0:
        os.kill(os.getpid(), 9)
    here.tell(asked, values(asked.trial.params))
    with open(Path(sys.argv[2]) / "log", "a") as log:
        log.write(json.dumps([asked.number, asked.trial.params]) + "\\n")
"""


def test_killed_processes_give_each_point_once(tmp_path, programs):
    command = ["-c", WORKER, str(Path(__file__).parent), str(tmp_path)]
    for asked in ((3, 2), (0, 0)):  # at which each is killed, that point in hand; 0: at none
        workers = [programs.start([*command, str(number)]) for number in asked]
        assert [worker.wait() for worker in workers] == [-9 if number else 0 for number in asked]
    trials = study(tmp_path, n_trials=10)._study.get_trials()
    finished = [trial for trial in trials if trial.state.name == "COMPLETE"]
    assert sorted(trial.user_attrs["number"] for trial in finished) == list(range(10))
    assert not list(tmp_path.glob(".*.leases/*")), "nothing is held"
    assert {json.loads(line)[0] for line in (tmp_path / "log").read_text().splitlines()} <= set(range(10))


def test_sleeper_reports_no_replaced_point(tmp_path, caplog):
    here, there = study(tmp_path, n_trials=2), study(tmp_path, n_trials=2)
    asked = here.ask()
    asked.lease.file.unlink()  # it lapsed
    again = there.ask()
    here.tell(asked, values(asked.trial.params), "slept")
    assert "point 0 of study s was given to another process while this one slept" in caplog.text
    there.tell(again, values(again.trial.params), "took over")
    (finished,) = [trial for trial in here._study.get_trials() if trial.state.name == "COMPLETE"]
    assert finished.user_attrs["run"] == "took over" and here.ask().number == 1


@pytest.mark.parametrize("left", [b'{"op_code":8,"worker_', b"\0\0\0\0", b'{"op_code"{"op_code":5}\n'])
def test_half_a_line_is_dropped(tmp_path, caplog, left):
    whole = work(tmp_path / "whole")
    first = work(tmp_path / "cut", n_trials=3)
    journal = tmp_path / "cut" / "s.journal"
    sound = journal.read_bytes()
    journal.write_bytes(sound + left)
    rest = work(tmp_path / "cut")
    assert journal.read_bytes().startswith(sound)
    assert first + rest == whole
    assert f"{journal} ended in half a line" in caplog.text and f"its {len(left)} bytes were dropped" in caplog.text
    assert all(json.loads(line) for line in journal.read_text().splitlines())


def test_damaged_line_names_number_and_remedy(tmp_path):
    whole = work(tmp_path / "whole")
    work(tmp_path, n_trials=3)
    journal = tmp_path / "s.journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[10] = lines[10][:20] + b"\n"
    journal.write_bytes(b"".join(lines))
    with pytest.raises(Obstacle) as caught:
        study(tmp_path)
    told = str(caught.value)
    assert told.startswith(f"{journal}, line 11: is damaged") and "head -n 10" in told and "\n" not in told
    assert "name another hydra.sweeper.study" in told
    journal.write_bytes(b"".join(lines[:10]))
    assert work(tmp_path) == whole[1:], "as the remedy says: of three finished points one is in those lines"


# The journal may grow by so many bytes until the next write fails, in the midst of a line or between two.
FULL_DISK = """
import json, resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_study import study, values
root, room, done, full, nobody_else = Path(sys.argv[2]), int(sys.argv[3]), {}, 0, resource.RLIM_INFINITY
journal = root / "s.journal"
while len(done) < 8:
    size = journal.stat().st_size if journal.exists() else 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, nobody_else))
    room += 7
    try:
        here = study(root)
        while (asked := here.ask()) is not None:
            here.tell(asked, values(asked.trial.params), f"run_{asked.number}")
            done[asked.number] = asked.trial.params
    except OSError:
        full += 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (nobody_else, nobody_else))
    here = asked = None  # the end of the process
print(json.dumps([full, done]))
"""


def test_full_disk_loses_no_point(tmp_path, programs):
    whole = work(tmp_path / "whole")
    ended = programs.run(["-c", FULL_DISK, str(Path(__file__).parent), str(tmp_path), "300"])
    full, done = json.loads(ended.stdout)
    assert full > 10 and [{"number": int(number), **params} for number, params in done.items()] == whole
    finished = [
        trial.user_attrs["number"] for trial in study(tmp_path)._study.get_trials() if trial.state.name == "COMPLETE"
    ]
    assert sorted(finished) == list(range(8)), "each of them once"
