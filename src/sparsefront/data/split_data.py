"""The three loaders of a data set, and images that fit into memory."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
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


# Images that fit into memory: cropped, flipped and normalized a batch at a time.


@dataclass(frozen=True)
class Augmentation:
    """Random shifts and mirrorings of the training images.

    Attributes:
        padding: black pixels added on each side before a window of the old size is cut out at random.
        flip: mirror every second image, left to right.
        seed: with the rows of a batch it decides all draws, so that they do not depend on the number of workers, nor
            on what else has used PyTorch's generator.
    """

    padding: int
    flip: bool
    seed: int


@dataclass(frozen=True, eq=False)
class ImageArrays:
    """One split of a small image set.

    Attributes:
        images: uint8 [rows, channels, height, width].
        labels: int64 [rows].
        mean, std: per channel, of pixel values scaled to [0, 1]; subtracted and divided by.
        image_size: side of the square images in a batch; other sizes are interpolated.
        augmentation: for the training part.
    """

    images: Tensor
    labels: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    image_size: int
    augmentation: Augmentation | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        """`x`: float32 [B, channels, image_size, image_size]; `labels`: int64 [B]."""
        rows = torch.as_tensor(indices)
        images = self.images[rows]
        if self.augmentation is not None:
            images = augmented(images, self.augmentation, indices)
        images = images.float() / 255
        if images.shape[-1] != self.image_size:
            size = (self.image_size, self.image_size)
            images = torch.nn.functional.interpolate(images, size=size, mode="bilinear", antialias=True)
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (self.mean, self.std))
        return {"x": (images - mean) / std, "labels": self.labels[rows]}


def draw_seed(seed: int, indices: list[int]) -> int:
    """A seed for the random draws of one batch; differs between batches and, since train is shuffled, epochs."""
    return zlib.crc32(np.asarray([seed, *indices], dtype=np.int64).tobytes())


def augmented(images: Tensor, augmentation: Augmentation, indices: list[int]) -> Tensor:
    """Images [B, C, H, W] shifted by up to `padding` pixels and mirrored, each on its own; same shape and dtype."""
    count, _, height, width = images.shape
    generator = torch.Generator().manual_seed(draw_seed(augmentation.seed, indices))
    pad = augmentation.padding
    top, left = torch.randint(0, 2 * pad + 1, (2, count), generator=generator)
    mirrored = torch.rand(count, generator=generator) < (0.5 if augmentation.flip else 0.0)

    rows = top[:, None] + torch.arange(height)
    columns = left[:, None] + torch.arange(width)
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    padded = torch.nn.functional.pad(images, (pad, pad, pad, pad)).permute(0, 2, 3, 1)
    windows = padded[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
    return windows.permute(0, 3, 1, 2)
