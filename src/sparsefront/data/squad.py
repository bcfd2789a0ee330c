"""SQuAD v1.1: questions answered by a span of a paragraph."""

import json
import logging
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import Field, NonNegativeInt

from sparsefront.artifacts.content_digest import file_digest
from sparsefront.data.base import DataInfo, Division, hold_out, link, local_path
from sparsefront.data.download import build_once, hub_split
from sparsefront.data.text_dataset import HubTextDataset
from sparsefront.data.text_files import utf8_text
from sparsefront.errors import InvalidSetting
from sparsefront.progress import bar
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from sparsefront.data.text import EncodedText


HUB_ID = "rajpurkar/squad"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    """A span of the context: its text and the index of its first character."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """A question, its paragraph, the answers of all annotators (one in train), and the index of its article in the file."""

    id: str
    text: str
    context: str
    answers: tuple[Answer, ...]
    article: int = 0


def read_squad(file: Path) -> list[Question]:
    """All questions of a file in SQuAD v1.1 format.

    Raises:
        InvalidSetting: another format, or a question without an answer (SQuAD 2.0).
    """
    try:
        with utf8_text(file) as text:
            articles = enumerate(json.load(text)["data"])
        paragraphs = [(number, part) for number, article in articles for part in article["paragraphs"]]
        questions = [_question(number, part["context"], asked) for number, part in paragraphs for asked in part["qas"]]
    except InvalidSetting:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidSetting(
            "path", file, f"not in the form of SQuAD v1.1 ({type(error).__name__}: {error})"
        ) from error
    if not questions:
        raise InvalidSetting("path", file, "has no question")
    for question in questions:
        if not question.answers:
            raise InvalidSetting("path", file, f"question {question.id} has no answer: SQuAD v1.1 is needed, not 2.0")
    return questions


@lru_cache(8)
def _article_count(file: Path, content: str) -> int:
    """The number of articles of a file with this digest."""
    return len({question.article for question in read_squad(file)})


def _question(article: int, context: str, asked: dict) -> Question:
    answers = tuple(Answer(answer["text"], answer["answer_start"]) for answer in asked["answers"])
    return Question(asked["id"], asked["question"], context, answers, article)


MOST_WRONG = 0.5  # of the questions; from there on, the offsets themselves are something else


def answerable(questions: Sequence[Question], file: Path) -> list[Question]:
    """The questions with the answers that stand where the file says; those without any are left out, and counted in a warning.

    Raises:
        InvalidSetting: that is at least half of them.
    """
    usable = [
        replace(question, answers=right)
        for question in questions
        if (right := tuple(answer for answer in question.answers if _stands_in(question.context, answer)))
    ]
    if len(usable) < len(questions):
        reason = (
            f"the answers of {len(questions) - len(usable)} of {len(questions)} questions do not stand at their answer_start, "
            "counted in characters from 0"
        )
        if len(usable) <= (1 - MOST_WRONG) * len(questions):
            raise InvalidSetting("path", file, reason)
        log.warning("%s: %s: these questions are left out", file, reason)
    return usable


def _stands_in(context: str, answer: Answer) -> bool:
    whole = isinstance(answer.start, int) and answer.start >= 0
    return whole and answer.text != "" and context.startswith(answer.text, answer.start)


def write_hub_squad(file: Path, *, part: str, revision: str) -> None:
    """Download `part` (`train` or `dev`) and write it to `file` in the format of `read_squad`."""
    rows = hub_split(
        HUB_ID,
        config=None,
        revision=revision,
        split="train" if part == "train" else "validation",
        missing="set dataset.path to a folder with train*.json and dev*.json of SQuAD v1.1",
    )
    articles: dict[str, dict[str, list[dict]]] = {}
    for row in rows:
        answer_columns = row["answers"]
        answers = [
            {"text": text, "answer_start": start}
            for text, start in zip(answer_columns["text"], answer_columns["answer_start"], strict=True)
        ]
        by_context = articles.setdefault(row["title"], {})
        by_context.setdefault(row["context"], []).append(
            {"id": row["id"], "question": row["question"], "answers": answers}
        )
    data = [
        {"title": title, "paragraphs": [{"context": context, "qas": asked} for context, asked in by_context.items()]}
        for title, by_context in articles.items()
    ]
    file.write_text(json.dumps({"version": "1.1", "data": data}, ensure_ascii=False), encoding="utf-8")


SPECIAL_TOKENS = 4
"""Maximum number of special tokens that a tokenizer adds to a pair."""


def question_limit(max_length: int) -> int:
    """Maximum number of tokens of a question; longer ones are truncated to leave room for context."""
    return min(64, max_length // 3)


def largest_stride(max_length: int) -> int:
    """The largest overlap with which every window advances by a token even after the longest question."""
    return max_length - question_limit(max_length) - SPECIAL_TOKENS - 1


# Questions and their contexts as overlapping windows of tokens.
#
#     context      a b c d e f g h i j
#     window 0     CLS question SEP a b c d e f SEP
#     window 1     CLS question SEP e f g h i j SEP          stride = 2: two tokens are in both
#
# An answer that a window splits is complete in its neighbor, unless it is longer than the overlap.

CHUNK = 200
"""Questions per step of the progress bar."""
NO_CONTEXT = -1
"""Offset of tokens outside the context: the question and separators."""


def question_windows(
    questions: Sequence[Question],
    *,
    tokenizer: "PreTrainedTokenizerFast",
    max_length: int,
    stride: int,
    training: bool,
    description: str,
) -> "EncodedText":
    """All windows of all questions, in order.

    Args:
        max_length: tokens per window.
        stride: context tokens shared by neighboring windows, at most `largest_stride(max_length)`.
        training: rows then have `start_positions` and `end_positions`, the first and last token of the first answer, or
            0 (CLS) for both if the window does not contain all of it. Otherwise rows have `window` and `question` indices,
            and tokens have `offsets`: int32 [tokens, 2], character range [begin, end) of the context, or `NO_CONTEXT`.
        description: of the progress bar.
    Source: Devlin et al., "BERT", 2019, section 4.2 and its public code; here `stride` is the overlap of two windows,
    as in transformers; in that code it is the step between them.
    """
    import torch

    from sparsefront.data.text import EncodedText, row_starts

    ids, types, offsets = [], [], []
    asked: list[int] = []
    positions: list[tuple[int, int]] = []
    with bar(total=len(questions), description=description, unit="question") as shown:
        for begin in range(0, len(questions), CHUNK):
            chunk = questions[begin : begin + CHUNK]
            encoding = tokenizer(
                _truncate([question.text for question in chunk], tokenizer, question_limit(max_length)),
                [question.context for question in chunk],
                truncation="only_second",
                max_length=max_length,
                stride=stride,
                return_overflowing_tokens=True,
            )
            for window, sample in zip(encoding.encodings, encoding["overflow_to_sample_mapping"], strict=True):
                in_context = np.asarray([sequence == 1 for sequence in window.sequence_ids])
                spans = np.where(in_context[:, None], np.asarray(window.offsets, dtype=np.int32), np.int32(NO_CONTEXT))
                ids.append(np.asarray(window.ids, dtype=np.int32))
                types.append(np.asarray(window.type_ids, dtype=np.uint8))
                asked.append(begin + sample)
                if training:
                    positions.append(answer_positions(spans, chunk[sample].answers[0]))
                else:
                    offsets.append(spans)
            shown.update(len(chunk))

    tokens = {
        "input_ids": torch.from_numpy(np.concatenate(ids)),
        "token_type_ids": torch.from_numpy(np.concatenate(types)),
    }
    if training:
        begins, ends = torch.tensor(positions).unbind(1)
        columns = {"start_positions": begins.contiguous(), "end_positions": ends.contiguous()}
    else:
        tokens["offsets"] = torch.from_numpy(np.concatenate(offsets))
        columns = {"window": torch.arange(len(asked)), "question": torch.tensor(asked)}
    return EncodedText(tokens, row_starts([len(row) for row in ids]), columns)


def answer_positions(offsets: np.ndarray, answer: Answer) -> tuple[int, int]:
    """First and last token of an answer in one window, or (0, 0) if the window does not contain all of it.

    Args:
        offsets: [tokens, 2], `NO_CONTEXT` outside the context.
    """
    context = np.flatnonzero(offsets[:, 0] != NO_CONTEXT)
    begin, end = _visible(answer)
    if len(context) == 0 or offsets[context[0], 0] > begin or offsets[context[-1], 1] < end:
        return 0, 0
    first = np.searchsorted(offsets[context, 1], begin, side="right")  # first token that ends after the answer's start
    last = np.searchsorted(offsets[context, 0], end, side="left") - 1  # last token that starts before the answer's end
    return (int(context[first]), int(context[last])) if first <= last else (0, 0)


def _visible(answer: Answer) -> tuple[int, int]:
    """Character range [begin, end) of an answer without leading and trailing characters that tokenizers skip.

    No token covers a space or a separate combining accent, so at the end of a window an answer that ends in one would look
    truncated.
    """
    begin, end = 0, len(answer.text)
    while begin < end and _is_ignorable(answer.text[begin]):
        begin += 1
    while begin < end and _is_ignorable(answer.text[end - 1]):
        end -= 1
    return answer.start + begin, answer.start + end


def _is_ignorable(character: str) -> bool:
    return character.isspace() or unicodedata.category(character) in ("Mn", "Cc", "Cf")  # accents, control, joiners


def _truncate(texts: list[str], tokenizer: "PreTrainedTokenizerFast", limit: int) -> list[str]:
    """Truncate texts to `limit` tokens."""
    encoding = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
    return [
        text[: spans[limit - 1][1]] if len(spans) > limit else text
        for text, spans in zip(texts, encoding["offset_mapping"], strict=True)
    ]


ARTICLES = "squad-articles-1"  # split by whole articles
EXPECTED = "a folder with one train*.json and one dev*.json of SQuAD v1.1"


@settings_class(kw_only=True)
class Squad(HubTextDataset):
    """Questions about Wikipedia paragraphs: 87599 in the official train file, 10570 in dev.

    The dev file is the test part here, since the official test file was never published. `val` is held out of train by whole
    articles, so that held-out questions are about unseen articles; by paragraphs if the file has too few articles, and with
    `split_by=rows`.
    Source: Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text", 2016.

    Attributes:
        path: a folder with one train*.json and one dev*.json; None without the files below downloads from the hub.
        train_file, dev_file: the two files, instead of `path`, or to choose among several in a folder.
        max_length: tokens of a window: the question and a part of the context.
        stride: context tokens shared by neighboring windows.
        revision, pad, group_by_length: as in `HubTextDataset`.
    """

    name: ClassVar[str] = "squad"
    hub_id: ClassVar[str] = HUB_ID
    elsewhere: ClassVar[frozenset[str]] = HubTextDataset.elsewhere | {"train_file", "dev_file"}

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
    def grouping(self) -> str:
        few = not self.from_hub and self._articles() * self.valid_fraction < 1
        return "squad-paragraphs-1" if few else ARTICLES

    def _articles(self) -> int:
        """How many articles the local train file has."""
        file = self.files()["train"]
        return _article_count(file, file_digest(file))

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
        return {
            part: self._file(part, file_name)
            for part, file_name in (("train", self.train_file), ("dev", self.dev_file))
        }

    def _file(self, part: str, named: str | None) -> Path:
        if named is not None:
            return local_path(named, expected="a JSON file of SQuAD v1.1", key=f"{part}_file")
        if self.path is None:
            raise InvalidSetting(f"{part}_file", None, f"set it too, or set dataset.path to {EXPECTED}")
        matches = sorted(local_path(self.path, expected=EXPECTED).glob(f"{part}*.json"))
        if len(matches) != 1:
            raise InvalidSetting(
                "path",
                self.path,
                f"holds {len(matches)} files {part}*.json; set dataset.path to {EXPECTED}, "
                f"or name the file with dataset.{part}_file",
            )
        return matches[0]


class SquadSource:
    """The questions, read on first use."""

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
            "split": settings.split_version,
        }

    def texts(self) -> Iterator[str]:
        for question in self._train:
            yield question.text
        yield from dict.fromkeys(question.context for question in self._train)

    def questions(self, split: str) -> list[Question]:
        """The questions of a split, in the order of `question` in a batch."""
        if split == "test":
            return read_squad(self._file("dev"))  # scored by text: where it stands does not matter
        return [self._train[row] for row in self.division.part(split)]

    @cached_property
    def division(self) -> Division:
        """Which questions of train are held out."""
        fraction, path = self._settings.valid_fraction, self._settings.path
        groups = link((question.context,) for question in self._train)
        if not self._settings.keeps_groups:  # all paragraphs weigh the same, however many questions they have
            paragraphs = np.unique(groups)
            stay, held = (paragraphs[part] for part in hold_out([0] * len(paragraphs), fraction, path=path))
            train, val = (np.flatnonzero(np.isin(groups, part)) for part in (stay, held))
            return Division(train, val, groups, len(groups))
        if self._settings.grouping == ARTICLES:
            groups = link((question.article, question.context) for question in self._train)
        return Division(*hold_out([0] * len(groups), fraction, groups=groups, path=path), groups, len(groups))

    def encode(self, split: str, tokenizer: "PreTrainedTokenizerFast") -> "EncodedText":
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
        file = self._file("train")
        return answerable(read_squad(file), file)

    def _file(self, part: str) -> Path:
        settings = self._settings
        if not settings.from_hub:
            return settings.files()[part]
        return build_once(
            self._downloads / settings.revision / f"{part}-articles.json",
            lambda target: write_hub_squad(target, part=part, revision=settings.revision),
        )
