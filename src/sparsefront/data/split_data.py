"""The three loaders of a data set, and in-memory images."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from pytorch_lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler

from sparsefront.errors import keys_of
from sparsefront.processes import end_with_loader

SPLITS = ("train", "val", "test")
_SPLITS_OF_STAGE = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": (), None: SPLITS}


class Part(Protocol):
    """The rows of one split. Batches are fetched as a whole, so tensors are indexed, padded and augmented together."""

    def __len__(self) -> int: ...

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        """The batch of these rows; dim 0 of every tensor is the batch."""


@runtime_checkable
class ImagePart(Part, Protocol):
    """Images whose batches are finished on the training device."""

    def fetch(self, indices: list[int]) -> dict[str, Tensor]:
        """The rows as `x`, uint8 [B, C, H, W], with what `process` needs: fewer bytes than a finished batch."""

    def process(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Process rows of `fetch` into the result of `__getitems__`, on any device without synchronization."""


class NoRows:
    """An empty part; its loader yields no batch."""

    def __len__(self) -> int:
        return 0

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        raise IndexError(f"rows {indices} of a part without any")


class SplitData(LightningDataModule):
    """Loaders of parts that are read on first use.

    Works with and without a Trainer: each call for a loader returns a new one that starts from the same order.

    Args:
        load: returns the part of a split (`train`, `val`, `test`); called once for each.
        batch_size: rows per batch.
        seed: of the order of `train`; `val` and `test` are never shuffled.
        num_workers: loader processes.
    Attributes:
        evaluate_limit: rows of val and test after which an evaluation stops, at the end of a batch; None: it reads all.
    """

    evaluate_limit: int | None = None

    def __init__(self, load: Callable[[str], Part], *, batch_size: int, seed: int, num_workers: int = 0) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.seed = seed
        self.num_workers = num_workers
        self._load = load
        self._parts: dict[str, Part] = {}

    def part(self, split: str) -> Part:
        """The rows of a split, read on first use.

        Raises:
            InvalidSetting: unusable files; names the full key, such as `dataset.path`.
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
        # BatchNorm over 1x1 maps fails on a batch of one; smaller last batches of two or more are kept.
        lone_example = len(part) > self.batch_size and len(part) % self.batch_size == 1
        generator = torch.Generator().manual_seed(self.seed)
        batches = self.training_batches(part, drop_last=lone_example, generator=generator)
        return self._loader(part, batch_sampler=batches, generator=generator)

    def training_batches(self, part: Part, *, drop_last: bool, generator: torch.Generator) -> Sampler[list[int]]:
        """Row indices of each batch, new ones for every epoch; here in random order.

        Args:
            drop_last: drop the last batch if it is smaller.
        """
        return BatchSampler(RandomSampler(part, generator=generator), self.batch_size, drop_last=drop_last)

    def val_dataloader(self) -> DataLoader:
        return self._loader(self.part("val"), batch_size=self.batch_size)

    def test_dataloader(self) -> DataLoader:
        return self._loader(self.part("test"), batch_size=self.batch_size)

    def _loader(self, part: Part, **options: object) -> DataLoader:
        return DataLoader(
            part,
            collate_fn=as_fetched,
            num_workers=self.num_workers,
            worker_init_fn=end_with_loader,
            persistent_workers=self.num_workers > 0,
            pin_memory=torch.cuda.is_available(),
            **options,
        )


def as_fetched(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Identity collate function: a part returns finished batches."""
    return batch


@dataclass(frozen=True)
class Augmentation:
    """Random shifts, flips and mixing of training images.

    Attributes:
        padding: black pixels added on each side before a random crop of the original size.
        flip: mirror every image with probability 1/2, left to right.
        seed: seeds all draws together with the row indices of a batch, so that they do not depend on the number of workers
            or on other uses of PyTorch's generator.
        cutmix: probability that a batch is mixed: the same box of each image is replaced by that of the image before it, and
            the label counts by the area that is left (Yun et al., "CutMix", 2019, with uniform areas).
    """

    padding: int
    flip: bool
    seed: int
    cutmix: float = 0.0


