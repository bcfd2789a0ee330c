"""CIFAR-10, from torchvision's files, from one .npz, or from a JPEG edition."""

import hashlib
import io
import zlib
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar
from zipfile import BadZipFile

import numpy as np
from pydantic import Field

from sparsefront import progress
from sparsefront.artifacts.content_digest import file_digest
from sparsefront.artifacts.lease import held_alone
from sparsefront.data.base import DataInfo, Dataset, Division, TokenizerFrom, hold_out, link, local_path
from sparsefront.errors import InvalidSetting
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    from sparsefront.data.split_data import SplitData


Arrays = tuple[np.ndarray, np.ndarray]
"""Images uint8 [rows, 32, 32, 3] and labels int64 [rows]."""

BATCHES = "cifar-10-batches-py"
SUBSET = "cifar10_subset.npz"
JPEG = ("train.bin", "test.bin")
"""Each a sequence of records: class (uint8), size of the JPEG in bytes (uint16, little-endian), the JPEG."""
CLASSES = 10
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
# Over the full training set, pixels scaled to [0, 1].
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
EXPECTED = (
    f"a folder that holds {BATCHES} (as torchvision unpacks it), {SUBSET}, or {' and '.join(JPEG)} (JPEG edition), or the "
    f"path of an .npz with the arrays {', '.join(ARRAYS)}"
)


@settings_class(kw_only=True)
class Cifar10(Dataset):
    """32 x 32 color images in ten classes: 50000 for training and 10000 for reporting, or fewer in an .npz.

    A JPEG edition is lossy: its accuracies are only comparable with each other. It is decoded once, into the cache. Training
    images are shifted by up to 4 pixels and mirrored.
    Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009; augmentation as in He et al., "Deep
    Residual Learning for Image Recognition", 2016, section 4.2.

    Attributes:
        path: location of the files (see `EXPECTED`); None downloads them into the cache with torchvision.
        image_size: side in pixels; values other than 32 interpolate, as ViTs for 224 pixels need.
    """

    name: ClassVar[str] = "cifar10"

    path: str | None = None
    image_size: Annotated[int, Field(ge=8, description="pixels; the images are made for 32")] = 32

    @property
    def libraries(self) -> tuple[str, ...]:  # type: ignore[override]
        """Only the JPEG edition needs Pillow."""
        return ("pillow",) if self.path is not None and _is_jpeg(self._files()) else ()

    @property
    def grouping(self) -> str:
        return "duplicates-1"

    @property
    def info(self) -> DataInfo:
        return DataInfo(kind="image_classification", num_classes=CLASSES, image_size=self.image_size, channels=3)

    def check(self) -> None:
        if self.path is not None:
            self._files()

    def content(self) -> dict[str, Any]:
        if self.path is None:
            return {"torchvision": "CIFAR10"}  # torchvision verifies its download
        return {file.name: file_digest(file) for file in self._files()}

    def data_module(
        self, *, batch_size: int, seed: int, cache_dir: Path, tokenizer_from: TokenizerFrom | None = None
    ) -> "SplitData":
        import torch

        from sparsefront.data.split_data import Augmentation, ImageArrays, SplitData

        def load(split: str) -> ImageArrays:
            images, labels = self._read("test" if split == "test" else "train", cache_dir)
            if split != "test":
                rows = self._division(images, labels).part(split)
                images, labels = images[rows], labels[rows]
            if split != "train" and self.libraries:
                # this edition is sorted by class: a limited evaluation would see only one
                order = np.random.RandomState(0).permutation(len(labels))
                images, labels = images[order], labels[order]
            change = Augmentation(padding=4, flip=True, seed=seed) if split == "train" else None
            channels_first = torch.tensor(images).permute(0, 3, 1, 2).contiguous()
            return ImageArrays(channels_first, torch.tensor(labels), MEAN, STD, self.image_size, change)

        return SplitData(load, batch_size=batch_size, seed=seed, num_workers=self.num_workers)

    def division(self, cache_dir: Path) -> Division:
        return self._division(*self._read("train", cache_dir))

    def _division(self, images: np.ndarray, labels: np.ndarray) -> Division:
        groups = link((hashlib.sha256(image.tobytes()).digest(),) for image in images) if self.keeps_groups else None
        rows = hold_out(labels, self.valid_fraction, groups=groups, path=self.path)
        return Division(*rows, groups, len(labels))

    def _files(self) -> list[Path]:
        """The local files: one .npz, the two of the JPEG edition, or torchvision's batches."""
        path = local_path(self.path, expected=EXPECTED)
        npz = path if path.suffix == ".npz" else path / SUBSET
        if npz.is_file():
            return [npz]
        edition = [path / name for name in JPEG if (path / name).is_file()]
        if edition and not (path / BATCHES).is_dir():
            if len(edition) < len(JPEG):
                raise InvalidSetting("path", self.path, f"has {edition[0].name} alone of {' and '.join(JPEG)}")
            return edition
        batches = sorted((path / BATCHES).glob("*_batch*"))
        if not batches:
            raise InvalidSetting("path", self.path, f"has no CIFAR-10; set dataset.path to {EXPECTED}")
        return batches

    def _read(self, split: str, cache_dir: Path) -> Arrays:
        files = [] if self.path is None else self._files()
        if files and files[0].suffix == ".npz":
            return _read_npz(files[0], split)
        if _is_jpeg(files):
            return _read_npz(_decode(files, cache_dir), split)
        return _read_torchvision(self.path, split, cache_dir)


