"""Normalization and augmentation of images in memory."""

import torch

from sparsefront.data.split_data import Augmentation, ImageArrays, SplitData, augment, draw_windows


def arrays(
    count: int = 16, size: int = 8, augmentation: Augmentation | None = None, image_size: int = 8
) -> ImageArrays:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, size, size), generator=generator, dtype=torch.uint8)
    return ImageArrays(images, torch.arange(count), (0.5, 0.25, 0.0), (0.5, 1.0, 2.0), image_size, augmentation)


def test_normalized_per_channel() -> None:
    part = arrays()
    part.images[0] = torch.tensor([255, 0, 51], dtype=torch.uint8)[:, None, None]
    x = part.__getitems__([0])["x"]
    assert torch.allclose(x[0, :, 0, 0], torch.tensor([1.0, -0.25, 0.1]))


def test_augmented_images_are_shifted_windows() -> None:
    """Every result is found among the shifts and mirrorings written out one by one."""
    images = arrays(count=40, size=5).images
    found = augment(images, 1, draw_windows(Augmentation(padding=1, flip=True, seed=0), list(range(40))))
    assert found.dtype == images.dtype and found.shape == images.shape
    shifts_seen = set()
    for image, result in zip(images, found, strict=True):
        padded = torch.nn.functional.pad(image, (1, 1, 1, 1))
        windows = {
            (top, left, mirrored): window.flip(-1) if mirrored else window
            for top in range(3)
            for left in range(3)
            for mirrored in (False, True)
            for window in [padded[:, top : top + 5, left : left + 5]]
        }
        matches = [shift for shift, window in windows.items() if torch.equal(window, result)]
        assert matches
        shifts_seen.update(matches)
    assert len(shifts_seen) > 12, "nearly all of the 18 occur among 40 images"


def test_workers_change_nothing() -> None:
    loaders = [
        SplitData(
            lambda split: arrays(augmentation=Augmentation(2, True, 9)), batch_size=5, seed=1, num_workers=workers
        )
        for workers in (0, 2)
    ]
    for alone, shared in zip(*(data.train_dataloader() for data in loaders), strict=True):
        assert torch.equal(alone["x"], shared["x"]) and torch.equal(alone["labels"], shared["labels"])


def test_lone_last_example_is_left_out() -> None:
    data = SplitData(lambda split: arrays(count=16), batch_size=5, seed=0)
    assert [len(batch["x"]) for batch in data.train_dataloader()] == [5, 5, 5]
    assert [len(batch["x"]) for batch in data.val_dataloader()] == [5, 5, 5, 1]
    pairs = SplitData(lambda split: arrays(count=16), batch_size=7, seed=0)
    assert [len(batch["x"]) for batch in pairs.train_dataloader()] == [7, 7, 2]
