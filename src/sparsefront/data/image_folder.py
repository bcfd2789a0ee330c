"""Images in class folders: arbitrary ones, and ImageNet."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from sparsefront.artifacts.content_digest import file_digest, path_digest
from sparsefront.data.base import DataInfo, Dataset, Division, TokenizerFrom, hold_out, link, local_path
from sparsefront.errors import InvalidSetting
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    from torch import Tensor

    from sparsefront.data.split_data import SplitData

# Of the ImageNet training set, pixels scaled to [0, 1]; expected by pretrained weights of torchvision and timm.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Evaluation resizes the shorter side to 256 and center-crops 224; other sizes keep this ratio.
RESIZE_PER_CROP = 256 / 224
REPORTED = ("test", "val", "valid", "validation", "dev")  # folders of the reporting split; the first that exists
EXPECTED = "a folder with <class>/*.jpg, or with train/<class>/*.jpg and test/<class>/*.jpg (or val/)"

Files = list[tuple[str, int]]
"""Path and class of each image."""


@settings_class(kw_only=True)
class ImageFolder(Dataset):
    """Images in folders named after their classes.

    `train/` and `test/` (or `val/`) are the splits if they exist; with both `test/` and `val/`, `val/` is the held-out part
    and `valid_fraction` has no effect. Without `train/`, `test_fraction` of every class is reported on. Training images are
    random crops, mirrored at random; others are center crops. Identical files stay in one part, for which files of equal
    size are read.

    Attributes:
        path: the folder (see `EXPECTED`).
        image_size: side of the crops in pixels.
        test_fraction: share of every class that is reported on, in (0, 0.5]; only if the folder has no `train/`.
    """

    name: ClassVar[str] = "imagefolder"
    libraries: ClassVar[tuple[str, ...]] = ("pillow",)

    path: str | None = None
    image_size: Annotated[int, Field(ge=32, description="pixels; most pretrained networks are made for 224")] = 224
    test_fraction: Annotated[float, Field(gt=0, le=0.5, description="of every class")] = 0.2

    @property
    def grouping(self) -> str:
        return "duplicates-1"

    @property
    def info(self) -> DataInfo:
        return _info(self._folders()["train"], self.image_size)

    def check(self) -> None:
        require_same_classes(self._folders(), path=self.path, expected=EXPECTED)

    def content(self) -> dict[str, Any]:
        return {part: path_digest(folder) for part, folder in self._folders().items()}

    def data_module(
        self, *, batch_size: int, seed: int, cache_dir: Path, tokenizer_from: TokenizerFrom | None = None
    ) -> "SplitData":
        return image_loaders(
            self._split, image_size=self.image_size, batch_size=batch_size, seed=seed, num_workers=self.num_workers
        )

    def _folders(self) -> dict[str, Path]:
        """The folder of each split that has one; `train` always does."""
        if self.path is None:
            raise InvalidSetting("path", None, f"set dataset.path to {EXPECTED}")
        root = local_path(self.path, expected=EXPECTED)
        if not root.is_dir():
            raise InvalidSetting("path", self.path, f"is no folder; set dataset.path to {EXPECTED}")
        if not (root / "train").is_dir():
            return {"train": root}
        parts = [part for part in REPORTED if (root / part).is_dir()]
        if not parts:
            reason = f"has train/ and none of {', '.join(f'{part}/' for part in REPORTED)}"
            raise InvalidSetting("path", self.path, f"{reason}; set dataset.path to {EXPECTED}")
        folders = {"train": root / "train", "test": root / parts[0]}
        return folders | ({"val": root / parts[1]} if parts[0] == "test" and len(parts) > 1 else {})

    def _split(self, split: str) -> Files:
        folders = self._folders()
        if split in folders and split != "train":
            return image_files(folders[split], expected=EXPECTED)
        files = image_files(folders["train"], expected=EXPECTED)
        divided = self._division(files, folders)
        rows = divided.test if split == "test" else divided.part(split)
        return [files[row] for row in rows]

    def division(self, cache_dir: Path) -> Division:
        """Rows are the files below `train/`, class by class, sorted by name."""
        folders = self._folders()
        return self._division(image_files(folders["train"], expected=EXPECTED), folders)

    def _division(self, files: Files, folders: dict[str, Path]) -> Division:
        labels, rest, test = np.asarray([label for _, label in files]), np.arange(len(files)), np.arange(0)
        groups = _same_bytes(files) if self.keeps_groups else np.arange(len(files))
        if "test" not in folders:
            rest, test = hold_out(labels, self.test_fraction, groups=groups, path=self.path)
        fraction = 0 if "val" in folders else self.valid_fraction
        train, val = hold_out(labels[rest], fraction, groups=groups[rest], path=self.path)
        return Division(rest[train], rest[val], groups if self.keeps_groups else None, len(files), test)


def _same_bytes(files: Files) -> np.ndarray:
    """Groups of identical files; only files of equal size are read."""
    sizes = [os.path.getsize(path) for path, _ in files]
    counts = Counter(sizes)
    contents = (path if counts[size] == 1 else file_digest(Path(path)) for (path, _), size in zip(files, sizes))
    return link((content,) for content in contents)


def image_loaders(
    split_files: Callable[[str], Files], *, image_size: int, batch_size: int, seed: int, num_workers: int
) -> "SplitData":
    """Loaders of image files: random crops for training, center crops otherwise.

    Args:
        split_files: `train`, `val` or `test` -> its files.
    """
    from sparsefront.data.split_data import SplitData

    def load(split: str) -> ImageFiles:
        files = split_files(split)
        if split != "train":
            # Files are sorted by class: a limited evaluation would see only one.
            files = [files[row] for row in np.random.RandomState(0).permutation(len(files))]
        return ImageFiles(files, _crop(image_size, training=split == "train"), seed)

    return SplitData(load, batch_size=batch_size, seed=seed, num_workers=num_workers)


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """One split of an image folder.

    Attributes:
        files: path and class of each image.
        crop: PIL image -> uint8 [3, size, size]; uses PyTorch's CPU generator.
        seed: seeds random crops together with the row indices of a batch.
    """

    files: Files
    crop: Callable[[Any], "Tensor"]
    seed: int

    @property
    def labels(self) -> list[int]:
        """The class of each image."""
        return [label for _, label in self.files]

    def __len__(self) -> int:
        return len(self.files)

    def __getitems__(self, indices: list[int]) -> dict[str, "Tensor"]:
        """`x`: float32 [B, 3, size, size]; `labels`: int64 [B]."""
        return self.process(self.fetch(indices))

    def fetch(self, indices: list[int]) -> dict[str, "Tensor"]:
        """`x`: uint8 [B, 3, size, size]; `labels`."""
        import torch

        from sparsefront.data.split_data import draw_seed

        files = [self.files[row] for row in indices]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(draw_seed(self.seed, indices))
            images = torch.stack([self.crop(read_image(path)) for path, _ in files])
        return {"x": images, "labels": torch.tensor([label for _, label in files])}

    def process(self, batch: dict[str, "Tensor"]) -> dict[str, "Tensor"]:
        """As `ImagePart.process`."""
        from sparsefront.data.split_data import normalize

        return batch | {"x": normalize(batch["x"].float() / 255, MEAN, STD)}


def read_image(file: str) -> Any:
    """Read an image file as RGB.

    Raises:
        InvalidSetting: not an image, a damaged one, one with more pixels than Pillow opens, or with more than 8 bits per
            channel, which Pillow would clip.
    """
    from PIL import Image

    try:
        with Image.open(file) as image:
            if image.mode.startswith(("I", "F")):
                raise ValueError(f"mode {image.mode} has more than 8 bits a channel")
            return image.convert("RGB")
    # raised by Pillow's decoders for damaged files
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        reason = " ".join(str(error).split())
        raise InvalidSetting("dataset.path", file, f"cannot be read as an image ({reason}); replace it") from error


def class_names(folder: Path) -> list[str]:
    """Class folders in class order, which is torchvision's; hidden folders (.ipynb_checkpoints) are not classes."""
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def _info(folder: Path, image_size: int) -> DataInfo:
    """The facts of color images in class folders."""
    names = tuple(class_names(folder))
    return DataInfo("image_classification", len(names), image_size, channels=3, class_names=names)


