"""Folders of images."""

from pathlib import Path

import pytest
import torch
from tiny_files import write_imagenet

from sparsefront.data.image_folder import ImageNet
from sparsefront.errors import InvalidSetting


def test_classes_are_the_folders_in_alphabetical_order(tiny, opened) -> None:
    settings = tiny("imagenet")
    assert settings.info.num_classes == 2
    labels = {Path(path).parent.name: label for path, label in opened(settings).part("train").files}
    assert labels == {"cat": 0, "dog": 1}


@pytest.mark.parametrize("split", ["val", "test"])
def test_what_is_evaluated_comes_in_a_mixed_order(opened, tmp_path, split) -> None:
    """The first few, which an evaluation may stop after, are of several classes; always the same ones."""
    settings = ImageNet(path=str(write_imagenet(tmp_path / "many", train=64, val=16)), valid_fraction=0.25)
    files = opened(settings).part(split).files
    assert len(files) == 16 and {label for _, label in files[:6]} == {0, 1} and files != sorted(files)
    assert files == opened(settings, seed=1).part(split).files


def test_other_generators_are_left_alone(tiny, opened) -> None:
    part = opened(tiny("imagenet")).part("train")
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = part.__getitems__([0, 1])
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first["x"], part.__getitems__([0, 1])["x"])
    assert not torch.equal(first["x"][:1], part.__getitems__([0])["x"]), (
        "draws follow the batch, so they differ by epoch"
    )


def test_path_is_needed() -> None:
    with pytest.raises(InvalidSetting, match="path=None: ImageNet has no public download; set dataset.path"):
        ImageNet().check()


def test_layout_is_checked(tiny, tmp_path: Path) -> None:
    settings = tiny("imagenet")
    root = Path(settings.path)
    (root / "val" / "cat").rename(root / "val" / "bird")
    with pytest.raises(InvalidSetting, match="different classes .bird, cat"):
        settings.check()
    with pytest.raises(InvalidSetting, match="no train/ in it"):
        ImageNet(path=str(root / "train")).check()


def test_class_without_images(tiny, opened) -> None:
    settings = tiny("imagenet")
    for part in ("train", "val"):
        (Path(settings.path) / part / "empty").mkdir()
    settings.check()
    with pytest.raises(InvalidSetting, match="empty"):
        opened(settings).setup()


def test_a_file_that_is_no_image_is_named(tiny, opened) -> None:
    settings = tiny("imagenet")
    file = Path(settings.path) / "train" / "cat" / "0.png"
    file.write_bytes(b"no image")
    with pytest.raises(InvalidSetting, match=f"^dataset.path={file}: cannot be read as an image .*; replace it"):
        for batch in opened(settings).train_dataloader():
            assert len(batch["labels"])
        for batch in opened(settings).val_dataloader():
            assert len(batch["labels"])
