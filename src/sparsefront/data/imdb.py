"""IMDb: whole film reviews in two classes, from files with one JSON object per line."""

import json
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self

import numpy as np
from pydantic import Field

from sparsefront.artifacts.content_digest import file_digest, load_or_make
from sparsefront.data.base import DataInfo, Division, hold_out, link, local_path
from sparsefront.data.text_dataset import TextDataset
from sparsefront.data.text_files import utf8_text
from sparsefront.errors import InvalidSetting
from sparsefront.settings_class import Share, settings_class

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from sparsefront.data.text import EncodedText

log = logging.getLogger(__name__)

CLASSES = ("negative", "positive")
ROWS = {"train": 25_000, "test": 25_000, "unsup": 50_000}
"""Of each file of the original."""
NO_LABEL = -100
CHECKS = "imdb-checks-1"
"""Another number where `ImdbRows.read` refuses something else, so that all files are checked again."""
EXPECTED = (
    "a folder with train.jsonl and test.jsonl: objects with text, label (1 positive, 0 negative) and, where the text also "
    "stands in test, in_test"
)
LINE_BREAK = "<br />"


class Review(NamedTuple):
    """One row; `label`: `NO_LABEL` in unsup; `left_out`: the same text also stands in test or, for a row of unsup, in train."""

    text: str
    label: int
    left_out: bool

    @property
    def words(self) -> str:
        """The text without case and punctuation."""
        return " ".join(re.findall(r"\w+", self.text.lower()))


