"""Handwritten digits from scikit-learn: real data without a download."""

import importlib.util
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from sparsefront.artifacts.content_digest import file_digest
from sparsefront.data.base import DataInfo, Dataset, Division, TokenizerFrom, hold_out, link
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    from sparsefront.data.split_data import SplitData


TEST_FRACTION = 0.2
# Over all 1797 images, pixels scaled to [0, 1].
MEAN, STD = (0.305,), (0.376,)


@settings_class(kw_only=True)
class Digits(Dataset):
    """1797 grayscale images of 8 x 8 pixels in ten classes: 1438 for training (including the held-out part), 359 for reporting.

    scikit-learn defines no split, so the test part is a fixed stratified fifth. At 95 % accuracy its standard error is 1.1
    points.
    Source: Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI repository, 1998: its test file.

    Attributes:
        shift: maximum random shift of a training image, in pixels along each axis; 0 = none.
    """

    name: ClassVar[str] = "digits"

    shift: Annotated[int, Field(ge=0, le=3, description="pixels of the 8 x 8 images")] = 0

    @property
    def grouping(self) -> str:
        return "duplicates-1"

    @property
    def info(self) -> DataInfo:
        return DataInfo(kind="image_classification", num_classes=10, image_size=8, channels=1)

    def check(self) -> None:
        """Nothing to check: the images are part of scikit-learn."""

    def content(self) -> dict[str, Any]:
        """Digest of the packaged file."""
        return {"sha256": file_digest(_file())}

    def data_module(
        self, *, batch_size: int, seed: int, cache_dir: Path, tokenizer_from: TokenizerFrom | None = None
    ) -> "SplitData":
        import torch

        from sparsefront.data.split_data import Augmentation, ImageArrays, SplitData

        def load(split: str) -> ImageArrays:
            images, labels = _all_digits()
            rows = self._rows(images, labels)[split]
            shifts = (
                Augmentation(padding=self.shift, flip=False, seed=seed) if split == "train" and self.shift else None
            )
            return ImageArrays(torch.tensor(images[rows])[:, None], torch.tensor(labels[rows]), MEAN, STD, 8, shifts)

        return SplitData(load, batch_size=batch_size, seed=seed, num_workers=self.num_workers)

    def division(self, cache_dir: Path) -> Division:
        images, labels = _all_digits()
        rows, groups = self._rows(images, labels), self._groups(images)
        return Division(rows["train"], rows["val"], groups, len(labels), rows["test"])

    def _rows(self, images: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        groups = self._groups(images)
        rest, test = hold_out(labels, TEST_FRACTION, groups=groups)
        within = None if groups is None else groups[rest]
        train, val = hold_out(labels[rest], self.valid_fraction, groups=within)
        return {"train": rest[train], "val": rest[val], "test": test}

    def _groups(self, images: np.ndarray) -> np.ndarray | None:
        return link((image.tobytes(),) for image in images) if self.keeps_groups else None


@cache
def _all_digits() -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [1797, 8, 8], scaled from scikit-learn's 0 to 16 to 0 to 255, and labels int64 [1797]."""
    *pixels, labels = np.loadtxt(_file(), delimiter=",").T
    images = np.stack(pixels, axis=1).reshape(-1, 8, 8)
    return (images * (255 / 16)).round().astype(np.uint8), labels.astype(np.int64)


def _file() -> Path:
    """scikit-learn's file: importing that library, and pandas with it, would take longer than reading all images."""
    (folder,) = importlib.util.find_spec("sklearn").submodule_search_locations
    return Path(folder) / "datasets" / "data" / "digits.csv.gz"
