"""Resume a killed training from its last saved epoch, bitwise identical to an uninterrupted one."""

import logging
import math
import random
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator, Sized
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning import LightningDataModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler

from sparsefront import distributed
from sparsefront.artifacts.content_digest import digest, versions
from sparsefront.artifacts.durable import (
    PARTIAL,
    link_or_copy,
    naming_full_disk,
    rename_synced,
    save_tensors,
    sync_file,
    whole_file,
)
from sparsefront.artifacts.lease import process_tag, require_all
from sparsefront.data.split_data import ImagePart, StoredRows, as_fetched
from sparsefront.errors import first_line
from sparsefront.networks import same_shapes
from sparsefront.progress import working_time
from sparsefront.tasks.base import without_full_mask
from sparsefront.tasks.plain_task import similar_loader

EPOCH_WEIGHTS = "epoch_weights"


def epoch_weights_file(folder: Path, epoch: int) -> Path:
    """File of the weights at the start of an epoch (from 0), in the folder of a training."""
    return folder / EPOCH_WEIGHTS / f"epoch_{epoch:04d}.safetensors"


class SaveEpochWeights(pl.Callback):
    """Lightning callback that stores the network's state dict at the start of every epoch.

    Args:
        folder: of the training; complete when it ends.
        resume_dir: holds the files until then, so that they survive a killed run.
        save: (network, file) writes the plain state dict.
    """

    def __init__(self, folder: Path, resume_dir: Path, save: Callable[[nn.Module, Path], None]) -> None:
        self.folder, self.resume_dir, self.save = folder, resume_dir, save

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            file = epoch_weights_file(self.resume_dir, trainer.current_epoch)
            file.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(file) as new:
                self.save(module.net, new)

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            half_written = shutil.ignore_patterns(f"{PARTIAL}*")  # from a killed run
            shutil.copytree(
                self.resume_dir / EPOCH_WEIGHTS,
                self.folder / EPOCH_WEIGHTS,
                ignore=half_written,
                copy_function=link_or_copy,
            )


WEIGHTS = "weights.safetensors"


def save_weights(net: nn.Module, file: Path) -> None:
    """Write the plain state dict, fp32, on the CPU, with an export's metadata, because the export may be a link to the file."""
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in net.state_dict().items()}
    save_tensors(file, state, {"format": "pt"})


class RankBatches(Sampler[list[int]]):
    """Every W-th batch of an epoch, so that W ranks together take the batches of a single process.

    Lightning's sampler distributes samples instead, which makes different batches, some with a single leftover sample. If W
    does not divide the number of batches, the first ones are repeated, so that no rank waits for a missing batch.

    Args:
        batches: of the whole epoch, in the same order on every rank.
        rank, world_size: of this process.
    """

    def __init__(self, batches: Sampler[list[int]], rank: int, world_size: int) -> None:
        if not isinstance(batches, Sized):
            raise TypeError("batches of unknown number cannot be shared out evenly")
        self.batches, self.rank, self.world_size = batches, rank, world_size

    def __len__(self) -> int:
        return math.ceil(len(self.batches) / self.world_size)

    def __iter__(self) -> Iterator[list[int]]:
        epoch = list(self.batches)
        missing = len(self) * self.world_size - len(epoch)
        repeated = [epoch[i % len(epoch)] for i in range(missing)]
        yield from (epoch + repeated)[self.rank :: self.world_size]


