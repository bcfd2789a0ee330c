"""Weights on disk: plain ones, and those that a training had on its way, for a later return to them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytorch_lightning as pl
from torch import nn

from sparsefront.artifacts.durable import PARTIAL, link_or_copy, save_tensors, whole_file

EPOCH_WEIGHTS = "epoch_weights"


def epoch_weights_file(folder: Path, epoch: int) -> Path:
    """Where the weights at the start of an epoch, counted from 0, lie in the folder of a training."""
    return folder / EPOCH_WEIGHTS / f"epoch_{epoch:04d}.safetensors"


class SaveEpochWeights(pl.Callback):
    """Lightning callback that stores the network's state dict at the start of every epoch, before its first step.

    Args:
        folder: of the training; complete when it ends.
        unfinished: another folder, where the files lie until then, so that they outlive a killed run.
        save: (network, file) writes the plain state dict.
    """

    def __init__(self, folder: Path, unfinished: Path, save: Callable[[nn.Module, Path], None]) -> None:
        self.folder, self.unfinished, self.save = folder, unfinished, save

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            file = epoch_weights_file(self.unfinished, trainer.current_epoch)
            file.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(file) as new:
                self.save(module.net, new)

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            half_written = shutil.ignore_patterns(f"{PARTIAL}*")  # by a killed run
            shutil.copytree(
                self.unfinished / EPOCH_WEIGHTS,
                self.folder / EPOCH_WEIGHTS,
                ignore=half_written,
                copy_function=link_or_copy,
            )


WEIGHTS = "weights.safetensors"


def save_weights(net: nn.Module, file: Path) -> None:
    """The plain state dict, fp32, on the CPU; with the metadata of an export's, which may be a second name of the file."""
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in net.state_dict().items()}
    save_tensors(file, state, {"format": "pt"})
