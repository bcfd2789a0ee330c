"""Bars: one switch for all, none without a terminal, totals that are reached."""

import logging
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader

from sparsefront import progress
from sparsefront.measure.accuracy import evaluate
from sparsefront.training.lightning_parts import EpochBar, EpochLines

SMALL = ["trainer=cpu", "measure.device=cpu", "model.dim=64", "model.depth=1", "measure.evaluate_limit=8", "logger=csv"]


@pytest.fixture(autouse=True)
def shown():
    with progress.showing(True):
        yield


@pytest.fixture
def terminal(monkeypatch):
    watched = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stdout=watched, stderr=watched, modules={}))


@pytest.mark.parametrize(
    ("stderr", "modules", "wanted"), [(True, {}, True), (False, {}, False), (False, {"ipykernel": 1}, True)]
)
def test_where_nothing_is_said_bars_are_for_terminals_and_notebooks(monkeypatch, stderr, modules, wanted):
    fake = SimpleNamespace(stderr=SimpleNamespace(isatty=lambda: stderr), modules=modules)
    monkeypatch.setattr(progress, "sys", fake)
    with progress.showing(None):
        assert progress.shown() is wanted


@pytest.fixture
def library():
    """Stands for one of Hugging Face's libraries."""
    state = SimpleNamespace(disabled=False)
    state.are_progress_bars_disabled = lambda: state.disabled
    state.disable_progress_bars = lambda: setattr(state, "disabled", True)
    state.enable_progress_bars = lambda: setattr(state, "disabled", False)
    return state


def test_a_run_on_a_terminal_counts_epochs_from_one_to_the_last(run, capfd, terminal):
    run(*SMALL, "recipe.epochs=2", "recipe.recovery_epochs=3")
    shown = capfd.readouterr()
    for epoch in ("epoch 1 of 2", "epoch 2 of 2", "epoch 3 of 3", "validation", "evaluate dense", "swap"):
        assert f"{epoch}:" in shown.err
    assert "Epoch" not in shown.err and "epoch 0" not in shown.err and "epoch 3 of 2" not in shown.err
    assert "v_num" not in shown.err
    assert "/?" not in shown.err, "every bar knows its end"
    assert "evaluate dense:   0%" in shown.err and "| 0/4 [" in shown.err, "8 samples in batches of 2"
    assert "%|" not in shown.out


@pytest.mark.parametrize("overrides", [["trainer.progress_bar=false"], []], ids=["silenced", "no terminal"])
def test_a_run_without_bars(run, capfd, overrides, request, tmp_path):
    if overrides:
        request.getfixturevalue("terminal")
    run(*SMALL, *overrides)
    shown = capfd.readouterr()
    assert "%|" not in shown.err + shown.out and "\r" not in shown.err + shown.out
    assert not [file for file in tmp_path.rglob("*.log") if "%|" in file.read_text()]


def test_tokenization_is_silenced_too(capsys, tmp_path):
    from sparsefront.data.text import tokenized
    from sparsefront.models.bert import train_wordpiece

    def tokenize() -> str:
        tokenizer = train_wordpiece(["good bad film"] * 4, vocabulary_size=40, max_length=16)
        tokenized(["good film"] * 4, None, tokenizer=tokenizer, max_length=16, columns={}, description="tokenizing")
        return capsys.readouterr().err

    assert "tokenizing" in tokenize()
    with progress.showing(False):
        assert tokenize() == ""


def test_bars_of_libraries_follow_ours(library):
    with progress.showing(False):
        with progress.sync_progress_bars(library):
            assert library.disabled
        assert not library.disabled, "as it was"
    with progress.sync_progress_bars(library):
        assert not library.disabled
    library.disabled = True
    with progress.sync_progress_bars(library):
        assert library.disabled, "what a user has silenced stays silent"


@pytest.mark.parametrize("wanted", [True, False])
def test_the_switch_holds_for_one_run(terminal, wanted):
    with progress.bars_on_terminals(wanted):
        assert progress.shown() is wanted
    assert progress.shown(), "elsewhere nothing has changed"


def test_without_a_terminal_a_run_shows_none(monkeypatch):
    terminal, file = (SimpleNamespace(isatty=lambda answer=answer: answer) for answer in (True, False))
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stdout=file, stderr=terminal))
    with progress.bars_on_terminals(True):
        assert not progress.shown()


@pytest.mark.parametrize(("limit", "batches"), [(None, 5), (1, 1), (8, 2), (9, 3), (100, 5)])
def test_an_evaluation_knows_its_end(capsys, limit, batches):
    net = torch.nn.Linear(3, 2)
    net.forward = lambda x: torch.zeros(len(x), 2)
    samples = [{"x": torch.zeros(3)} for _ in range(20)]
    data = SimpleNamespace(
        prepare_data=lambda: None, setup=lambda stage: None, test_dataloader=lambda: DataLoader(samples, batch_size=4)
    )
    evaluator = SimpleNamespace(
        update=lambda output, batch: None, compute=dict, standard_errors=dict, samples=20, outcomes=str
    )
    task = SimpleNamespace(
        metric_name="accuracy",
        net_inputs=lambda batch: batch,
        predict=lambda net, inputs: net(**inputs),
        evaluator=lambda data, split: evaluator,
    )
    evaluate(
        task, net, data, "test", device=torch.device("cpu"), dtype=torch.float32, limit=limit, description="evaluate"
    )
    shown = capsys.readouterr().err
    assert f"| 0/{batches} [" in shown


def test_no_version_number_of_a_logger():
    metrics = {"progress_bar_metrics": {"val/loss": 1.0}, "callback_metrics": {"train/loss": torch.tensor(0.5)}}
    trainer = SimpleNamespace(loggers=[SimpleNamespace(version=3)], **metrics)
    assert EpochBar().get_metrics(trainer, None) == {"train/loss": 0.5, "val/loss": 1.0}


def test_a_long_training_without_a_bar_tells_now_and_then(caplog, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("sparsefront.training.lightning_parts.time.monotonic", lambda: clock[0])
    lines = EpochLines()
    with caplog.at_level(logging.INFO):
        for epoch in range(6):
            clock[0] += 25
            metrics = {"val/accuracy": torch.tensor(0.5), "train/loss": torch.tensor(1.25)}
            trainer = SimpleNamespace(is_global_zero=True, current_epoch=epoch, max_epochs=6, callback_metrics=metrics)
            lines.on_train_epoch_end(trainer, None)
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"epoch {epoch} of 6: train/loss 1.25, val/accuracy 0.5" for epoch in (3, 6)]