class TrainingData(LightningDataModule):
    """Wraps a data module for training on one rank; only its training loader differs.

    Every rank validates the whole split and so has the correct metric, in the time of a single process. Images are normalized,
    and those in memory augmented, on the training device. The state consists of two generators (training order and seeds of
    loader workers) and the module's own.

    Args:
        data: its training loader draws the order from a generator of its own.
    """

    def __init__(self, data: LightningDataModule) -> None:
        super().__init__()
        self.data = data
        self._generators: dict[str, torch.Generator] = {}
        self._resumed_at: dict[str, torch.Tensor] = {}
        self._images: ImagePart | None = None

    def __getattr__(self, name: str) -> Any:
        """Forward what the task's evaluator reads, such as rows."""
        if name == "data":  # not set yet while the object is copied
            raise AttributeError(name)
        return getattr(self.data, name)

    def setup(self, stage: str | None = None) -> None:
        self.data.setup(stage)

    def train_dataloader(self) -> DataLoader:
        loader = self.data.train_dataloader()
        # Iterators draw worker seeds; from the order's own generator these would shift the order of a resumed run.
        workers = torch.Generator().manual_seed(loader.generator.initial_seed())
        self._generators = {"order": loader.generator, "workers": workers}
        for name, state in self._resumed_at.items():
            self._generators[name].set_state(state)
        images = isinstance(loader.dataset, ImagePart) and loader.collate_fn is as_fetched
        self._images = loader.dataset if images else None
        return similar_loader(
            loader,
            dataset=None if self._images is None else StoredRows(self._images),
            batch_sampler=RankBatches(loader.batch_sampler, distributed.rank(), distributed.world_size()),
            collate_fn=loader.collate_fn,
            generator=workers,
        )

    def val_dataloader(self) -> DataLoader:
        loader = self.data.val_dataloader()
        if loader.generator is None:
            # Otherwise starting validation workers would advance the global generator, which draws dropout.
            loader.generator = torch.Generator()
        return loader

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return without_full_mask(batch, self.trainer.lightning_module.net)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return self._images.process(batch) if self._images is not None and self.trainer.training else batch

    def state_dict(self) -> dict[str, Any]:
        generators = {name: generator.get_state() for name, generator in self._generators.items()}
        return {"generators": generators, "data": self.data.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._resumed_at = state_dict["generators"]
        self.data.load_state_dict(state_dict["data"])


log = logging.getLogger(__name__)
CHECKPOINT = "epoch.ckpt"


def checkpoint_of(folder: Path | None, task: pl.LightningModule) -> Path | None:
    """The checkpoint that a killed training left in its folder; None if it is missing or cannot be gone on from.

    What does not belong to this training would end every retry; it is named in a line, and the training starts at its beginning.
    """
    if folder is None or not (folder / CHECKPOINT).exists():
        return None
    checkpoint = folder / CHECKPOINT
    why = _why_unusable(checkpoint, task)
    if why is None:
        return checkpoint
    if distributed.rank() == 0:
        log.warning("not used, so the training starts at its beginning: %s: %s", checkpoint, why)
        if checkpoint.is_dir():  # which no checkpoint could replace
            shutil.rmtree(checkpoint)
    return None


def _why_unusable(checkpoint: Path, task: pl.LightningModule) -> str | None:
    """Why a file is not the checkpoint that these versions wrote of such a training; None if it is."""
    try:
        with zipfile.ZipFile(checkpoint) as archive:
            broken = archive.testzip()
            if broken is not None:
                return f"{broken} does not hold what was written"
            if archive.comment != _seal_of(archive):
                return "other versions wrote it, or it was changed"
        state = torch.load(checkpoint, map_location="cpu", mmap=True, weights_only=True)["state_dict"]
        return None if same_shapes(state, task.state_dict()) else "it is of another network"
    except Exception as error:  # of any kind, for content of any kind
        return first_line(error)


def seal(checkpoint: Path) -> None:
    """Write a digest of a file of torch.save, and the versions that wrote it, to its end, where torch ignores them."""
    with zipfile.ZipFile(checkpoint, "a") as archive:
        archive.comment = _seal_of(archive)


def _seal_of(archive: zipfile.ZipFile) -> bytes:
    members = [(member.filename, member.file_size, member.CRC) for member in archive.infolist()]
    written_by = versions("sparsefront", "torch", "pytorch-lightning", "numpy") | {"python": sys.version}
    return digest({"members": members, "versions": written_by}).encode()


class KeepEpochs(pl.Callback):
    """Writes a checkpoint at the ends of epochs, and restores what Lightning's does not contain.

    Lightning's checkpoint has the weights, optimizer, learning rate, AMP scaler, its counters, and the `state_dict` of all
    callbacks and of the data module. This callback adds each rank's random states and the elapsed time. It must be the last
    callback, to see the others' end-of-epoch changes. Nothing is written after the last epoch, because work at the end of
    training is not part of a checkpoint.

    Args:
        folder: survives a kill; None = only measure time.
        least_seconds: between the beginning, or a checkpoint, and the next checkpoint; 0 = after every epoch.
    """

    def __init__(self, folder: Path | None, least_seconds: float) -> None:
        self.folder, self.least_seconds = folder, least_seconds
        self.earlier_seconds = 0.0  # of the killed training that is resumed
        self._start = self._last_write = working_time()
        self._resumed: dict[str, Any] | None = None

    @property
    def seconds(self) -> float:
        """Seconds of the training, including those before a kill, excluding those in which it yielded the GPU to a timing."""
        return self.earlier_seconds + working_time() - self._start

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self._resumed is not None:
            # Last of all: until here a resumed run has drawn numbers that the uninterrupted one did not.
            set_random_state(self._resumed["random"][distributed.rank()])
            log.info("going on after epoch %d of %d of an earlier run", trainer.current_epoch, trainer.max_epochs)
            self._resumed = None

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self.folder is None or trainer.current_epoch + 1 == trainer.max_epochs:
            return
        if not distributed.all_gather(working_time() - self._last_write >= self.least_seconds)[0]:
            return
        if distributed.rank() == 0:
            require_all()
        new = self.folder / f"{CHECKPOINT}.new-{process_tag()}"
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with naming_full_disk(new):
                trainer.save_checkpoint(new)  # every rank takes part, rank 0 writes
                if distributed.rank() == 0:
                    seal(new)
                    sync_file(new)
                    rename_synced(new, self.folder / CHECKPOINT)  # atomic
        except BaseException:
            new.unlink(missing_ok=True)  # incomplete if the disk is full
            raise
        self._last_write = working_time()

    def state_dict(self) -> dict[str, Any]:
        return {"random": distributed.all_gather(random_state()), "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._resumed = state_dict
        self.earlier_seconds = state_dict["seconds"]


def random_state() -> dict[str, Any]:
    """States of the generators of Python, NumPy, torch and this rank's GPU, as types that `torch.load(weights_only)` accepts."""
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
    """Restore the generators to a `random_state`."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.asarray(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(_on_cpu(state["torch"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(_on_cpu(state["cuda"]))


def _on_cpu(state: Tensor) -> Tensor:
    """Move a state to the CPU: a checkpoint may have been loaded to the GPU."""
    return state.cpu()
