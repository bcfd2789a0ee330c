"""Loggers: W&B offline without an account and without a prompt, its result readable again, CSV, none.

A finished point that is shown again reaches W&B too, as the same run and without saying anything twice.

A comparison goes to W&B as a run of its own: tables that hold every point, fronts and runs, and the page.
"""

import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
from quick_settings import QUICK

from sparsefront.errors import InvalidSetting
from sparsefront.pipeline import run_experiment
from sparsefront.results.loggers import (
    RESULT_KEY,
    CsvLogging,
    LoggedRun,
    TensorBoardLogging,
    WandbLogging,
    log_result,
    read_wandb_results,
    summary_of,
    write_panels,
)
from sparsefront.results.record import Result
from sparsefront.results.store import write_result_json

OFFLINE_RUN = """
import sys
from pathlib import Path
from sparsefront.results.loggers import LoggedRun, WandbLogging, log_result
from sparsefront.results.record import Result
folder = Path(sys.argv[1])
for number in range(2):
    output_dir, config = folder / str(number), {"a": {"b": [1, None]}}
    loggers = WandbLogging().build(
        LoggedRun(run_name="test", output_dir=output_dir, group="sweep", config=config, tags=["debug"])
    )
    loggers[0].log_metrics({"train/loss": 1.0}, step=0)
    log_result(loggers, Result.from_json((folder / "row.json").read_text()))
"""


@pytest.fixture
def no_account(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))


def test_wandb_offline_needs_no_account(no_account, tmp_path, make_result, programs):
    write_result_json(tmp_path / "row.json", make_result())
    for number in range(2):
        (tmp_path / str(number)).mkdir()
    home = os.environ | {"HOME": str(tmp_path)}
    done = programs.run(["-c", OFFLINE_RUN, str(tmp_path)], cwd=tmp_path, env=home, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and "wandb:" not in done.stderr
    for number in range(2):
        assert list((tmp_path / str(number) / "wandb").glob("offline-run-*/run-*.wandb"))
        assert list((tmp_path / str(number) / "wandb").glob("offline-run-*/files/media/table/summary_table*.json"))
    assert not (tmp_path / "wandb").exists(), "nothing is written outside the folders of the runs"
    (folder,) = (tmp_path / "0" / "wandb").glob("offline-run-*")
    program = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--summary", "--json", str(folder)]
    shown = subprocess.run(program, env=home, capture_output=True, text=True)
    if shown.returncode != 0:
        pytest.skip(f"wandb cannot read its file back: {shown.stderr}")
    record = json.loads(shown.stdout)
    assert record["config"]["a"] == {"b": [1, None]}
    read = {name: value for name, value in record["summary"].items() if name in summary_of(make_result())}
    assert read == summary_of(make_result()) and read["accuracy/points_lost"] == pytest.approx(1.0)
    assert Result.from_json(record["summary"][RESULT_KEY]) == make_result()


def test_settings_that_cannot_work_are_rejected(no_account, monkeypatch):
    with pytest.raises(InvalidSetting, match="mode=on: must be 'auto', 'online'"):
        WandbLogging(mode="on")
    with pytest.raises(InvalidSetting, match="WANDB_API_KEY"):
        WandbLogging(mode="online").check()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidSetting, match="mode=auto: the package wandb is not installed"):
        WandbLogging().check()


def test_csv_logger_keeps_curves(tmp_path, make_result):
    loggers = CsvLogging().build(LoggedRun(run_name="a", output_dir=tmp_path, group=None, config={}))
    loggers[0].log_metrics({"train/loss": 1.0}, step=0)
    log_result(loggers, make_result())
    text = (tmp_path / "csv" / "metrics.csv").read_text()
    assert "train/loss" in text and "latency_sparse_ms" in text and "3.5" in text


def test_tensorboard_keeps_curves_and_the_result(tmp_path, make_result):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    loggers = TensorBoardLogging().build(
        LoggedRun(run_name="a", output_dir=tmp_path, group=None, config={}, tags=["a"])
    )
    loggers[0].log_metrics({"dense/train/loss": 1.0}, step=3)
    log_result(loggers, make_result())
    events = reader.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(one.step, one.value) for one in events.Scalars("dense/train/loss")] == [(3, 1.0)]
    assert [one.value for one in events.Scalars("latency_sparse_ms")] == [3.5]


