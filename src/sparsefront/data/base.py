"""What every data set answers, the facts that shape a network, and the part of train that is held out for choices."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import Field, NonNegativeInt

from sparsefront.errors import InvalidSetting
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    from pytorch_lightning import LightningDataModule

# What a network has to know of the data before it is built.


@dataclass(frozen=True)
class DataInfo:
    """The facts of a data set that shape a network; known without reading the data.

    Attributes:
        kind: the task that the data poses: `image_classification`, `sequence_classification` or `extractive_qa`.
        num_classes: outputs of the head; 1 means regression, 2 for `extractive_qa` (start and end).
        image_size: side of the square images in pixels; None for text.
        channels: color channels of the images; None for text.
        sequence_length: the most tokens that one input may have; None for images.
        class_names: one per class, in the order of the class numbers; empty where the data names none.

    Raises:
        InvalidSetting: names, but not one per class.
    """

    kind: str
    num_classes: int
    image_size: int | None = None
    channels: int | None = None
    sequence_length: int | None = None
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.class_names and len(self.class_names) != self.num_classes:
            allowed = f"there are {self.num_classes} classes: name each of them, or none"
            raise InvalidSetting("class_names", list(self.class_names), allowed)


# The part of train on which choices are made.

SPLIT_SEED = 0
"""Fixed, and not the run's seed: runs with different seeds are compared on the same held-out rows."""


def held_out(
    strata: Sequence[int] | np.ndarray, fraction: float, *, path: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Divide rows in two, each stratum in the same proportion.

    Args:
        strata: one number per row, its class; rows of one number are divided among themselves.
        fraction: share of each stratum that is held out, in [0, 1); 0 holds nothing out.
        path: where the rows come from, for the message.
    Returns:
        Row numbers (int64, ascending) that stay, and those held out; both hold at least one row, but for a fraction of 0.
    Raises:
        InvalidSetting: fewer than two rows; names `path`.
    """
    strata = np.asarray(strata)
    if len(strata) < 2:
        allowed = f"holds {len(strata)} rows to train on and to hold out: at least 2 are needed"
        raise InvalidSetting("path", path, allowed)
    if fraction == 0:
        return np.arange(len(strata)), np.arange(0)
    # NumPy keeps the stream of RandomState as it is for ever; those of newer generators may change with a version.
    shuffled = np.random.RandomState(SPLIT_SEED).permutation(len(strata))
    # A stable sort keeps the shuffled order within each stratum, so rows picked at even distances are a random sample
    # of it, and every stratum, also a small one, gives its share to within one row.
    by_stratum = shuffled[np.argsort(strata[shuffled], kind="stable")]
    held_so_far = np.floor(np.arange(len(strata) + 1) * fraction + 0.5)
    held = by_stratum[np.diff(held_so_far) > 0]
    held = np.sort(held if len(held) else shuffled[:1])
    return np.setdiff1d(np.arange(len(strata)), held), held


TokenizerFrom = Callable[[Iterable[str]], Any]
"""Gives a fast tokenizer; the texts are read only if it has to learn a vocabulary from them."""


@settings_class(kw_only=True)
class Dataset(ABC):
    """Settings of one data set.

    Attributes:
        num_workers: processes that prepare batches; 0 = the training process itself. The order does not depend on it.
        valid_fraction: share of train, in [0, 0.5], that is never trained on and on which choices are made. Which
            rows it is never changes: neither with the run's seed nor with the machine. 0 trains on all of train, as many
            papers do; then nothing can be chosen.
    """

    name: ClassVar[str]
    elsewhere: ClassVar[frozenset[str]] = frozenset({"path", "num_workers"})
    """Settings that do not change what is trained on: where it lies and how fast it is read."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions that decode the files: their versions are part of the keys, as those of torch and transformers are."""

    num_workers: NonNegativeInt = 0
    valid_fraction: Annotated[float, Field(ge=0, le=0.5, description="of train")] = 0.1

    @property
    @abstractmethod
    def info(self) -> DataInfo:
        """The facts that shape a network. Needs the files only where they decide, as the classes of a folder do."""

    @abstractmethod
    def check(self) -> None:
        """Raise for what can be seen to fail later, without the network and without reading much.

        Raises:
            InvalidSetting: a path that is missing or not laid out as expected, with what is expected.
        """

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """What identifies the raw data, JSON-able: digests of local files, or name and revision of a hosted copy."""

    @abstractmethod
    def data_module(
        self, *, batch_size: int, seed: int, cache_dir: Path, tokenizer_from: TokenizerFrom | None = None
    ) -> "LightningDataModule":
        """The loaders: `train` shuffled by `seed`, `val` = the held-out part of train, `test` for reporting only.

        Args:
            batch_size: rows of one batch, in all three loaders.
            seed: decides order and augmentation of train; the same seed gives the same batches, run after run.
            cache_dir: where downloads and tokenized text are kept for the next run.
            tokenizer_from: needed by text, ignored by images.
        """

    def at_commit(self, cache_dir: Path) -> Self:
        """These settings with a branch or tag of a hub replaced by the commit that it stands for; others as they are.

        Args:
            cache_dir: as in `data_module`.
        Raises:
            InvalidSetting: no such revision, or no host that has it can be reached.
        """
        return self

    def fingerprint(self) -> dict[str, Any]:
        """Everything that the batches depend on apart from batch size, seed and tokenizer; JSON-able."""
        settings = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.elsewhere}
        return {"name": self.name, "content": self.content(), "settings": settings}


def local_path(path: str, *, expected: str, key: str = "path") -> Path:
    """The path with `~` filled in.

    Raises:
        InvalidSetting: nothing is there; says what to set.
    """
    found = Path(path).expanduser()
    if not found.exists():
        raise InvalidSetting(key, path, f"does not exist; set dataset.{key} to {expected}")
    return found
