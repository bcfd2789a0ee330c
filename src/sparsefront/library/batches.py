"""Batches as training loops have them, by the names of the network's arguments."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from pytorch_lightning import LightningDataModule
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from sparsefront.errors import InvalidSetting
from sparsefront.library.inputs import named_inputs
from sparsefront.tasks.base import Batch

TARGET = "__target__"
"""Key of what a batch (inputs, target) has beside the inputs."""

Collate = Callable[[list], object]


@dataclass(frozen=True, eq=False)
class NamedBatch:
    """Makes a dict of a batch: (inputs, target), inputs alone, or a mapping as Hugging Face's collators give.

    Args:
        net: whose forward names the inputs.
        collate: makes the batch of samples.
        argument: what the batches are called in messages.
    """

    net: nn.Module
    collate: Collate
    argument: str

    def __call__(self, samples: list) -> Batch:
        return self.named(self.collate(samples))

    def named(self, batch: object) -> Batch:
        """The batch by name, its target under TARGET.

        Raises:
            InvalidSetting: a batch of another form.
        """
        if isinstance(batch, Mapping):
            return dict(batch)
        if isinstance(batch, Sequence) and len(batch) == 1:
            return named_inputs(self.net, batch, argument=self.argument)
        if isinstance(batch, Sequence) and len(batch) == 2:
            inputs, target = batch
            return {**named_inputs(self.net, inputs, argument=self.argument), TARGET: target}
        if isinstance(batch, torch.Tensor):
            return named_inputs(self.net, batch, argument=self.argument)
        given = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, Sequence) else type(batch).__name__
        raise InvalidSetting(self.argument, given, "holds batches (inputs, target), inputs alone, or dicts by name")


class NamedBatches(LightningDataModule):
    """A training loader whose batches are dicts.

    Args:
        batches: a DataLoader, whose order stays its own; of any other iterable, or one over an IterableDataset, all batches are
            read into memory once.
        net, argument: as of `NamedBatch`.
    Raises:
        InvalidSetting: no iterable, or an empty one.
    """

    def __init__(self, batches: Iterable, net: nn.Module, *, argument: str) -> None:
        super().__init__()
        if isinstance(batches, str) or not isinstance(batches, Iterable):
            raise InvalidSetting(argument, type(batches).__name__, "is a DataLoader or another iterable of batches")
        streamed = isinstance(batches, DataLoader) and isinstance(batches.dataset, IterableDataset)
        if isinstance(batches, DataLoader) and batches.batch_sampler is not None and not streamed:
            self._loader = batches
            self._collate: Collate = batches.collate_fn
        else:
            read = _Read(list(batches))
            sampler = BatchSampler(SequentialSampler(read), batch_size=1, drop_last=False)
            self._loader = DataLoader(read, batch_sampler=sampler)
            self._collate = _first
        if len(self._loader) == 0:
            raise InvalidSetting(argument, "empty", "must give at least one batch")
        self._named = NamedBatch(net, self._collate, argument)

    def train_dataloader(self) -> DataLoader:
        """A fresh loader over the same batches."""
        given = self._loader
        generator = given.generator or torch.Generator().manual_seed(0)
        return DataLoader(
            given.dataset,
            batch_sampler=given.batch_sampler,
            collate_fn=self._named,
            num_workers=given.num_workers,
            persistent_workers=given.persistent_workers,
            pin_memory=given.pin_memory,
            generator=generator,
        )

    def val_dataloader(self) -> DataLoader:
        """Of no batch: a plain training loop validates nothing."""
        warnings.filterwarnings("ignore", message="Total length of `DataLoader` across ranks is zero")
        return DataLoader(_Read([]))


class _Read(Dataset):
    """Batches that were read already."""

    def __init__(self, batches: list) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> object:
        return self.batches[index]


def _first(samples: list) -> object:
    return samples[0]