@settings_class(kw_only=True)
class Imdb(TextDataset):
    """25,000 reviews for training and 25,000 for reporting, half of each class.

    Rows of train that are flagged `in_test` are neither trained on nor held out; rows with the same words are held out
    together. With `unlabeled`, the recovery's train also has the rows of unsup.jsonl, 50,000 reviews without a label, except
    those flagged `in_test` or `in_train`; the dense network is trained on labeled rows alone. Line breaks of the web page
    (`<br />`) become spaces.
    Source: Maas et al., "Learning Word Vectors for Sentiment Analysis", 2011.

    Attributes:
        path: folder with the files (see `EXPECTED`); required.
        head_share: a text longer than `max_length` keeps this share of the tokens from its beginning and the others from its
            end, where most reviews give their verdict. 0.25 is the 128 + 382 of Sun et al., "How to Fine-Tune BERT for Text
            Classification?", 2019, the best of the cuts that they compare.
        unlabeled: whether rows without a label are added, for a recovery with a teacher.
        complete: refuse files with another number of rows than the original's.
        max_length, pad, pad_multiple, group_by_length: as in `TextDataset`.
    """

    name: ClassVar[str] = "imdb"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)

    max_length: Annotated[int, Field(ge=8, description="tokens")] = 256
    head_share: Share = 0.25
    unlabeled: bool = False
    complete: bool = True
    valid_fraction: Annotated[float, Field(ge=0, le=0.5, description="of train")] = 0.201

    @property
    def grouping(self) -> str:
        return "imdb-words-1"

    @property
    def info(self) -> DataInfo:
        return DataInfo("sequence_classification", 2, sequence_length=self.max_length, class_names=CLASSES)

    def check(self) -> None:
        """Checks every line, of files that no earlier run has checked, and says how many are left out of train."""
        others = {"train": "test", "unsup": "train or test"}
        for split in self.splits:
            key = f"{CHECKS} {split} complete={self.complete} {file_digest(self.file(split))}"
            rows, left_out = load_or_make(key, partial(self._count, split))
            if split in others:
                log.info("imdb: %d of %d rows of %s are left out: also in %s", left_out, rows, split, others[split])

    def _count(self, split: str) -> tuple[int, int]:
        """Rows of a file, and how many of them are left out."""
        reviews = ImdbRows(self).read(split)
        return len(reviews), sum(review.left_out for review in reviews)

    def content(self) -> dict[str, Any]:
        return {split: file_digest(self.file(split)) for split in self.splits}

    def drop_unlabeled(self) -> Self:
        return replace(self, unlabeled=False) if self.unlabeled else self

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the files that are read."""
        return ("train", "test", "unsup") if self.unlabeled else ("train", "test")

    def source(self, cache_dir: Path) -> "ImdbRows":
        return ImdbRows(self.drop_unlabeled())  # so that runs without these rows tokenize nothing anew

    def unlabeled_source(self) -> "ImdbRows | None":
        return ImdbRows(self) if self.unlabeled else None

    def file(self, split: str) -> Path:
        """The file of `train`, `test` or `unsup`."""
        if self.path is None:
            raise InvalidSetting("path", None, f"is required: {EXPECTED}")
        file = local_path(self.path, expected=EXPECTED) / f"{split}.jsonl"
        if not file.is_file():
            raise InvalidSetting("path", self.path, f"has no {file.name}; it must be {EXPECTED}")
        return file


class ImdbRows:
    """The reviews, read on first use."""

    def __init__(self, settings: Imdb) -> None:
        self.name = settings.name
        self._settings = settings
        self._reviews: dict[str, list[Review]] = {}

    def key(self) -> dict[str, Any]:
        names = ("max_length", "head_share", "unlabeled", "valid_fraction")
        settings = {name: getattr(self._settings, name) for name in names}
        return {"content": self._settings.content(), **settings, "split": self._settings.split_version}

    def texts(self) -> Iterator[str]:
        reviews = self.read("train")
        return (reviews[row].text for row in np.sort(np.concatenate([self.division.train, self.division.val])))

    def encode(self, split: str, tokenizer: "PreTrainedTokenizerFast") -> "EncodedText":
        import torch

        from sparsefront.data.text import tokenize

        reviews = self.read("train" if split == "val" else split)
        if split in ("train", "val"):
            reviews = [reviews[row] for row in self.division.part(split)]
        elif split == "unsup":
            reviews = [review for review in reviews if not review.left_out]
        return tokenize(
            [review.text for review in reviews],
            None,
            tokenizer=tokenizer,
            max_length=self._settings.max_length,
            columns={"labels": torch.tensor([review.label for review in reviews])},
            description=f"tokenizing {self.name} {split}",
            head_share=self._settings.head_share,
        )

    @cached_property
    def division(self) -> Division:
        """Which rows of train are held out."""
        reviews, settings = self.read("train"), self._settings
        groups = None
        if settings.keeps_groups:
            groups = link([] if review.left_out else [review.words] for review in reviews)
        usable = np.flatnonzero([not review.left_out for review in reviews])
        parts = hold_out(
            [reviews[row].label for row in usable],
            settings.valid_fraction,
            groups=None if groups is None else groups[usable],
            path=settings.path,
        )
        return Division(*(usable[part] for part in parts), groups, len(reviews))

    def read(self, split: str) -> list[Review]:
        """The rows of `train`, `test` or `unsup`, in file order.

        Raises:
            InvalidSetting: a file or rows are missing, or a line is no such object (gives its number).
        """
        if split not in self._reviews:
            file = self._settings.file(split)
            with utf8_text(file) as lines:
                numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
            reviews = [_review(line, f"line {number}", file, labeled=split != "unsup") for number, line in numbered]
            if not reviews:
                raise InvalidSetting("path", file, "has no rows")
            if self._settings.complete and len(reviews) != ROWS[split]:
                reason = f"has {len(reviews)} of {ROWS[split]} rows: is the file cut short?"
                raise InvalidSetting("path", file, f"{reason} dataset.complete=false takes it as it is")
            self._reviews[split] = reviews
        return self._reviews[split]


def _review(line: str, place: str, file: Path, *, labeled: bool) -> Review:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidSetting("path", file, f"{place} is no JSON ({error.msg}): is the file cut short?") from error
    row = row if type(row) is dict else {}
    text, label = row.get("text"), row.get("label") if labeled else NO_LABEL
    if type(text) is not str or not text.strip():
        raise InvalidSetting("path", file, f"{place} has no text; it must be in {EXPECTED}")
    if labeled and (type(label) is not int or label not in (0, 1)):
        raise InvalidSetting("path", file, f"{place} has the label {label!r}: 1 (positive) or 0 (negative)")
    flags = {name: row.get(name, False) for name in ("in_test", "in_train")}
    for name, flag in flags.items():
        if type(flag) is not bool:
            raise InvalidSetting("path", file, f"{place} has {name}={flag!r}: true or false")
    return Review(text.replace(LINE_BREAK, " "), label, any(flags.values()))
