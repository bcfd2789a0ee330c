"""Loggers: W&B offline without an account and without a prompt, its result readable again, CSV, none."""

import os
import types

import pytest

from sparsefront.errors import InvalidSetting
from sparsefront.results.loggers import (
    CsvLogging,
    LoggedRun,
    TensorBoardLogging,
    WandbLogging,
    has_api_key,
    log_result,
    read_wandb_results,
)
from sparsefront.results.store import write_result_json

OFFLINE_RUN = """
import sys
from pathlib import Path
from sparsefront.results.loggers import LoggedRun, WandbLogging, log_result
from sparsefront.results.record import Result
folder = Path(sys.argv[1])
for number in range(2):
    output_dir, config = folder / str(number), {"a": {"b": [1, None]}}
    loggers = WandbLogging().build(LoggedRun(run_name="test", output_dir=output_dir, group="sweep", config=config))
    loggers[0].log_metrics({"train/loss": 1.0}, step=0)
    log_result(loggers, Result.from_json((folder / "row.json").read_text()))
"""


@pytest.fixture
def no_account(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))


def test_wandb_offline_needs_no_account_and_asks_nothing(no_account, tmp_path, make_result, programs):
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


def test_the_account_is_found_without_wandb(no_account, tmp_path, monkeypatch):
    assert not has_api_key()
    (tmp_path / "netrc").write_text("machine example.org login a password b\ndefault login a password b\n")
    assert not has_api_key(), "another machine's password and the default are not W&B's"
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password key\n")
    assert has_api_key()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert not has_api_key()
    monkeypatch.setenv("WANDB_API_KEY", "key")
    assert has_api_key()


def test_settings_that_cannot_work_are_rejected(no_account, monkeypatch):
    with pytest.raises(InvalidSetting, match="mode=on: must be one of auto, online"):
        WandbLogging(mode="on")
    with pytest.raises(InvalidSetting, match="WANDB_API_KEY"):
        WandbLogging(mode="online").check()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidSetting, match="mode=auto: the package wandb is not installed"):
        WandbLogging().check()


def test_csv_logger_keeps_curves_and_the_result(tmp_path, make_result):
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
def test_wandb_that_does_not_answer_keeps_the_run_offline_unless_online_was_asked(
    no_account, monkeypatch, tmp_path, caplog, mode
):
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


@pytest.mark.parametrize("error", ["CommError", "ConnectionError", "ValueError"])
def test_reading_from_wandb_that_fails_is_one_message(no_account, monkeypatch, error):
    import requests
    import wandb

    errors = {
        "CommError": wandb.errors.CommError,
        "ConnectionError": requests.ConnectionError,
        "ValueError": ValueError,
    }

    def reject(timeout: int) -> None:
        raise errors[error]("no route\nto host")

    monkeypatch.setenv("WANDB_API_KEY", "key")
    monkeypatch.setattr(wandb, "Api", reject)
    with pytest.raises(InvalidSetting, match="^source=wandb: e/p cannot be read: no route$"):
        read_wandb_results(entity="e", project="p")


def test_the_result_that_wandb_was_given_comes_back(no_account, monkeypatch, make_result):
    import wandb
    from pytorch_lightning.loggers import WandbLogger

    logged, finished = {}, []
    run = types.SimpleNamespace(
        id="a", state="finished", summary={}, log=logged.update, finish=lambda exit_code: finished.append(exit_code)
    )
    log_result([WandbLogger(experiment=run)], make_result())
    assert logged["summary_table"].columns[0] == "run_id" and finished == [0]
    assert run.summary["latency_sparse_ms"] == 3.5
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
