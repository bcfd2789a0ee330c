"""Images that fit into memory: cropped, flipped and normalized a batch at a time."""

import zlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


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
