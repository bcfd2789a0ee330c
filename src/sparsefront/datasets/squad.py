"""SQuAD v1.1: a question and a paragraph, the answer being a stretch of the paragraph."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, NonNegativeInt

from sparsefront.artifacts.content_digest import file_digest
from sparsefront.datasets.base import local_path
from sparsefront.datasets.build_once import build_once
from sparsefront.datasets.held_out import held_out
from sparsefront.datasets.info import DataInfo
from sparsefront.datasets.squad_json import HUB_ID, Question, largest_stride, read_squad, write_hub_squad
from sparsefront.datasets.text_dataset import TextDataset
from sparsefront.declared.settings_class import settings_class
from sparsefront.errors import InvalidSetting

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from sparsefront.datasets.encoded_text import EncodedText

EXPECTED = "a folder with one train*.json and one dev*.json of SQuAD v1.1"


@settings_class(kw_only=True)
class Squad(TextDataset):
    """Questions that Wikipedia paragraphs answer: 87599 in the official train file, 10570 in dev.

    The dev file is the test part here, since the official test file was never published. `val` is held out of train by
    whole paragraphs, so that no held-out question is asked of a paragraph that was trained on.
    Source: Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text", 2016.

    Attributes:
        path: a folder with one train*.json and one dev*.json; None and no files named below takes the hub's copy.
        train_file, dev_file: where the two lie, instead of `path`, or where a folder holds several.
        max_length: tokens of a window: the question and a part of the context.
        stride: context tokens that two neighboring windows share.
        revision, pad, group_by_length: as in `TextDataset`.
    """

    name: ClassVar[str] = "squad"
    hub_id: ClassVar[str] = HUB_ID
    elsewhere: ClassVar[frozenset[str]] = TextDataset.elsewhere | {"train_file", "dev_file"}

    train_file: str | None = None
    dev_file: str | None = None
    max_length: Annotated[int, Field(ge=32, description="tokens: a question and some context")] = 384
    stride: NonNegativeInt = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        largest = largest_stride(self.max_length)
        if self.stride > largest:
            raise InvalidSetting(
                "stride", self.stride, f"0 to {largest} shared tokens with max_length={self.max_length}"
            )

    @property
    def info(self) -> DataInfo:
        return DataInfo("extractive_qa", num_classes=2, sequence_length=self.max_length)

    def check(self) -> None:
        if not self.from_hub:
            self.files()

    @property
    def from_hub(self) -> bool:
        return self.path is None and self.train_file is None and self.dev_file is None

    def content(self) -> dict[str, Any]:
        if self.from_hub:
            return {"hub": HUB_ID, "revision": self.revision}
        return {part: file_digest(file) for part, file in self.files().items()}

    def source(self, cache_dir: Path) -> "SquadSource":
        return SquadSource(self, cache_dir)

    def files(self) -> dict[str, Path]:
        """The local `train` and `dev` file."""
        return {part: self._file(part, named) for part, named in (("train", self.train_file), ("dev", self.dev_file))}

    def _file(self, part: str, named: str | None) -> Path:
        if named is not None:
            return local_path(named, expected="a JSON file of SQuAD v1.1", key=f"{part}_file")
        if self.path is None:
            raise InvalidSetting(f"{part}_file", None, f"set it too, or set dataset.path to {EXPECTED}")
        found = sorted(local_path(self.path, expected=EXPECTED).glob(f"{part}*.json"))
        if len(found) != 1:
            raise InvalidSetting(
                "path",
                self.path,
                f"holds {len(found)} files {part}*.json; set dataset.path to {EXPECTED}, "
                f"or name the file with dataset.{part}_file",
            )
        return found[0]


class SquadSource:
    """The questions, read when they are first needed."""

    name = "squad"

    def __init__(self, settings: Squad, cache_dir: Path) -> None:
        self._settings = settings
        self._downloads = cache_dir / "downloads" / self.name

    def key(self) -> dict[str, Any]:
        settings = self._settings
        return {
            "content": settings.content(),
            "max_length": settings.max_length,
            "stride": settings.stride,
            "valid_fraction": settings.valid_fraction,
        }

    def texts(self) -> Iterator[str]:
        for question in self._train:
            yield question.text
        yield from dict.fromkeys(question.context for question in self._train)

    def questions(self, split: str) -> list[Question]:
        """The questions of a split; `question` in a batch counts them from 0."""
        if split == "test":
            return self._read("dev")
        contexts = list(dict.fromkeys(question.context for question in self._train))
        chosen = held_out([0] * len(contexts), self._settings.valid_fraction, path=self._settings.path)
        chosen = chosen[("train", "val").index(split)]
        kept = {contexts[number] for number in chosen}
        return [question for question in self._train if question.context in kept]

    def encode(self, split: str, tokenizer: "PreTrainedTokenizerFast") -> "EncodedText":
        from sparsefront.datasets.squad_windows import question_windows

        return question_windows(
            self.questions(split),
            tokenizer=tokenizer,
            max_length=self._settings.max_length,
            stride=self._settings.stride,
            training=split == "train",
            description=f"tokenizing {self.name} {split}",
        )

    @cached_property
    def _train(self) -> list[Question]:
        return self._read("train")

    def _read(self, part: str) -> list[Question]:
        settings = self._settings
        if not settings.from_hub:
            return read_squad(settings.files()[part])
        file = build_once(
            self._downloads / settings.revision / f"{part}.json",
            lambda target: write_hub_squad(target, part=part, revision=settings.revision),
        )
        return read_squad(file)
