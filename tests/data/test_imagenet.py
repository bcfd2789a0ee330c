"""Folders of images.

Tiny-ImageNet from two .npz files, and CutMix.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.transforms import v2

from sparsefront.data.image_folder import MEAN, STD, ImageNet
from sparsefront.data.split_data import ImagePart, paste
from sparsefront.data.tiny_imagenet import TinyImageNet
from sparsefront.errors import InvalidSetting
from sparsefront.tasks.classification import ImageClassification


def test_layout_is_checked(tiny, tmp_path: Path) -> None:
    settings = tiny("imagenet")
    root = Path(settings.path)
    (root / "val" / "cat").rename(root / "val" / "bird")
    with pytest.raises(InvalidSetting, match="different classes .bird, cat"):
        settings.check()
    with pytest.raises(InvalidSetting, match="no train/ in it"):
        ImageNet(path=str(root / "train")).check()


def test_file_that_is_no_image(tiny, opened) -> None:
    settings = tiny("imagenet")
    file = Path(settings.path) / "train" / "cat" / "0.png"
    file.write_bytes(b"no image")
    with pytest.raises(InvalidSetting, match=f"^dataset.path={file}: cannot be read as an image .*; replace it"):
        for batch in opened(settings).train_dataloader():
            assert len(batch["labels"])
        for batch in opened(settings).val_dataloader():
            assert len(batch["labels"])


def test_crops_are_normalized_in_training(tiny, opened) -> None:
    """Workers pass on bytes; as torchvision's transforms give them."""
    part = opened(tiny("imagenet")).part("train")
    raw, batch = part.fetch([2, 0, 1]), part.__getitems__([2, 0, 1])
    assert isinstance(part, ImagePart) and raw["x"].dtype == torch.uint8
    finish = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    torch.testing.assert_close(batch["x"], finish(raw["x"]))
    assert torch.equal(batch["x"], part.process(raw)["x"]) and torch.equal(batch["labels"], raw["labels"])


def arrays(count: int, **changes: np.ndarray) -> dict[str, np.ndarray]:
    return {"images": np.zeros((count, 64, 64, 3), np.uint8), "labels": np.zeros(count, np.uint8)} | changes


PART = {"complete": False}
UNUSABLE = {
    "no file": (None, {}, "has no val.npz; it must be a folder with train.npz and val.npz"),
    "a part": (arrays(4), {}, "val.npz has 4 of 10000 labels: is a part of the archive missing"),
    "no images": ({"labels": arrays(4)["labels"]}, PART, "val.npz has no array images"),
    "classes": (arrays(4, labels=np.full(4, 200, np.uint8)), PART, "up to 200; it must be .* labels below 200"),
    "sizes": (arrays(4, images=np.zeros((4, 32, 32, 3), np.uint8)), PART, "holds images of uint8 .4, 32, 32"),
    "fractions": (arrays(4, labels=np.zeros(4)), PART, "holds labels of float64"),
}


@pytest.mark.parametrize(("val", "settings", "message"), UNUSABLE.values(), ids=UNUSABLE)
def test_unusable_archives_are_named(tmp_path: Path, val, settings, message) -> None:
    np.savez(tmp_path / "train.npz", **arrays(8))
    if val is not None:
        np.savez(tmp_path / "val.npz", **val)
    dataset = TinyImageNet(path=str(tmp_path), **settings)
    with pytest.raises(InvalidSetting, match=message):
        dataset._read("val", "labels")
        dataset._read("val", "images")


def test_cutmix_pastes_the_image_before(tiny, opened) -> None:
    part = opened(tiny("tiny_imagenet", cutmix=1.0, padding=0)).part("train")
    mixed = []
    for first in range(0, 32, 4):
        rows = list(range(first, first + 4))
        batch, plain = part.__getitems__(rows), part.images[rows].float()
        values = batch["x"] * torch.tensor(part.std)[:, None, None] + torch.tensor(part.mean)[:, None, None]
        own = (values * 255 - plain).abs().amax(1) < 0.5  # each image has one gray
        other = (values * 255 - plain.roll(1, 0)).abs().amax(1) < 0.5
        assert bool((own ^ other).all())
        assert torch.allclose(other.float().mean((1, 2)), batch["mixed_share"])
        assert torch.equal(batch["mixed_labels"], batch["labels"].roll(1))
        mixed.append(float(batch["mixed_share"][0]))
    assert max(mixed) > 0.1 and len(set(mixed)) > 4
    assert part.__getitems__([1, 2])["mixed_share"].shape == (2,)


def test_folder_is_required_and_checked(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="path=None: is required: a folder with train.npz and val.npz"):
        TinyImageNet().check()
    (tmp_path / "train.npz").write_bytes(b"PK cut short")
    with pytest.raises(InvalidSetting, match="train.npz cannot be read as an .npz: it is cut short"):
        TinyImageNet(path=str(tmp_path)).check()


def test_loss_of_mixed_batches() -> None:
    task = ImageClassification(nn.Identity(), num_classes=5)
    logits, labels, others = torch.randn(6, 5), torch.arange(6) % 5, torch.arange(6).flip(0) % 5
    images, share = paste(torch.randn(6, 3, 8, 8), torch.tensor([0, 4, 0, 4]))
    assert float(share) == 0.25 and images.shape == (6, 3, 8, 8)
    loss = task.loss(logits, {"labels": labels, "mixed_labels": others, "mixed_share": share.expand(6)})
    assert torch.allclose(loss, 0.75 * F.cross_entropy(logits, labels) + 0.25 * F.cross_entropy(logits, others))
