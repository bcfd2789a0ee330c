"""Tiny-ImageNet-200: 64 x 64 color images in 200 classes, from two .npz files."""

import hashlib
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar
from zipfile import BadZipFile

import numpy as np
from pydantic import Field

from sparsefront.artifacts.content_digest import file_digest
from sparsefront.data.base import DataInfo, Dataset, Division, TokenizerFrom, hold_out, link, local_path
from sparsefront.data.image_folder import MEAN, STD
from sparsefront.errors import InvalidSetting
from sparsefront.settings_class import Share, settings_class

if TYPE_CHECKING:
    from sparsefront.data.split_data import SplitData

CLASSES, SIDE = 200, 64
ROWS = {"train": 100_000, "val": 10_000}
FILES = tuple(f"{name}.npz" for name in ROWS)
EXPECTED = (
    f"a folder with {' and '.join(FILES)}, each with the arrays images (uint8 [N, 64, 64, 3]) and labels (uint8 [N])"
)


@settings_class(kw_only=True)
class TinyImageNet(Dataset):
    """100,000 images for training; the 10,000 of the official `val` are for reporting, since labels of its test are not public.

    Training images are shifted by up to `padding` pixels, mirrored and, with probability `cutmix`, pasted into one another.
    Source: Le and Yang, "Tiny ImageNet Visual Recognition Challenge", 2015; CutMix as in `split_data.Augmentation`.

    Attributes:
        path: folder with the files (see `EXPECTED`); required.
        padding: pixels added on each side before a random crop of the original size.
        cutmix: probability that a training batch is mixed.
        complete: refuse files with another number of images than the original's.
    """

    name: ClassVar[str] = "tiny_imagenet"

    path: str | None = None
    padding: Annotated[int, Field(ge=0, le=SIDE // 2, description="pixels")] = 8
    cutmix: Share = 0.0
    complete: bool = True

    @property
    def grouping(self) -> str:
        return "duplicates-1"

    @property
    def info(self) -> DataInfo:
        return DataInfo(kind="image_classification", num_classes=CLASSES, image_size=SIDE, channels=3)

    def check(self) -> None:
        for split in ROWS:
            self._read(split, "labels")

    def content(self) -> dict[str, Any]:
        return {name: file_digest(self._file(name)) for name in FILES}

    def data_module(
        self, *, batch_size: int, seed: int, cache_dir: Path, tokenizer_from: TokenizerFrom | None = None
    ) -> "SplitData":
        import torch

        from sparsefront.data.split_data import Augmentation, ImageArrays, SplitData

        train = Augmentation(padding=self.padding, flip=True, seed=seed, cutmix=self.cutmix)

        def load(split: str) -> ImageArrays:
            file = "val" if split == "test" else "train"
            images, labels = self._read(file, "images"), self._read(file, "labels")
            if split != "test":
                rows = self._division(images, labels).part(split)
                images, labels = images[rows], labels[rows]
            channels_first = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
            change = train if split == "train" else None
            return ImageArrays(channels_first, torch.from_numpy(labels).long(), MEAN, STD, SIDE, change)

        return SplitData(load, batch_size=batch_size, seed=seed, num_workers=self.num_workers)

    def division(self, cache_dir: Path) -> Division:
        return self._division(self._read("train", "images"), self._read("train", "labels"))

    def _division(self, images: np.ndarray, labels: np.ndarray) -> Division:
        groups = link((hashlib.sha256(image.tobytes()).digest(),) for image in images) if self.keeps_groups else None
        return Division(*hold_out(labels, self.valid_fraction, groups=groups, path=self.path), groups, len(labels))

    def _file(self, name: str) -> Path:
        if self.path is None:
            raise InvalidSetting("path", None, f"is required: {EXPECTED}")
        file = local_path(self.path, expected=EXPECTED) / name
        if not file.is_file():
            raise InvalidSetting("path", self.path, f"has no {name}; it must be {EXPECTED}")
        return file

    def _read(self, split: str, array: str) -> np.ndarray:
        """`images` or `labels` of a file, checked.

        Raises:
            InvalidSetting: a file is missing, damaged, or has other arrays or fewer images.
        """
        file = self._file(f"{split}.npz")
        try:
            with np.load(file, allow_pickle=False) as arrays:
                values = arrays[array]
        except KeyError:
            raise InvalidSetting(
                "path", self.path, f"{file.name} has no array {array}; it must be {EXPECTED}"
            ) from None
        except (ValueError, OSError, EOFError, BadZipFile, zlib.error) as error:
            reason = f"{file.name} cannot be read as an .npz: it is cut short, damaged or holds objects ({error})"
            raise InvalidSetting("path", self.path, f"{reason}; make it again") from error
        shape = (SIDE, SIDE, 3) if array == "images" else ()
        if (
            values.dtype != np.uint8
            or values.shape[1:] != shape
            or (array == "labels" and values.max(initial=0) >= CLASSES)
        ):
            reason = f"{file.name} holds {array} of {values.dtype} {values.shape}, up to {values.max(initial=0)}"
            raise InvalidSetting("path", self.path, f"{reason}; it must be {EXPECTED}, labels below {CLASSES}")
        if self.complete and len(values) != ROWS[split]:
            reason = f"{file.name} has {len(values)} of {ROWS[split]} {array}: is a part of the archive missing?"
            raise InvalidSetting("path", self.path, f"{reason} dataset.complete=false takes it as it is")
        return values
