"""ImageNet, or any folder of images that is laid out like it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from sparsefront.artifacts.content_digest import listing_digest
from sparsefront.data.base import DataInfo, Dataset, TokenizerFrom, held_out, local_path
from sparsefront.errors import InvalidSetting
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    from torch import Tensor

    from sparsefront.data.split_data import SplitData


# Of the ImageNet training set, pixels scaled to [0, 1]; what torchvision's weights were trained with.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Evaluation resizes the shorter side to 256 and cuts 224 out of its center; the ratio is kept for other sizes.
RESIZE_PER_CROP = 256 / 224
EXPECTED = "a folder with train/<class>/*.JPEG and val/<class>/*.JPEG, the same classes in both"


@settings_class(kw_only=True)
class ImageNet(Dataset):
    """Color photographs in folders, one per class; ILSVRC 2012 has 1000 classes, 1.28 million images.

    Training images are random crops, mirrored at random; others are center crops. `val/` of the folder is the test part
    here: reported on only.
    Source: Russakovsky et al., "ImageNet Large Scale Visual Recognition Challenge", 2015.

    Attributes:
        path: the folder (see `EXPECTED`); there is no download, for ImageNet is given out on request only.
        image_size: side of the crops in pixels.
    """

    name: ClassVar[str] = "imagenet"
    libraries: ClassVar[tuple[str, ...]] = ("pillow",)

    path: str | None = None
    image_size: Annotated[int, Field(ge=32, description="pixels; torchvision's networks are made for 224")] = 224

    @property
    def info(self) -> DataInfo:
        classes = len(_classes(self._folder("train")))
        return DataInfo(kind="image_classification", num_classes=classes, image_size=self.image_size, channels=3)

    def check(self) -> None:
        train, val = (_classes(self._folder(part)) for part in ("train", "val"))
        if not train:
            raise InvalidSetting("path", self.path, f"train/ has no class folders; set dataset.path to {EXPECTED}")
        if train != val:
            differing = sorted(set(train) ^ set(val))[:3]
            raise InvalidSetting(
                "path",
                self.path,
                f"train/ and val/ hold different classes ({', '.join(differing)} ...): expected {EXPECTED}",
            )

    def content(self) -> dict[str, Any]:
        """Names and sizes of the files only: reading 150 GB would take longer than the run."""
        return {part: listing_digest(self._folder(part)) for part in ("train", "val")}

    def data_module(
        self, *, batch_size: int, seed: int, cache_dir: Path, tokenizer_from: TokenizerFrom | None = None
    ) -> "SplitData":
        from sparsefront.data.split_data import SplitData

        def load(split: str) -> ImageFiles:
            files = _image_files(self._folder("val" if split == "test" else "train"))
            if split != "test":
                divided = held_out([label for _, label in files], self.valid_fraction, path=self.path)
                files = [files[row] for row in divided[("train", "val").index(split)]]
            if split != "train":
                # Files come class by class: the first few, which an evaluation may stop after, would be of one.
                files = [files[row] for row in np.random.RandomState(0).permutation(len(files))]
            return ImageFiles(files, _transform(self.image_size, training=split == "train"), seed)

        return SplitData(load, batch_size=batch_size, seed=seed, num_workers=self.num_workers)

    def _folder(self, part: str) -> Path:
        if self.path is None:
            raise InvalidSetting("path", None, f"ImageNet has no public download; set dataset.path to {EXPECTED}")
        folder = local_path(self.path, expected=EXPECTED) / part
        if not folder.is_dir():
            raise InvalidSetting("path", self.path, f"there is no {part}/ in it; set dataset.path to {EXPECTED}")
        return folder


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """One split of an image folder.

    Attributes:
        files: path and class of each image.
        transform: from a PIL image to float32 [3, size, size]; draws from PyTorch's generator of the CPU.
        seed: with the rows of a batch it decides what is drawn.
    """

    files: list[tuple[str, int]]
    transform: Callable[[Any], "Tensor"]
    seed: int

    @property
    def labels(self) -> list[int]:
        """The class of each image."""
        return [label for _, label in self.files]

    def __len__(self) -> int:
        return len(self.files)

    def __getitems__(self, indices: list[int]) -> dict[str, "Tensor"]:
        """`x`: float32 [B, 3, size, size]; `labels`: int64 [B]."""
        import torch

        from sparsefront.data.split_data import draw_seed

        files = [self.files[row] for row in indices]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(draw_seed(self.seed, indices))
            images = torch.stack([self.transform(_readable(path)) for path, _ in files])
        return {"x": images, "labels": torch.tensor([label for _, label in files])}


def _readable(file: str) -> Any:
    """The PIL image of a file, in RGB."""
    from torchvision.datasets.folder import default_loader

    try:
        return default_loader(file)
    except OSError as error:
        raise InvalidSetting("dataset.path", file, f"cannot be read as an image ({error}); replace it") from error


def _classes(folder: Path) -> list[str]:
    """Class names in the order of their numbers, which is torchvision's."""
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())


def _image_files(folder: Path) -> list[tuple[str, int]]:
    from torchvision.datasets import ImageFolder

    try:
        return ImageFolder(folder).samples
    except FileNotFoundError as error:  # a class folder without a single image
        raise InvalidSetting("path", folder, f"{error}; set dataset.path to {EXPECTED}") from error


def _transform(size: int, *, training: bool) -> Callable[[Any], "Tensor"]:
    import torch
    from torchvision.transforms import v2

    if training:
        cut = [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()]
    else:
        cut = [v2.Resize(round(size * RESIZE_PER_CROP), antialias=True), v2.CenterCrop(size)]
    return v2.Compose([*cut, v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
