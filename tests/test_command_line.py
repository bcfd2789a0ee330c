"""run.py as a user types it, in processes of their own: those that do not say `python` are forked by `programs`."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from program_server import ProgramServer
from quick_settings import QUICK

from sparsefront.results.record import Result

ROOT = Path(__file__).resolve().parent.parent
SMALL = ["model.dim=64", "model.depth=1", "measure.evaluate_limit=8"]
TINY = ["debug=tiny", "logger=none", "trainer=cpu", "measure.device=cpu", *SMALL, *QUICK]


def command(tmp_path: Path, *overrides: str) -> list[str]:
    places = [f"results_dir={tmp_path / 'results'}", f"cache_dir={tmp_path / 'cache'}"]
    return [str(ROOT / "run.py"), *TINY, *places, *overrides]


def python(*words: str, timeout: float = 600) -> subprocess.CompletedProcess:
    """A whole process, from Python's start to its end."""
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=timeout)


@pytest.fixture
def finish(programs: ProgramServer) -> Callable[..., subprocess.CompletedProcess]:
    """finish(folder, *overrides) -> what a run into a folder printed and how it ended."""
    return lambda folder, *overrides: programs.run(command(folder, *overrides))


def rows(tmp_path: Path) -> list[Result]:
    return [Result.from_json(file.read_text()) for file in sorted((tmp_path / "results").rglob("row.json"))]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["sparsity=1.5"], "sparsity=1.5: must be less than"),
        (["-m", "sparsity=0.5,1.7", "seed=1,2"], "sparsity=1.7: must be less than"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_bad_input_is_one_message(tmp_path, overrides, message, finish):
    """However it is found; tests/test_wrong_commands.py has all messages."""
    done = finish(tmp_path, *overrides)
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if message in line)
    assert line.startswith(message)
    assert "Traceback" not in done.stderr + done.stdout and "points finished" not in done.stdout
    assert "HYDRA_FULL_ERROR" not in done.stderr, "a stack trace is no help here"
    assert not (tmp_path / "results").exists(), "a run that was rejected leaves no folder"


@pytest.mark.parametrize(("line", "answer"), [("ru", "run"), ("run pattern=tile_w", "pattern=tile_wise")])
def test_the_installed_program_completes(line, answer, monkeypatch):
    """As bash asks what `sparsefront run -sc install=bash` registers."""
    monkeypatch.setitem(os.environ, "COMP_LINE", f"sparsefront {line}")
    done = python("-c", "from sparsefront.__main__ import main; main()", "-sc", "query=bash")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, answer, "")


def test_configuration_shows_an_experiment(tmp_path, finish):
    done = finish(tmp_path, "--cfg", "job", "+experiment=digits_gradual", "pattern=block_wise")
    assert done.returncode == 0, done.stderr
    assert "sparsefront.schedule.gradual.Gradual" in done.stdout and "sparsity: 0.9\n" in done.stdout
    assert "allocation:\n  _target_: sparsefront.allocation.per_layer.PerLayer\n" in done.stdout


def test_sweep_continues_past_a_failure(tmp_path, finish):
    sweep = ["-m", "pattern=n_m", "sparsity=0.5", "pattern.m=4,5,8"]
    first = finish(tmp_path, *sweep)
    assert first.returncode != 0, "one point cannot work"
    assert len(rows(tmp_path)) == 2
    assert "2 points finished, 1 failed" in first.stdout
    assert "pattern.m=5" in first.stdout and "Traceback" not in first.stderr
    assert "HYDRA_FULL_ERROR" not in first.stderr
    assert "point 1 of 3, time left: known when a first point is done\n" in first.stdout
    assert re.search(r"point 2 of 3, about \d+ (s|min) left\n", first.stdout)
    points = sorted(path.name for path in (tmp_path / "results").glob("*/*") if path.is_dir())
    assert points == ["001_n_m_0.5", "002_n_m_0.5", "003_n_m_0.5"]
    assert len([folder for folder in (tmp_path / "cache" / "dense").iterdir() if folder.is_dir()]) == 1
    again = finish(tmp_path, *sweep)
    assert again.stdout.count("finished before") == 2
    assert "point 3 of 3, time left: known when a first point is done\n" in again.stdout, "shown again is not made"
    assert "training" not in again.stdout


KILLED_IN_STAGE = """
import contextlib, os, runpy, sys
from sparsefront.artifacts.store import ArtifactStore
making = ArtifactStore.making
@contextlib.contextmanager
def making_and_killed(self, kind, key):
    with making(self, kind, key) as new:
        yield os.kill(os.getpid(), 9) if kind == stage else new
ArtifactStore.making = making_and_killed
_, stage, *sys.argv = sys.argv
runpy.run_path(sys.argv[0], run_name='__main__')
"""


