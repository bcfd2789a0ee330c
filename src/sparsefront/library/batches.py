"""Batches as training loops have them, by the names of the network's arguments."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from pytorch_lightning import LightningDataModule
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from sparsefront.errors import InvalidSetting
from sparsefront.library.inputs import forward_names, inputs_by_name
from sparsefront.tasks.base import Batch
from sparsefront.training.loader_settings import similar_loader

TARGET = "__target__"
"""Key of what a batch (inputs, target) has beside the inputs."""

Collate = Callable[[list], object]


@dataclass(frozen=True, eq=False)
class NamedBatch:
    """Makes a dict of a batch: (inputs, target), inputs alone, or a mapping as Hugging Face's collators give.

    Args:
        names: of the inputs, as the network's forward has them; workers are sent these, not the network.
        collate: makes the batch of samples.
        argument: what the batches are called in messages.
    """

    names: tuple[str, ...] | None
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
            return inputs_by_name(self.names, batch, argument=self.argument)
        if isinstance(batch, Sequence) and len(batch) == 2:
            inputs, target = batch
            return {**inputs_by_name(self.names, inputs, argument=self.argument), TARGET: target}
        if isinstance(batch, torch.Tensor):
            return inputs_by_name(self.names, batch, argument=self.argument)
        given = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, Sequence) else type(batch).__name__
        raise InvalidSetting(self.argument, given, "holds batches (inputs, target), inputs alone, or dicts by name")


class NamedBatches(LightningDataModule):
    """A training loader whose batches are dicts.

    Args:
        batches: a DataLoader, whose order and settings stay its own, and whose workers are seeded from its generator, else from
            torch's; of any other iterable, or one over an IterableDataset, all batches are read into memory once.
        net: whose forward names the inputs.
        argument: as of `NamedBatch`.
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
        self._named = NamedBatch(forward_names(net), self._collate, argument)
        self._seed = _next_seed()

    def train_dataloader(self) -> DataLoader:
        """A fresh loader over the same batches."""
        given = self._loader
        generator = given.generator or torch.Generator().manual_seed(self._seed)
        return similar_loader(given, batch_sampler=given.batch_sampler, collate_fn=self._named, generator=generator)

    def val_dataloader(self) -> DataLoader:
        """Of no batch: a plain training loop validates nothing."""
        warnings.filterwarnings("ignore", message="Total length of `DataLoader` across ranks is zero")
        return DataLoader(_Read([]))


def training_loader(module: LightningDataModule) -> Iterable:
    """What a data module trains on: all that is used of it."""
    module.prepare_data()
    module.setup("fit")
    return module.train_dataloader()


class _Read(Dataset):
    """Batches that were read already."""

    def __init__(self, batches: list) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> object:
        return self.batches[index]


def _next_seed() -> int:
    """What a DataLoader without a generator would draw next, from torch's own, which does not move."""
    generator = torch.Generator()
    generator.set_state(torch.get_rng_state())
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator))


def _first(samples: list) -> object:
    return samples[0]
