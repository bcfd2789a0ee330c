"""Settings shared by all text sets."""

from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, PositiveInt

from sparsefront.data.base import Dataset, Division, TokenizerFrom
from sparsefront.data.download import hub_commit
from sparsefront.errors import InvalidSetting
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    from sparsefront.data.text import TextData, TextSource


@settings_class(kw_only=True)
class TextDataset(Dataset):
    """Settings of one text set.

    Attributes:
        path: local files, as described by the data set.
        max_length: maximum number of tokens of an input.
        pad: to the `longest` row of each batch, or always to `max_length`.
        pad_multiple: rounds the longest row up to a multiple of it; fewer lengths are fewer CUDA graphs to capture.
        group_by_length: train on batches of inputs of similar length, with less padding.
    """

    libraries: ClassVar[tuple[str, ...]] = ("tokenizers",)

    path: str | None = None
    max_length: Annotated[int, Field(ge=8, description="tokens")] = 128
    pad: Literal["longest", "max_length"] = "longest"
    pad_multiple: PositiveInt = 8
    group_by_length: bool = False

    def __post_init__(self) -> None:
        if self.group_by_length and self.pad == "max_length":
            raise InvalidSetting("group_by_length", True, "needs pad=longest: with max_length all inputs are as long")

    @abstractmethod
    def source(self, cache_dir: Path) -> "TextSource":
        """The raw text; downloads go into the folder `downloads` of the cache."""

    def unlabeled_source(self) -> "TextSource | None":
        """Rows without a label, added to train, as the source's split `unsup`; None adds none."""
        return None

    def division(self, cache_dir: Path) -> Division:
        return self.source(Path(cache_dir)).division

    def data_module(
        self, *, batch_size: int, seed: int, cache_dir: Path, tokenizer_from: TokenizerFrom | None = None
    ) -> "TextData":
        from sparsefront.data.text import TextData

        return TextData(
            self.source(Path(cache_dir)),
            unlabeled=self.unlabeled_source(),
            tokenizer_from=tokenizer_from,
            cache_dir=Path(cache_dir),
            max_length=self.max_length,
            pad=self.pad,
            multiple=self.pad_multiple,
            batch_size=batch_size,
            seed=seed,
            group_by_length=self.group_by_length,
            holds_out=self.valid_fraction > 0,
            num_workers=self.num_workers,
        )


@settings_class(kw_only=True)
class HubTextDataset(TextDataset):
    """Settings of one text set that can be downloaded.

    Attributes:
        path: None downloads from the Hugging Face hub, once.
        revision: branch, tag or commit on the hub. Runs are keyed by the commit; set it to use the same elsewhere.
    """

    hub_id: ClassVar[str]
    """owner/name of the data on the hub."""
    elsewhere: ClassVar[frozenset[str]] = TextDataset.elsewhere | {"revision"}  # `content` names it for hub data

    revision: str = "main"

    @property
    def from_hub(self) -> bool:
        """Whether the data is downloaded, because no local files are set."""
        return self.path is None

    def at_commit(self, cache_dir: Path) -> Self:
        if not self.from_hub:
            return self
        commit = hub_commit(
            self.hub_id, self.revision, cache_dir=cache_dir, missing="set dataset.path to a folder with its files"
        )
        return replace(self, revision=commit)
