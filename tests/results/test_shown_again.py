"""A finished point that is shown again reaches W&B too, as the same run and without saying anything twice."""

import types

import pytest
from quick_settings import QUICK

from sparsefront.pipeline import run_experiment
from sparsefront.results.loggers import RESULT_KEY, WandbLogging
from sparsefront.results.record import Result

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


def test_a_point_shown_again_is_the_same_run_and_in_it_once(composed, monkeypatch, server):
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
    assert all(session["tags"] == ["vit_small", "digits", "n_m", "finetune"] for session in run.sessions)
    curves = {name for values in run.logged for name in values if not name.startswith("summary_table")}
    assert {"dense/val/accuracy", "dense/step", "recover/val/accuracy", "recover/step"} <= curves
    assert {name.partition("/")[0] for name in curves} == {"dense", "recover"}
    assert run.exit_codes == [0, 0, 0]


def test_another_point_is_another_run(composed, monkeypatch, server):
    point = logging_to(composed, monkeypatch, WandbLogging(mode="offline"))
    run_experiment(point())
    run_experiment(point("sparsity=0.5"))
    assert len(server) == 2


def test_a_repeated_point_replaces_its_result(composed, monkeypatch, server):
    point = logging_to(composed, monkeypatch, WandbLogging(mode="offline"))
    run_experiment(point())
    (run,) = server.values()
    first = run.summary[RESULT_KEY]
    run_experiment(point("reuse=false", "stages=[swap,measure,report]"))
    assert list(server) == [run.id] and run.summary[RESULT_KEY] != first


def test_a_run_that_fails_is_closed_as_failed(composed, monkeypatch, server):
    point = logging_to(composed, monkeypatch, WandbLogging(mode="offline"))
    monkeypatch.setattr("sparsefront.stages.dense.run", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_experiment(point())
    assert [run.exit_codes for run in server.values()] == [[1]]
