"""Ctrl-C and SIGTERM end a training as they end any other work, and what trained goes on after its last epoch."""

import os
import signal
from pathlib import Path

import pytest
import pytorch_lightning as pl
from torch import nn

from sparsefront.data.digits import Digits
from sparsefront.errors import Terminated
from sparsefront.tasks.classification import ImageClassification
from sparsefront.training.fit import fit, steps_per_epoch
from sparsefront.training.recipe import Optimization, Recipe
from sparsefront.training.trainer import TrainerSettings

EPOCHS = 2


class Signal(pl.Callback):
    """Sends this process a signal in the last epoch, and counts the epochs that begin."""

    def __init__(self, number: signal.Signals | None = None) -> None:
        self.number, self.epochs = number, 0

    def on_train_epoch_start(self, trainer, module):
        self.epochs += 1
        if self.number is not None and trainer.current_epoch == EPOCHS - 1:
            os.kill(os.getpid(), self.number)


def train(net: nn.Module, folder: Path, watch: Signal) -> None:
    settings = TrainerSettings(accelerator="cpu", progress_bar=False, limit_batches=2, checkpoint_seconds=0)
    data = Digits().data_module(batch_size=200, seed=0, cache_dir=folder)
    recipe = Recipe(epochs=EPOCHS)
    curve = Optimization(recipe, lr=0.01, total_steps=EPOCHS * steps_per_epoch(data, settings))
    task = ImageClassification(net, num_classes=10, optimization=curve)
    fit(
        task, data, epochs=EPOCHS, recipe=recipe, trainer=settings, loggers=[], directory=folder,
        callbacks=(watch,), resume_dir=folder,
    )  # fmt: skip


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX systems")
@pytest.mark.parametrize(("number", "end"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_a_signal_ends_a_training_as_what_it_is(tmp_path, bodies, number, end):
    before = signal.getsignal(number)
    with pytest.raises(end):
        train(bodies.digits_net(), tmp_path, Signal(number))
    assert signal.getsignal(number) is before
    train(bodies.digits_net(), tmp_path, again := Signal())
    assert again.epochs == 1, "it goes on after its last finished epoch"


def test_the_status_of_a_program_that_sigterm_ended():
    """0 would say that all is done: a script would go on with the next command."""
    assert Terminated().code == 143 and str(Terminated()) == "ended by SIGTERM"