@dataclass(frozen=True, eq=False)
class ImageArrays:
    """One split of a small image set.

    Attributes:
        images: uint8 [rows, channels, height, width].
        labels: int64 [rows].
        mean, std: per channel, for pixels scaled to [0, 1].
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
        return self.process(self.fetch(indices))

    def fetch(self, indices: list[int]) -> dict[str, Tensor]:
        """The unprocessed rows and the random draws for them, a quarter of the bytes of a finished batch.

        Returns:
            `x`: uint8 [B, channels, height, width]; `labels`; with augmentation `draws`, as in `draw_windows`, and with
            CutMix `box`, as in `draw_box`.
        """
        rows = torch.as_tensor(indices)
        batch = {"x": self.images[rows], "labels": self.labels[rows]}
        if self.augmentation is not None:
            batch["draws"] = draw_windows(self.augmentation, indices)
            if self.augmentation.cutmix:
                batch["box"] = draw_box(self.augmentation, indices, *self.images.shape[-2:])
        return batch

    def process(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Process rows of `fetch` into the result of `__getitems__`, on any device without synchronization. With CutMix also
        `mixed_labels`, int64 [B], and `mixed_share`, float32 [B], the share of these labels.
        """
        images, mixed = batch["x"], {}
        if self.augmentation is not None:
            images = augment(images, self.augmentation.padding, batch["draws"])
        if "box" in batch:
            images, share = paste(images, batch["box"])
            mixed = {"mixed_labels": batch["labels"].roll(1), "mixed_share": share.expand(len(images))}
        images = images.float() / 255
        if images.shape[-1] != self.image_size:
            size = (self.image_size, self.image_size)
            images = torch.nn.functional.interpolate(images, size=size, mode="bilinear", antialias=True)
        return {"x": normalize(images, self.mean, self.std), "labels": batch["labels"], **mixed}


def normalize(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """(images - mean) / std, per channel of [B, C, H, W]."""
    return (images - _per_channel(mean, images.device)) / _per_channel(std, images.device)


@cache
def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """float32 [1, channels, 1, 1], cached because each copy to a GPU would synchronize."""
    return torch.tensor(values, device=device).view(1, -1, 1, 1)


def draw_seed(seed: int, indices: list[int]) -> int:
    """A seed for the random draws of one batch; differs between batches and, since train is shuffled, between epochs."""
    return zlib.crc32(np.asarray([seed, *indices], dtype=np.int64).tobytes())


def draw_windows(augmentation: Augmentation, indices: list[int]) -> Tensor:
    """Crop position and flip of each image: int64 [3, B] of top, left, 0 or 1."""
    count, generator = len(indices), torch.Generator().manual_seed(draw_seed(augmentation.seed, indices))
    corners = torch.randint(0, 2 * augmentation.padding + 1, (2, count), generator=generator)
    mirrored = torch.rand(count, generator=generator) < (0.5 if augmentation.flip else 0.0)
    return torch.cat([corners, mirrored[None].long()])


def draw_box(augmentation: Augmentation, indices: list[int], height: int, width: int) -> Tensor:
    """Rows and columns of the box that is replaced: int64 [4] of top, bottom, left, right; empty if the batch is not mixed."""
    generator = torch.Generator().manual_seed(draw_seed(augmentation.seed + 1, indices))
    mixes, area, row, column = torch.rand(4, generator=generator).tolist()
    if mixes >= augmentation.cutmix:
        return torch.zeros(4, dtype=torch.int64)
    sides = [(round(place * size), size * area**0.5 / 2) for place, size in ((row, height), (column, width))]
    limits = ((round(middle - half), round(middle + half)) for middle, half in sides)
    return torch.tensor([limit for pair in limits for limit in pair]).clamp(min=0)


def paste(images: Tensor, box: Tensor) -> tuple[Tensor, Tensor]:
    """Replace a box of each image [B, C, H, W] by that of the image before it; returns the images and the box's share, [1]."""
    top, bottom, left, right = box
    rows, columns = (torch.arange(size, device=images.device) for size in images.shape[-2:])
    inside = ((rows >= top) & (rows < bottom))[:, None] & ((columns >= left) & (columns < right))
    return torch.where(inside, images.roll(1, 0), images), inside.float().mean()[None]


def augment(images: Tensor, padding: int, draws: Tensor) -> Tensor:
    """Shift images [B, C, H, W] by up to `padding` pixels and mirror them as in `draw_windows`; same shape and dtype."""
    count, _, height, width = images.shape
    top, left, mirrored = draws
    rows = top[:, None] + torch.arange(height, device=images.device)
    columns = left[:, None] + torch.arange(width, device=images.device)
    columns = torch.where(mirrored.bool()[:, None], columns.flip(1), columns)
    padded = torch.nn.functional.pad(images, (padding, padding, padding, padding)).permute(0, 2, 3, 1)
    each = torch.arange(count, device=images.device)[:, None, None]
    return padded[each, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


class StoredRows:
    """A part that yields rows of `fetch`, to `process` on the training device."""

    def __init__(self, part: ImagePart) -> None:
        self._part = part

    def __len__(self) -> int:
        return len(self._part)

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        return self._part.fetch(indices)