@pytest.mark.parametrize("mode", ["auto", "online"])
def test_silent_wandb_keeps_the_run(no_account, monkeypatch, tmp_path, caplog, mode):
    import wandb

    started = []

    def reject_online(*, mode: str, **rest: object) -> object:
        started.append(mode)
        if mode == "online":
            raise wandb.errors.CommError("timed out\nat length")
        return types.SimpleNamespace(define_metric=lambda *_, **__: None)

    monkeypatch.setenv("WANDB_API_KEY", "key")
    monkeypatch.setattr(wandb, "init", reject_online)
    arguments = {"run_name": "a", "output_dir": tmp_path, "group": None, "config": {}}
    if mode == "online":
        with pytest.raises(InvalidSetting, match="mode=online: W&B did not take the run .timed out."):
            WandbLogging(mode=mode).build(LoggedRun(**arguments))
    else:
        WandbLogging(mode=mode).build(LoggedRun(**arguments))
        assert started == ["online", "offline"] and "kept offline" in caplog.text


def test_result_of_wandb_comes_back(no_account, monkeypatch, make_result):
    import wandb
    from pytorch_lightning.loggers import WandbLogger

    logged, finished = {}, []
    run = types.SimpleNamespace(
        id="a", state="finished", summary={}, log=logged.update, finish=lambda exit_code: finished.append(exit_code)
    )
    log_result([WandbLogger(experiment=run)], make_result())
    assert logged["summary_table"].columns[0] == "run_id" and finished == [0]
    assert run.summary["cpu_latency/sparse_ms"] == 3.5 and "latency/sparse_ms" not in run.summary
    edited = make_result(sparse=0.99, record_sha256="0" * 64).to_json()
    others = [
        types.SimpleNamespace(id="b", state="running", summary={}),
        types.SimpleNamespace(id="c", state="finished", summary={"result": "{}"}),
        types.SimpleNamespace(id="d", state="finished", summary={"row": edited}),
    ]
    asked = []
    api = types.SimpleNamespace(runs=lambda path: asked.append(path) or [run, *others])
    monkeypatch.setenv("WANDB_API_KEY", "key")
    monkeypatch.setattr(wandb, "Api", lambda timeout: api)
    reading = read_wandb_results(entity="e", project="p")
    assert asked == ["e/p"] and reading.results == [make_result()]
    assert [problem.split()[2].strip(":") for problem in reading.problems] == ["b", "c", "d"]
    assert "was edited after it was stored" in reading.problems[-1]


SMALL = ["debug=tiny", "trainer=cpu", "measure.device=cpu", "model.dim=64", "model.depth=1", "pattern=n_m", *QUICK]


class Run:
    """A run as W&B keeps it: what it was given in all sessions."""

    def __init__(self, run_id: str) -> None:
        self.id, self.summary, self.logged, self.sessions, self.exit_codes = run_id, {}, [], [], []
        self.config = types.SimpleNamespace(update=lambda *_, **__: None)

    def log(self, values: dict) -> None:
        self.logged.append(values)

    def define_metric(self, *_: object, **__: object) -> None: ...

    def finish(self, exit_code: int) -> None:
        self.exit_codes.append(exit_code)

    def tables(self) -> list[dict]:
        return [values for values in self.logged if "summary_table" in values]


@pytest.fixture
def server(monkeypatch) -> dict[str, Run]:
    """W&B's runs by id; a run whose id it has is gone on with where that is asked for."""
    import wandb

    runs: dict[str, Run] = {}

    def init(*, id: str | None = None, resume: str | None = None, **session: object) -> Run:
        assert (id is None) == (resume is None)
        if id is None:
            id = f"new {len(runs)}"
        run = runs.setdefault(id, Run(id))
        run.sessions.append(session | {"resume": resume})
        return run

    monkeypatch.setattr(wandb, "init", init)
    return runs


def logging_to(composed, monkeypatch, logger):
    """Configurations of one point whose runs log there."""
    from sparsefront.config import validate

    build = validate._build
    monkeypatch.setattr(validate, "_build", lambda group, *rest: logger if group == "logger" else build(group, *rest))
    return lambda *overrides: composed(*SMALL, *overrides)


def test_shown_point_is_the_same_run(composed, monkeypatch, server):
    point = logging_to(composed, monkeypatch, WandbLogging(mode="offline"))
    run_experiment(point())
    (run,) = server.values()
    trained = len(run.logged)
    result = Result.from_json(run.summary[RESULT_KEY])
    assert run.id == result.identity.run_id and len(run.tables()) == 1
    for shown in (2, 3):
        run_experiment(point())
        assert list(server) == [run.id] and len(run.sessions) == shown
        assert len(run.logged) == trained and Result.from_json(run.summary[RESULT_KEY]) == result
    assert [session["resume"] for session in run.sessions] == ["allow"] * 3
    assert {session["job_type"] for session in run.sessions} == {"run"}
    assert all(session["tags"] == ["vit_small", "digits", "n_m", "finetune", "debug"] for session in run.sessions)
    session = run.sessions[0]
    choices = {"model": "vit_small", "dataset": "digits", "pattern": "n_m", "recovery": "finetune", "seed": 0}
    assert (choices | {"granularity": None}).items() <= session["config"].items() and "sparsity" in session["config"]
    assert session["name"] == f"{session['group']}-seed0" and session["group"].startswith("vit_small-digits-n_m")
    curves = {name for values in run.logged for name in values if not name.startswith("summary_table")}
    assert {"dense/val/accuracy", "dense/step", "recover/val/accuracy", "recover/step"} <= curves
    assert {name.partition("/")[0] for name in curves} == {"dense", "recover"}
    assert run.exit_codes == [0, 0, 0]


