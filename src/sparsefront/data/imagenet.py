"""ImageNet: ILSVRC 2012."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from sparsefront.artifacts.content_digest import listing_digest
from sparsefront.data.base import DataInfo, Dataset, TokenizerFrom, held_out, local_path
from sparsefront.data.image_folder import Files, class_names, image_files, image_loaders, require_same_classes
from sparsefront.errors import InvalidSetting
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    from sparsefront.data.split_data import SplitData

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
        classes = len(class_names(self._folder("train")))
        return DataInfo(kind="image_classification", num_classes=classes, image_size=self.image_size, channels=3)

    def check(self) -> None:
        folders = {part: self._folder(part) for part in ("train", "val")}
        require_same_classes(folders, path=self.path, expected=EXPECTED)

    def content(self) -> dict[str, Any]:
        """Names and sizes of the files only: reading 150 GB would take longer than the run."""
        return {part: listing_digest(self._folder(part)) for part in ("train", "val")}

    def data_module(
        self, *, batch_size: int, seed: int, cache_dir: Path, tokenizer_from: TokenizerFrom | None = None
    ) -> "SplitData":
        return image_loaders(
            self._split, image_size=self.image_size, batch_size=batch_size, seed=seed, num_workers=self.num_workers
        )

    def _split(self, split: str) -> Files:
        files = image_files(self._folder("val" if split == "test" else "train"), expected=EXPECTED)
        if split == "test":
            return files
        divided = held_out([label for _, label in files], self.valid_fraction, path=self.path)
        return [files[row] for row in divided[("train", "val").index(split)]]

    def _folder(self, part: str) -> Path:
        if self.path is None:
            raise InvalidSetting("path", None, f"ImageNet has no public download; set dataset.path to {EXPECTED}")
        folder = local_path(self.path, expected=EXPECTED) / part
        if not folder.is_dir():
            raise InvalidSetting("path", self.path, f"there is no {part}/ in it; set dataset.path to {EXPECTED}")
        return folder
