"""Ctrl-C and SIGTERM end a training as they end any other work, and what trained goes on after its last epoch."""

import os
import signal
from pathlib import Path

import pytest
import pytorch_lightning as pl
from digit_training import train_digits
from torch import nn

from sparsefront.errors import Terminated
from sparsefront.training.recipe import Recipe

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
    trainer = {"limit_batches": 2, "checkpoint_seconds": 0}
    options = {"callbacks": (watch,), "resume_dir": folder}
    train_digits(net, folder, Recipe(epochs=EPOCHS), batch_size=200, trainer=trainer, **options)


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX systems")
@pytest.mark.parametrize(("number", "end"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_signal_ends_a_training(tmp_path, bodies, number, end):
    before = signal.getsignal(number)
    with pytest.raises(end):
        train(bodies.digits_net(), tmp_path, Signal(number))
    assert signal.getsignal(number) is before
    train(bodies.digits_net(), tmp_path, again := Signal())
    assert again.epochs == 1, "it goes on after its last finished epoch"


def test_status_after_sigterm():
    """0 would say that all is done: a script would go on with the next command."""
    assert Terminated().code == 143 and str(Terminated()) == "ended by SIGTERM"