def test_a_repeated_point_replaces_its_result(composed, monkeypatch, server):
    point = logging_to(composed, monkeypatch, WandbLogging(mode="offline"))
    run_experiment(point())
    (run,) = server.values()
    first = run.summary[RESULT_KEY]
    run_experiment(point("reuse=false", "stages=[swap,measure,report]"))
    assert list(server) == [run.id] and run.summary[RESULT_KEY] != first


def test_failed_run_is_closed(composed, monkeypatch, server):
    point = logging_to(composed, monkeypatch, WandbLogging(mode="offline"))
    monkeypatch.setattr("sparsefront.stages.dense.run", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_experiment(point())
    assert [run.exit_codes for run in server.values()] == [[1]]


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


def test_comparison_is_no_run(monkeypatch, results):
    import wandb

    monkeypatch.setenv("WANDB_API_KEY", "key")
    runs = [
        types.SimpleNamespace(id="c", state="finished", summary={}, job_type="compare"),
        types.SimpleNamespace(id="a", state="finished", summary={"row": results[0].to_json()}, job_type=None),
    ]
    monkeypatch.setattr(wandb, "Api", lambda timeout: types.SimpleNamespace(runs=lambda path: runs))
    reading = read_wandb_results(entity=None, project="mine")
    assert len(reading.results) == 1 and not reading.problems


def test_panels_are_written_and_read_back(monkeypatch, make_result):
    """By the package that writes them, over a server that keeps the view."""
    workspaces = pytest.importorskip("wandb_workspaces.workspaces")
    import wandb

    views = {}

    class Service:
        app_url = "https://wandb.test"

        def execute_graphql(self, query: str, variables: dict) -> dict:
            if "upsertView" in query:
                views[variables["name"]] = {**variables, "id": "1"}
                return {"upsertView": {"view": {"id": "1", "name": variables["name"]}}}
            node = views[variables["viewName"]]
            return {"project": {"allViews": {"edges": [{"node": node}]}}}

    class Api:
        default_entity = "me"

        def __init__(self, timeout: int | None = None) -> None:
            self._service_api = Service()

    monkeypatch.setattr(wandb, "Api", Api)
    monkeypatch.setenv("WANDB_API_KEY", "k")
    results = [make_result(), make_result(metric_name="f1", latency_device="cuda")]
    url = write_panels(results, entity=None, project="p")
    assert url.startswith("https://wandb.test/me/p?nw=") and len(views) == 1
    spec = json.loads(next(iter(views.values()))["spec"])
    text = json.dumps(spec["section"]["panelBankConfig"])
    for name in ("latency/speedup", "accuracy/points_lost", "f1/sparse", "accuracy/held_out_sparse", "pareto"):
        assert name in text and "cpu_latency" not in text
    sections = workspaces.Workspace.from_url(url).sections
    assert [section.name for section in sections] == ["accuracy and latency", "f1 and latency"]
    kinds = ["ScatterPlot", "BarPlot", "BarPlot", "ParallelCoordinatesPlot", "MediaBrowser"]
    assert all([type(panel).__name__ for panel in section.panels] == kinds for section in sections)


@pytest.mark.parametrize(
    ("project", "missing", "message"),
    [
        (None, None, "project=None: panels=wandb needs project=NAME"),
        ("p", "wandb_workspaces", "panels=wandb: the package wandb-workspaces is not installed"),
        ("p", None, "panels=wandb: there is no API key"),
    ],
)
def test_panels_that_cannot_be_written(no_account, monkeypatch, make_result, project, missing, message):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == missing else name)
    with pytest.raises(InvalidSetting, match=f"^{message}"):
        write_panels([make_result()], entity=None, project=project)


def test_latencies_are_named_by_device(make_result):
    names = {device: {*summary_of(make_result(latency_device=device))} for device in ("cpu", "cuda")}
    assert {"latency/speedup", "accuracy/sparse"} <= names["cuda"] and "latency/speedup" not in names["cpu"]
    page = (Path(__file__).parents[2] / "docs" / "compare.md").read_text().partition("## Comparing in W&B")[2]
    known = {*summary_of(make_result(latency_device="cuda", val_sparse=0.9))}
    panels = set(re.findall(r"`((?:accuracy|latency)/\w+)`", page))
    assert panels and panels <= known, "names on the page are those of the summary"