def require_same_classes(folders: dict[str, Path], *, path: str | None, expected: str) -> None:
    """Raise InvalidSetting unless every split has the same class folders, at least two."""
    train = class_names(folders["train"])
    for folder in list(folders.values())[1:]:
        differing = sorted(set(train) ^ set(class_names(folder)))
        if differing:
            which = f"train/ and {folder.name}/ hold different classes ({', '.join(differing[:3])} ...)"
            raise InvalidSetting("path", path, f"{which}: expected {expected}")
    if len(train) < 2:
        count = "no class folders" if not train else f"one class folder ({train[0]})"
        raise InvalidSetting("path", path, f"train/ has {count}; set dataset.path to {expected}")


def image_files(folder: Path, *, expected: str) -> Files:
    """The images of all classes, class by class.

    Raises:
        InvalidSetting: a class folder contains no images.
    """
    from torchvision.datasets import ImageFolder as TorchvisionFolder

    class Visible(TorchvisionFolder):
        def find_classes(self, directory: str) -> tuple[Sequence[str], dict[str, int]]:
            names = class_names(Path(directory))
            return names, {name: number for number, name in enumerate(names)}

    try:
        return Visible(folder).samples
    except FileNotFoundError as error:
        raise InvalidSetting("path", folder, f"{error}; set dataset.path to {expected}") from error


