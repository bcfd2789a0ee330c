"""Bars: one switch for all, none without a terminal, totals that are reached."""

import logging
from types import SimpleNamespace

import pytest
import torch

from sparsefront import progress
from sparsefront.training.lightning_parts import EpochLines

SMALL = ["trainer=cpu", "measure.device=cpu", "model.dim=64", "model.depth=1", "measure.evaluate_limit=8", "logger=csv"]


@pytest.fixture(autouse=True)
def shown():
    with progress.showing(True):
        yield


@pytest.fixture
def terminal(monkeypatch):
    watched = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stdout=watched, stderr=watched, modules={}))


def test_terminal_counts_epochs_from_one(run, capfd, terminal):
    run(*SMALL, "recipe.epochs=2", "recipe.recovery_epochs=3")
    shown = capfd.readouterr()
    for epoch in ("epoch 1 of 2", "epoch 2 of 2", "epoch 3 of 3", "validation", "evaluate dense", "swap"):
        assert f"{epoch}:" in shown.err
    assert "Epoch" not in shown.err and "epoch 0" not in shown.err and "epoch 3 of 2" not in shown.err
    assert "v_num" not in shown.err
    assert "/?" not in shown.err, "every bar knows its end"
    assert "evaluate dense:   0%" in shown.err and "| 0/4 [" in shown.err, "8 samples in batches of 2"
    assert "%|" not in shown.out


def test_training_without_bar_logs_lines(caplog, monkeypatch):
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
