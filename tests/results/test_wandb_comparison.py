"""A comparison goes to W&B as a run of its own: tables that hold every point, fronts and runs, and the page."""

import json
import os
import types
from pathlib import Path

import pytest

from sparsefront.__main__ import compare as main
from sparsefront.results.loggers import read_wandb_results
from sparsefront.results.store import write_result_json

ROOT = Path(__file__).parents[2]


@pytest.fixture
def results(make_result):
    """Three points: two seeds of one, a dominated one whose granularity is a text, and one that was not timed."""
    untimed = dict.fromkeys(("speedup", "speedup_low", "speedup_high", "latency_sparse_ms"))
    return [
        make_result(run_id="a", seed=0, val_sparse=0.97, val_dense=0.98),
        make_result(run_id="b", seed=1, val_sparse=0.97, val_dense=0.98),
        make_result(
            run_id="c",
            pattern="block_wise",
            granularity="4x64",
            sparse=0.9,
            val_sparse=0.9,
            val_dense=0.98,
            speedup=1.2,
        ),
        make_result(run_id="d", pattern="n_m", val_sparse=0.96, val_dense=0.98, **untimed),
    ]


def test_the_tables_and_the_page_are_kept_offline_beside_the_runs_of_the_sweep(results, tmp_path, programs):
    for result in results:
        write_result_json(tmp_path / "sweep" / result.identity.run_id / "row.json", result)
    home = {"HOME": str(tmp_path), "NETRC": str(tmp_path / "none"), "WANDB_API_KEY": ""}
    words = [str(ROOT / "compare.py"), "sweep", "out=out", "log=wandb"]
    done = programs.run(words, cwd=tmp_path, env=os.environ | home)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "out" / "wandb").glob("offline-run-*")
    assert folder.name in done.stdout.splitlines()[-1]
    tables = {path.name.split("_")[0]: json.loads(path.read_text()) for path in folder.glob("files/media/table/*.json")}
    assert len(tables["points"]["data"]) == 3 and len(tables["fronts"]["data"]) == 2
    place = tables["runs"]["columns"].index("run_id")
    assert [line[place] for line in tables["runs"]["data"]] == ["a", "b", "c", "d"]
    assert list(folder.glob("files/media/html/*.html"))


def test_the_group_is_that_of_the_only_sweep(results, tmp_path, monkeypatch):
    import wandb

    started = []

    class Run:
        url, dir = None, "somewhere"

        def log(self, values: dict) -> None: ...

        def finish(self) -> None: ...

    monkeypatch.setattr(wandb, "init", lambda **start: started.append(start) or Run())
    for name in ("one", "other"):
        write_result_json(tmp_path / name / "a" / "row.json", results[0])
    monkeypatch.chdir(tmp_path)
    for paths in (["one"], ["one", "other"]):
        assert main([*paths, "out=out", "log=wandb", "project=mine", "entity=us"]) == 0
    assert [start["group"] for start in started] == ["one", None]
    assert {(start["project"], start["entity"], start["job_type"]) for start in started} == {("mine", "us", "compare")}
    assert main(["one", "out=out"]) == 0 and len(started) == 2, "only where it is asked for"


def test_a_comparison_is_no_run_that_lacks_a_result(monkeypatch, results):
    import wandb

    monkeypatch.setenv("WANDB_API_KEY", "key")
    runs = [
        types.SimpleNamespace(id="c", state="finished", summary={}, job_type="compare"),
        types.SimpleNamespace(id="a", state="finished", summary={"row": results[0].to_json()}, job_type=None),
    ]
    monkeypatch.setattr(wandb, "Api", lambda timeout: types.SimpleNamespace(runs=lambda path: runs))
    reading = read_wandb_results(entity=None, project="mine")
    assert len(reading.results) == 1 and not reading.problems
