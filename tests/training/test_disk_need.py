"""A training that its disk cannot hold is rejected before its first step."""

from pathlib import Path

import pytest
from torch import nn

from sparsefront.errors import InvalidSetting
from sparsefront.training import trainer
from sparsefront.training.recipe import Recipe
from sparsefront.training.trainer import require_room

WEIGHTS = 4 * (10 * 20 + 20)  # bytes of the network below


def needed(monkeypatch, *, epochs: int, keeps_epochs: bool = True, epoch_weights: bool = False, **recipe) -> int:
    asked = []
    monkeypatch.setattr(trainer, "require_space", lambda folder, size, **_: asked.append(size))
    kept = {"keeps_epochs": keeps_epochs, "epoch_weights": epoch_weights}
    require_room(nn.Linear(10, 20), Path("stage"), epochs=epochs, recipe=Recipe(**recipe), **kept)
    return asked[0] // WEIGHTS


def test_bytes_of_a_training(monkeypatch):
    assert needed(monkeypatch, epochs=1) == 1
    assert needed(monkeypatch, epochs=3, keeps_epochs=False) == 1
    assert needed(monkeypatch, epochs=3) == 1 + 2 * 3, "Adam keeps two numbers for each weight"
    assert needed(monkeypatch, epochs=3, optimizer="sgd") == 1 + 2 * 2
    assert needed(monkeypatch, epochs=3, optimizer="sgd", momentum=0.0) == 1 + 2 * 1
    assert needed(monkeypatch, epochs=3, ema=0.9) == 1 + 2 * 4
    assert needed(monkeypatch, epochs=3, epoch_weights=True) == 1 + 3 + 2 * 3


def test_full_disk_precedes_the_first_step(run, monkeypatch):
    from sparsefront.artifacts import durable

    monkeypatch.setattr(durable, "free_bytes", lambda folder: 1000)
    monkeypatch.setattr("pytorch_lightning.Trainer.fit", lambda *_, **__: pytest.fail("it trains"))
    small = ["trainer=cpu", "measure.device=cpu", "model.dim=64", "model.depth=1", "recipe.epochs=2"]
    with pytest.raises(InvalidSetting, match=r"^cache_dir=.*dense: 1 kB free .*set trainer.checkpoint=false"):
        run(*small)