def _crop(size: int, *, training: bool) -> Callable[[Any], "Tensor"]:
    from torchvision.transforms import v2

    if training:
        cut = [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()]
    else:
        cut = [v2.Resize(round(size * RESIZE_PER_CROP), antialias=True), v2.CenterCrop(size)]
    return v2.Compose([*cut, v2.PILToTensor()])


IMAGENET_EXPECTED = "a folder with train/<class>/*.JPEG and val/<class>/*.JPEG, the same classes in both"


@settings_class(kw_only=True)
class ImageNet(Dataset):
    """Photographs in one folder per class; ILSVRC 2012 has 1000 classes and 1.28 million images. Rows are held out
    individually, because finding duplicates would require reading all of them.

    Training images are random crops, mirrored at random; others are center crops. `val/` of the folder is the test part
    here, for reporting only.
    Source: Russakovsky et al., "ImageNet Large Scale Visual Recognition Challenge", 2015.

    Attributes:
        path: the folder (see `IMAGENET_EXPECTED`); ImageNet is distributed on request only, so there is no download.
        image_size: side of the crops in pixels.
    """

    name: ClassVar[str] = "imagenet"
    libraries: ClassVar[tuple[str, ...]] = ("pillow",)

    path: str | None = None
    image_size: Annotated[int, Field(ge=32, description="pixels; torchvision's networks are made for 224")] = 224

    @property
    def info(self) -> DataInfo:
        return _info(self._folder("train"), self.image_size)

    def check(self) -> None:
        folders = {part: self._folder(part) for part in ("train", "val")}
        require_same_classes(folders, path=self.path, expected=IMAGENET_EXPECTED)

    def content(self) -> dict[str, Any]:
        return {part: path_digest(self._folder(part)) for part in ("train", "val")}

    def data_module(
        self, *, batch_size: int, seed: int, cache_dir: Path, tokenizer_from: TokenizerFrom | None = None
    ) -> "SplitData":
        return image_loaders(
            self._split, image_size=self.image_size, batch_size=batch_size, seed=seed, num_workers=self.num_workers
        )

    def _split(self, split: str) -> Files:
        files = image_files(self._folder("val" if split == "test" else "train"), expected=IMAGENET_EXPECTED)
        return files if split == "test" else [files[row] for row in self._division(files).part(split)]

    def division(self, cache_dir: Path) -> Division:
        """Rows are the files below `train/`, class by class, sorted by name."""
        return self._division(image_files(self._folder("train"), expected=IMAGENET_EXPECTED))

    def _division(self, files: Files) -> Division:
        rows = hold_out([label for _, label in files], self.valid_fraction, path=self.path)
        return Division(*rows, None, len(files))

    def _folder(self, part: str) -> Path:
        if self.path is None:
            raise InvalidSetting(
                "path", None, f"ImageNet has no public download; set dataset.path to {IMAGENET_EXPECTED}"
            )
        folder = local_path(self.path, expected=IMAGENET_EXPECTED) / part
        if not folder.is_dir():
            raise InvalidSetting(
                "path", self.path, f"there is no {part}/ in it; set dataset.path to {IMAGENET_EXPECTED}"
            )
        return folder
