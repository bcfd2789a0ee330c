"""Epochs, rounds and stages take the training samples in orders, and with augmentations, of their own."""

import pytest
import pytorch_lightning as pl
import torch

from sparsefront.pipeline import run_experiment
from sparsefront.training.trainer import TrainerSettings

ON_CPU = ["trainer=cpu", "measure.device=cpu", "pattern=element_wise", "model.dim=64", "model.depth=1"]
TRAIN = ["debug=tiny", "stages=[dense,prune,recover]", "dataset.shift=1", "trainer.limit_batches=3", *ON_CPU]


class Batches(pl.Callback):
    """The images of every batch of one fit, by epoch."""

    def __init__(self) -> None:
        self.epochs: list[list[torch.Tensor]] = []

    def on_train_epoch_start(self, trainer, module):
        self.epochs.append([])

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.epochs[-1].append(batch["x"].clone())


@pytest.fixture
def fits(monkeypatch) -> list[Batches]:
    """One entry per fit, the dense run's first."""
    seen: list[Batches] = []
    build = TrainerSettings.build

    def watched(self, *, callbacks: list, **options):
        seen.append(Batches())
        return build(self, callbacks=[*callbacks, seen[-1]], **options)

    monkeypatch.setattr(TrainerSettings, "build", watched)
    return seen


def test_no_two_epochs_of_any_stage_or_round_are_alike(composed, fits):
    run_experiment(
        composed(*TRAIN, "recipe.epochs=2", "recipe.recovery_epochs=6", "schedule=iterative", "schedule.rounds=3")
    )
    assert [len(fit.epochs) for fit in fits] == [2, 2, 2, 2]
    first_batches = [epoch[0] for fit in fits for epoch in fit.epochs]
    for index, batch in enumerate(first_batches):
        assert not any(torch.equal(batch, other) for other in first_batches[:index])


def test_a_round_that_is_repeated_sees_the_same_batches(composed, fits):
    settings = [*TRAIN, "schedule=iterative", "schedule.rounds=2"]
    for _ in range(2):
        run_experiment(composed(*settings, "reuse=false"))
    once, again = fits[:3], fits[3:]
    for fit, same in zip(once, again, strict=True):
        for epoch, epoch_again in zip(fit.epochs, same.epochs, strict=True):
            assert all(map(torch.equal, epoch, epoch_again))


def test_another_seed_of_the_recovery_changes_its_order_alone(composed, fits):
    for seed in (0, 1):
        run_experiment(composed(*TRAIN, f"recovery.seed={seed}"))
    assert len(fits) == 3, "the dense network was trained once"
    assert not torch.equal(fits[1].epochs[0][0], fits[2].epochs[0][0])
