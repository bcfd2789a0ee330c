"""The training batches of one rank, in an order that a resumed training takes up where it was."""

import math
from collections.abc import Iterator, Sized
from typing import Any

import torch
from pytorch_lightning import LightningDataModule
from torch.utils.data import DataLoader, Sampler

from sparsefront import distributed
from sparsefront.tasks.padding import without_full_mask
from sparsefront.training.loader_settings import similar_loader


class RankBatches(Sampler[list[int]]):
    """Every W-th batch of an epoch, so that W ranks together take the batches that a single process takes.

    Lightning's own sampler shares out samples instead: it would make other batches than a single process does, with a
    lone example left over in some. Where W does not divide the number of batches, the first ones are taken a second
    time, so that no rank waits for a batch that another does not have.

    Args:
        batches: of the whole epoch, in the same order on every rank.
        rank, world_size: which share, of how many.
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
    """A data module as one rank trains on it; everything but its training loader is the module's own.

    Every rank validates on the whole split: each then holds the right metric, and none waits longer than it would for a
    single process. The state is that of two generators: of the training order, and of the seeds of the loader's workers.

    Args:
        data: its training loader draws the order from a generator of its own.
    """

    def __init__(self, data: LightningDataModule) -> None:
        super().__init__()
        self.data = data
        self._generators: dict[str, torch.Generator] = {}
        self._resumed_at: dict[str, torch.Tensor] = {}

    def __getattr__(self, name: str) -> Any:
        """What the task's evaluator asks of the data, such as its rows."""
        if name == "data":  # not there yet: of a copy in the making
            raise AttributeError(name)
        return getattr(self.data, name)

    def setup(self, stage: str | None = None) -> None:
        self.data.setup(stage)

    def train_dataloader(self) -> DataLoader:
        loader = self.data.train_dataloader()
        # Iterators draw a seed for their workers; from the order's own generator it would shift the order of a resumed run.
        workers = torch.Generator().manual_seed(loader.generator.initial_seed())
        self._generators = {"order": loader.generator, "workers": workers}
        for name, state in self._resumed_at.items():
            self._generators[name].set_state(state)
        return similar_loader(
            loader,
            batch_sampler=RankBatches(loader.batch_sampler, distributed.rank(), distributed.world_size()),
            collate_fn=loader.collate_fn,
            generator=workers,
        )

    def val_dataloader(self) -> DataLoader:
        loader = self.data.val_dataloader()
        if loader.generator is None:
            # The global generator, which draws dropout, would move by as much as processes are started for validation.
            loader.generator = torch.Generator()
        return loader

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return without_full_mask(batch, self.trainer.lightning_module.net)

    def state_dict(self) -> dict[str, Any]:
        return {name: generator.get_state() for name, generator in self._generators.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._resumed_at = state_dict
