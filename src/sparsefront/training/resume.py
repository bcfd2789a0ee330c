"""A killed training goes on from its last finished epoch, to the same bits as one that was never killed."""

import logging
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from sparsefront import distributed
from sparsefront.artifacts.disk_space import noting_free_space
from sparsefront.artifacts.durable import rename_synced, sync_file
from sparsefront.artifacts.lease import require_all
from sparsefront.artifacts.owner import process_tag
from sparsefront.time_use import working_time

log = logging.getLogger(__name__)
CHECKPOINT = "epoch.ckpt"


def checkpoint_of(folder: Path | None) -> Path | None:
    """The checkpoint that a killed training left in its folder, or None: there is none, or it is damaged."""
    if folder is None or not (folder / CHECKPOINT).exists():
        return None
    checkpoint = folder / CHECKPOINT
    if (damage := _damage(checkpoint)) is not None:
        if distributed.rank() == 0:
            log.warning("damaged, so the training starts at its beginning: %s: %s", checkpoint, damage)
        return None
    return checkpoint


def _damage(checkpoint: Path) -> str | None:
    """What torch saves is a zip archive, with a checksum of each of its files."""
    try:
        with zipfile.ZipFile(checkpoint) as archive:
            broken = archive.testzip()
    except (OSError, zipfile.BadZipFile) as error:
        return str(error)
    return None if broken is None else f"{broken} does not hold what was written"


class KeepEpochs(pl.Callback):
    """Writes a checkpoint at the end of every epoch but the last, and puts back what Lightning's does not hold.

    Lightning's checkpoint has the weights, the optimizer, the learning rate, the AMP scaler, its own counters, and the
    `state_dict` of every callback and of the data module; this callback adds the generators of random numbers, each
    rank's own, and the time that was spent. It is the last of the callbacks, so that it sees what the others made of the
    epoch. After the last epoch nothing is written: what follows it, at the end of the training, is not in a checkpoint.

    Args:
        folder: survives a kill; None only counts the time.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.earlier_seconds = 0.0  # of a killed training that this one goes on from
        self._start = working_time()
        self._resumed: dict[str, Any] | None = None

    @property
    def seconds(self) -> float:
        """Seconds of the training, those before a kill included, those in which it gave way to a timing not."""
        return self.earlier_seconds + working_time() - self._start

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self._resumed is not None:
            # Only now: until here a resumed run draws numbers that the uninterrupted one did not.
            set_random_state(self._resumed["random"][distributed.rank()])
            log.info("going on after epoch %d of %d of an earlier run", trainer.current_epoch, trainer.max_epochs)
            self._resumed = None

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self.folder is None or trainer.current_epoch + 1 == trainer.max_epochs:
            return
        if distributed.rank() == 0:
            require_all()
        new = self.folder / f"{CHECKPOINT}.new-{process_tag()}"
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with noting_free_space(self.folder):
                trainer.save_checkpoint(new)  # every rank takes part, rank 0 writes
                if distributed.rank() == 0:
                    sync_file(new)
                    rename_synced(new, self.folder / CHECKPOINT)  # whole or not at all
        except BaseException:
            new.unlink(missing_ok=True)  # half of it: the disk is full
            raise

    def state_dict(self) -> dict[str, Any]:
        return {"random": distributed.all_gather(random_state()), "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._resumed = state_dict
        self.earlier_seconds = state_dict["seconds"]


def random_state() -> dict[str, Any]:
    """The generators of Python, NumPy, torch and this rank's GPU, in types that `torch.load` takes without trust."""
    version, words, gauss = random.getstate()
    name, keys, *rest = np.random.get_state()
    state: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "numpy": [name, keys.tolist(), *rest],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Undo everything that was drawn since `random_state`."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.asarray(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(_on_cpu(state["torch"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(_on_cpu(state["cuda"]))


def _on_cpu(state: Tensor) -> Tensor:
    """A loaded checkpoint may have been put on the GPU as a whole."""
    return state.cpu()