def test_killed_run_gives_the_same_result(tmp_path, finish, programs):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for stage in ("dense", "measure"):  # without a chance to clean up, as soon as the run works on it
        done = programs.run(["-c", KILLED_IN_STAGE, stage, *command(killed)])
        assert done.returncode == -9 and list((killed / "cache" / stage).glob("*.partial-*")) and not rows(killed)
    last = finish(killed)
    assert not [path for path in killed.rglob("*") if "partial" in path.name or path.name == ".running"]
    assert "removed what killed runs had left half-written" in last.stdout
    for folder in killed.glob("results/2*"):  # one killed before its first line in the log is gone
        assert (folder / "row.json").exists() or json.loads((folder / "failure.json").read_text())["error"] == "Killed"
    (folder,) = [file.parent for file in killed.glob("results/*/row.json")]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_[\d-]+_tile_wise_0\.75", folder.name)
    assert last.returncode == 0, last.stderr
    assert not re.search("training|^(dense|recover)[:,]", last.stdout, re.MULTILINE), "finished stages were repeated"
    assert finish(whole).returncode == 0
    (after_kills,), (uninterrupted,) = rows(killed), rows(whole)
    assert after_kills.quality == uninterrupted.quality
    assert after_kills.sparsity == uninterrupted.sparsity
    assert after_kills.choice == uninterrupted.choice


def test_full_disk_leaves_nothing_half_written(tmp_path, programs):
    """No file may be larger than 150 KB, so the weights cannot be stored."""
    limit = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (150 * 1024, 150 * 1024))"
    main = "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    done = programs.run(["-c", f"{limit}; {main}", *command(tmp_path, "-m", "sparsity=0.5,0.75")])
    assert done.returncode != 0 and "0 points finished, 2 failed" in done.stdout
    assert "File too large" in done.stdout.split("2 failed")[1], "the table says why"
    assert not [path for path in tmp_path.rglob("*") if "partial" in path.name or path.name == ".running"]
    assert not list(tmp_path.glob("cache/dense/*/"))
    assert {path.name for path in tmp_path.glob("results/*/*/*.json")} == {"failure.json"}


MAIN = "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
TERMINATED_IN_TRAINING = """
import os, runpy, sys
from sparsefront.tasks.lightning_modules import LightningTask
step = LightningTask.training_step
def step_and_end(self, *given):
    if self.trainer.current_epoch == 1:
        os.killpg(0, 15)
    return step(self, *given)
LightningTask.training_step = step_and_end
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name='__main__')
"""
OPTUNA = [
    "-m",
    "hydra/sweeper=optuna",
    "hydra.sweeper.n_trials=2",
    "sparsity=interval(0.5,0.75)",
    "optimize=[val_sparse]",
]


@pytest.mark.parametrize("sweep", [["-m", "sparsity=0.5,0.75"], OPTUNA], ids=["a sweep", "a search"])
def test_sigterm_to_group_ends_program(tmp_path, programs, sweep):
    """With loader workers, as Slurm, containers and `timeout` send it; the same command does all."""
    words = command(tmp_path, "dataset.num_workers=1", "recipe.epochs=3", *sweep)
    ended = programs.run(["-c", TERMINATED_IN_TRAINING, *words])
    said = "ended by SIGTERM: what is finished is stored, and the same command resumes from there\n"
    assert ended.returncode == 143 and ended.stderr == said, ended.stderr
    assert len(list(tmp_path.glob("results/**/failure.json"))) == 1, "nothing else began"
    assert programs.run(words).returncode == 0 and len(rows(tmp_path)) == 2


PRESSED_WHILE_IMPORTING = f"""
import builtins, os, runpy, sys
real = builtins.__import__
def importing(name, *given):
    if name == "hydra":
        os.kill(os.getpid(), 2)
    return real(name, *given)
builtins.__import__ = importing
{MAIN}
"""
PRESSED_TWICE = f"""
import os, runpy, sys
from sparsefront import interrupts, pipeline
def work(config):
    try:
        os.kill(os.getpid(), 2)
    finally:
        interrupts.BOUNCE_S = 0
        os.kill(os.getpid(), 2)
pipeline.run_experiment = work
{MAIN}
"""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (PRESSED_WHILE_IMPORTING, "interrupted\n"),
        (PRESSED_TWICE, "interrupted: what is finished is stored, and the same command resumes from there\n"),
    ],
    ids=["at first", "twice"],
)
def test_ctrl_c_is_one_line(tmp_path, programs, code, said):
    done = programs.run(["-c", code, *command(tmp_path)])
    assert (done.returncode, done.stderr) == (130, said)
