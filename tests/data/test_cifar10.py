"""CIFAR-10 from an .npz, from a JPEG edition and from torchvision's files."""

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from sparsefront.data.cifar10 import MEAN, STD, Cifar10
from sparsefront.errors import InvalidSetting


def test_training_images_are_augmented(tiny, opened) -> None:
    data = opened(tiny("cifar10"))
    black = ((0 - torch.tensor(MEAN)) / torch.tensor(STD))[None, :, None, None]
    holds_black = {
        split: bool((data.part(split).__getitems__([0, 1, 2, 3])["x"] - black).abs().lt(1e-6).any())
        for split in ("train", "val", "test")
    }
    assert holds_black == {"train": True, "val": False, "test": False}


IMAGES, NAMES = np.zeros((4, 32, 32, 3), np.uint8), ("x_train", "y_train", "x_test", "y_test")


def with_labels(labels: np.ndarray) -> dict[str, np.ndarray]:
    return dict(zip(NAMES, (IMAGES, labels) * 2, strict=True))


UNUSABLE = {
    "no test part": (dict(zip(NAMES[:2], (IMAGES, np.zeros(4)))), "has no x_test, y_test"),
    "channels first": (dict.fromkeys(NAMES, IMAGES.transpose(0, 3, 1, 2)), "are expected"),
    "too large": (with_labels(np.arange(4) + 7), "int64 from 7 to 10: whole numbers from 0 to 9"),
    "negative": (with_labels(np.arange(4) - 1), "int64 from -1 to 2"),
    "fractions": (with_labels(np.arange(4) / 2), "float64 from 0.0 to 1.5"),
    "text": (with_labels(np.array(list("abcd"))), "<U1: whole numbers"),
    "objects": (with_labels(np.array([None] * 4)), "cannot be read as an .npz: .*objects"),
}


@pytest.mark.parametrize(("arrays", "message"), UNUSABLE.values(), ids=UNUSABLE)
def test_unusable_npz(tmp_path: Path, opened, arrays: dict, message: str) -> None:
    np.savez(tmp_path / "images.npz", **arrays)
    with pytest.raises(InvalidSetting, match=message):
        opened(Cifar10(path=str(tmp_path / "images.npz"))).part("test")


def halved(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def altered(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 0xFF
    file.write_bytes(content)


@pytest.mark.parametrize(
    "damage", [halved, altered, lambda file: file.write_bytes(b""), lambda file: file.write_text("no images")]
)
def test_a_damaged_npz_is_named(tiny, opened, damage) -> None:
    settings = tiny("cifar10")
    file = Path(settings.path) / "cifar10_subset.npz"
    damage(file)
    with pytest.raises(
        InvalidSetting, match=f"^dataset.path={file}: cannot be read as an .npz: .*copy it again"
    ) as rejected:
        opened(settings).part("train")
    assert "\n" not in str(rejected.value)


def jpeg_record(label: int, gray: int, side: int = 32) -> bytes:
    from PIL import Image

    Image.new("RGB", (side, side), (gray, gray, gray)).save(written := io.BytesIO(), "JPEG")
    return bytes([label]) + len(written.getvalue()).to_bytes(2, "little") + written.getvalue()


def jpeg_edition(folder: Path) -> Path:
    """40 and 20 images of one gray each, sorted by class as the edition is."""
    for part, count in (("train", 40), ("test", 20)):
        records = [jpeg_record(row * 10 // count, 100 + row) for row in range(count)]
        (folder / f"{part}.bin").write_bytes(b"".join(records))
    return folder


def test_jpeg_edition_is_decoded_once(tmp_path: Path, monkeypatch, opened) -> None:
    from PIL import Image

    settings = Cifar10(path=str(jpeg_edition(tmp_path)))
    settings.check()
    assert settings.content().keys() == {"train.bin", "test.bin"} and settings.libraries == ("pillow",)
    data = opened(settings)
    test = data.part("test")
    grays, labels = test.images[:, 0, 5, 5] - 100, test.labels
    assert torch.equal(grays.sort().values, torch.arange(20)) and torch.equal(labels, grays // 2)
    assert len(labels[:8].unique()) > 4, "the first few are of several classes"
    monkeypatch.setattr(Image, "open", reject)
    assert torch.equal(opened(settings).part("test").images, test.images)
    assert [len(data.part(split)) for split in ("train", "val")] == [36, 4]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (jpeg_record(3, 9)[:-9], "record 0 of train.bin cannot be read"),
        (jpeg_record(3, 9) + b"no image", "record 1 of train.bin cannot be read"),
        (jpeg_record(3, 9, side=16), "16 x 16 pixels, not 32 x 32"),
        (b"", "train.bin has no rows"),
        (jpeg_record(10, 9), "10: whole numbers from 0 to 9"),
    ],
    ids=["cut short", "no image", "size", "empty", "label"],
)
def test_a_damaged_jpeg_edition_is_named(tmp_path: Path, opened, content: bytes, message: str) -> None:
    (jpeg_edition(tmp_path) / "train.bin").write_bytes(content)
    with pytest.raises(InvalidSetting, match=f"^dataset.path=.*{message}") as rejected:
        opened(Cifar10(path=str(tmp_path))).part("train")
    assert "\n" not in str(rejected.value)
    (tmp_path / "train.bin").unlink()
    with pytest.raises(InvalidSetting, match="path=.*has test.bin alone of train.bin and test.bin"):
        Cifar10(path=str(tmp_path)).check()


def test_another_digest_is_not_unpickled(tmp_path: Path, opened) -> None:
    batches = tmp_path / "root" / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    for name in ("batches.meta", "test_batch", *(f"data_batch_{number}" for number in range(1, 6))):
        (batches / name).write_bytes(pickle.dumps({"labels": list(range(10))}))
    with pytest.raises(InvalidSetting, match="incomplete or damaged.*set dataset.path"):
        opened(Cifar10(path=str(tmp_path / "root"))).setup()


def reject(*_: object, **__: object) -> None:
    raise OSError("no network in this test")