def _is_jpeg(files: list[Path]) -> bool:
    return bool(files) and files[0].name in JPEG


def _decode(files: list[Path], cache_dir: Path) -> Path:
    """The .npz of a JPEG edition, decoded once for these files and this Pillow version.

    Raises:
        InvalidSetting: a file is truncated or has other contents.
    """
    from sparsefront.data.download import build_once

    def decode(target: Path) -> None:
        parts = {file.stem: _decode_jpegs(file) for file in files}
        arrays = {f"{letter}_{part}": array for part, pair in parts.items() for letter, array in zip("xy", pair)}
        with target.open("wb") as opened:  # np.savez would append a suffix to a path
            np.savez(opened, **arrays)

    content = "".join(map(file_digest, files)) + version("pillow")
    return build_once(cache_dir / "cifar10_jpeg" / f"{hashlib.sha256(content.encode()).hexdigest()[:16]}.npz", decode)


def _decode_jpegs(file: Path) -> Arrays:
    from PIL import Image

    content, place, images, labels = file.read_bytes(), 0, [], []
    try:
        while place < len(content):
            length = int.from_bytes(content[place + 1 : place + 3], "little")
            image = Image.open(io.BytesIO(content[place + 3 : place + 3 + length]), formats=["JPEG"])
            if image.size != (32, 32):
                raise ValueError(f"an image of {image.width} x {image.height} pixels, not 32 x 32")
            images.append(np.asarray(image.convert("RGB")))
            labels.append(content[place])
            place += 3 + length
    except (OSError, ValueError) as error:
        reason = (
            f"record {len(images)} of {file.name} cannot be read ({error}): it is cut short, damaged or no JPEG edition"
        )
        raise InvalidSetting("path", file, f"{reason}; copy it again") from error
    if not images:
        raise InvalidSetting("path", file, f"{file.name} has no rows")
    return np.stack(images), np.asarray(labels, dtype=np.uint8)


def _read_npz(file: Path, split: str) -> Arrays:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            missing = [name for name in ARRAYS if name not in arrays]
            if missing:
                raise InvalidSetting("path", file, f"has no {', '.join(missing)}; set dataset.path to {EXPECTED}")
            images, labels = arrays[f"x_{split}"], arrays[f"y_{split}"]
    except InvalidSetting:
        raise
    except (ValueError, OSError, EOFError, BadZipFile, zlib.error) as error:  # truncated, modified, or not an .npz
        reason = f"cannot be read as an .npz: it is cut short, damaged or holds objects ({error})"
        raise InvalidSetting("path", file, f"{reason}; copy it again, or set dataset.path to {EXPECTED}") from error
    if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3) or labels.shape != images.shape[:1]:
        raise InvalidSetting(
            "path",
            file,
            f"x_{split} is {images.dtype} {images.shape} and y_{split} {labels.shape}: uint8 [rows, 32, 32, 3] "
            "and [rows] are expected",
        )
    if not len(labels):
        raise InvalidSetting("path", file, f"x_{split} has no rows")
    if labels.dtype.kind not in "iu" or not 0 <= labels.min() <= labels.max() < CLASSES:
        label_range = (
            f"{labels.dtype} from {labels.min()} to {labels.max()}" if labels.dtype.kind in "iuf" else labels.dtype
        )
        raise InvalidSetting(
            "path", file, f"y_{split} is {label_range}: whole numbers from 0 to {CLASSES - 1} are expected"
        )
    return images, labels.astype(np.int64)


def _read_torchvision(path: str | None, split: str, cache_dir: Path) -> Arrays:
    """Read torchvision's files; it verifies every file's published digest before unpickling."""
    from torch.hub import download_url_to_file
    from torchvision.datasets import CIFAR10

    from sparsefront.data.download import require_reachable

    root = Path(path).expanduser() if path else cache_dir / "downloads"
    root.mkdir(parents=True, exist_ok=True)
    advice = f"set dataset.path to {EXPECTED}"
    try:
        with held_alone(root / CIFAR10.filename) if path is None else nullcontext():
            archive = root / CIFAR10.filename
            if path is None and not archive.exists() and not (root / BATCHES / "test_batch").exists():
                require_reachable(CIFAR10.url, missing=advice)
                # torchvision unpacks an existing archive; its own download has a progress bar that cannot be turned off
                download_url_to_file(CIFAR10.url, str(archive), progress=progress.shows())
            data = CIFAR10(root, train=split == "train", download=path is None)
    except (RuntimeError, OSError) as error:
        raise InvalidSetting("path", path, f"CIFAR-10 is incomplete or damaged ({error}); {advice}") from error
    return data.data, np.asarray(data.targets, dtype=np.int64)
