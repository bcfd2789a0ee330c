"""What every data set answers, and the settings that all of them share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field, NonNegativeInt

from sparsefront.datasets.info import DataInfo
from sparsefront.declared.settings_class import settings_class
from sparsefront.errors import InvalidSetting

if TYPE_CHECKING:
    from pytorch_lightning import LightningDataModule

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
