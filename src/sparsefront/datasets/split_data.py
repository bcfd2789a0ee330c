"""The three loaders of a data set, for images and text alike."""

from collections.abc import Callable
from typing import Protocol

import torch
from pytorch_lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler

from sparsefront.errors import keys_of

SPLITS = ("train", "val", "test")
_SPLITS_OF_STAGE = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": (), None: SPLITS}


class Part(Protocol):
    """The rows of one split. Whole batches are fetched at once: tensors are indexed, padded and augmented together."""

    def __len__(self) -> int: ...

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        """The batch of these rows; the first dimension of every tensor counts them."""


class NoRows:
    """A part that holds nothing; its loader gives no batch."""

    def __len__(self) -> int:
        return 0

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        raise IndexError(f"rows {indices} of a part without any")


class SplitData(LightningDataModule):
    """Loaders over parts that are read when they are first wanted.

    Usable with a Trainer and without: a loader can be asked for at any time, and every call gives a new one that starts
    from the same order.

    Args:
        load: gives the part of a split (`train`, `val`, `test`); called once for each.
        batch_size: rows of a batch.
        seed: decides the order of `train`; `val` and `test` are never shuffled.
        num_workers: processes that prepare batches.
    """

    def __init__(self, load: Callable[[str], Part], *, batch_size: int, seed: int, num_workers: int = 0) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.seed = seed
        self.num_workers = num_workers
        self._load = load
        self._parts: dict[str, Part] = {}

    def part(self, split: str) -> Part:
        """The rows of a split, read now if they were not before.

        Raises:
            InvalidSetting: files that cannot be used; the key is written from the root, as `dataset.path`.
        """
        if split not in SPLITS:
            raise ValueError(f"split={split}: one of {', '.join(SPLITS)}")
        if split not in self._parts:
            with keys_of("dataset"):
                self._parts[split] = self._load(split)
        return self._parts[split]

    def setup(self, stage: str | None = None) -> None:
        for split in _SPLITS_OF_STAGE[stage]:
            self.part(split)

    def train_dataloader(self) -> DataLoader:
        part = self.part("train")
        # Batch normalization over 1x1 maps fails on a lone example; a leftover of two or more is trained on.
        lone_example = len(part) > self.batch_size and len(part) % self.batch_size == 1
        generator = torch.Generator().manual_seed(self.seed)
        batches = self.training_batches(part, drop_last=lone_example, generator=generator)
        return self._loader(part, batch_sampler=batches, generator=generator)

    def training_batches(self, part: Part, *, drop_last: bool, generator: torch.Generator) -> Sampler[list[int]]:
        """Rows of each batch of an epoch, new ones for every epoch: here any rows together.

        Args:
            drop_last: whether the last batch is left out where it is smaller.
        """
        return BatchSampler(RandomSampler(part, generator=generator), self.batch_size, drop_last=drop_last)

    def val_dataloader(self) -> DataLoader:
        return self._loader(self.part("val"), batch_size=self.batch_size)

    def test_dataloader(self) -> DataLoader:
        return self._loader(self.part("test"), batch_size=self.batch_size)

    def _loader(self, part: Part, **options: object) -> DataLoader:
        return DataLoader(
            part,
            collate_fn=_as_fetched,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            pin_memory=torch.cuda.is_available(),
            **options,
        )


def _as_fetched(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """A part hands over finished batches, so nothing is left to collate."""
    return batch
