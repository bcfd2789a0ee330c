"""GLUE: tasks with one label for one or two sentences."""

import json
import logging
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from sparsefront.artifacts.content_digest import file_digest
from sparsefront.data.base import DataInfo, Division, hold_out, link, local_path
from sparsefront.data.download import build_once, hub_split
from sparsefront.data.text_dataset import HubTextDataset
from sparsefront.data.text_files import utf8_text
from sparsefront.errors import InvalidSetting
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from sparsefront.data.text import EncodedText


@dataclass(frozen=True)
class GlueTask:
    """One task in its original TSV layout and on the hub.

    Attributes:
        folder: in the original distribution.
        first, second: columns of the sentences, by header, or by position if the file has no header.
        label: column of the label.
        label_names: class names in the TSV, in class order; empty for a score.
        class_names: class names on the hub, if they differ from the TSV; empty otherwise, or for a score.
        hub_first, hub_second: columns of the sentences on the hub, where labels are already integers.
        metrics: of the task; the first is tracked.
        dev_file: without suffix; labels of test files were never published, so results are reported on dev.
        hub_dev: name of the split on the hub.
        skips_broken_rows: the original file has rows with too few fields, which all loaders skip.
    """

    folder: str
    first: str | int
    second: str | int | None
    label: str | int
    label_names: tuple[str, ...]
    hub_first: str
    hub_second: str | None
    metrics: tuple[str, ...] = ("accuracy",)
    dev_file: str = "dev"
    hub_dev: str = "validation"
    skips_broken_rows: bool = False
    class_names: tuple[str, ...] = ()

    @property
    def has_header(self) -> bool:
        return isinstance(self.first, str)

    @property
    def num_classes(self) -> int:
        """Number of classes; 1 if the label is a score."""
        return max(1, len(self.label_names))


BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")

GLUE_TASKS = {
    "cola": GlueTask(
        "CoLA",
        3,
        None,
        1,
        BINARY,
        "sentence",
        None,
        metrics=("matthews_correlation", "accuracy"),
        class_names=("unacceptable", "acceptable"),
    ),
    "sst2": GlueTask(
        "SST-2", "sentence", None, "label", BINARY, "sentence", None, class_names=("negative", "positive")
    ),
    "mrpc": GlueTask(
        "MRPC",
        "#1 String",
        "#2 String",
        "Quality",
        BINARY,
        "sentence1",
        "sentence2",
        metrics=("accuracy", "f1"),
        class_names=("not_equivalent", "equivalent"),
    ),
    "qqp": GlueTask(
        "QQP",
        "question1",
        "question2",
        "is_duplicate",
        BINARY,
        "question1",
        "question2",
        metrics=("accuracy", "f1"),
        skips_broken_rows=True,
        class_names=("not_duplicate", "duplicate"),
    ),
    "stsb": GlueTask(
        "STS-B", "sentence1", "sentence2", "score", (), "sentence1", "sentence2", metrics=("pearson", "spearman")
    ),
    "mnli": GlueTask(
        "MNLI",
        "sentence1",
        "sentence2",
        "gold_label",
        ("entailment", "neutral", "contradiction"),
        "premise",
        "hypothesis",
        dev_file="dev_matched",
        hub_dev="validation_matched",
    ),
    "qnli": GlueTask("QNLI", "question", "sentence", "label", ENTAILMENT, "question", "sentence"),
    "rte": GlueTask("RTE", "sentence1", "sentence2", "label", ENTAILMENT, "sentence1", "sentence2"),
}


log = logging.getLogger(__name__)
HUB_ID = "nyu-mll/glue"


class GlueRow(NamedTuple):
    """One example; `label` is a class index, or a score for regression."""

    first: str
    second: str | None
    label: int | float


def columns_of(file: Path, task: GlueTask) -> dict[str | int, int]:
    """Position of each column that the task needs.

    Raises:
        InvalidSetting: the header lacks one, because the file is of another task or layout; or it is not UTF-8.
    """
    needed = [column for column in (task.first, task.second, task.label) if column is not None]
    with utf8_text(file) as lines:
        header: list[str] | range = next(lines, "").rstrip("\r\n").split("\t")
    if not task.has_header:
        header = range(len(header))
    missing = [str(column) for column in needed if column not in header]
    if missing:
        raise InvalidSetting(
            "path",
            file,
            f"its first line has no column {', '.join(missing)}: not the original GLUE layout of {task.folder}",
        )
    return {column: header.index(column) for column in needed}


def read_tsv(file: Path, task: GlueTask) -> list[GlueRow]:
    """All rows of a file in the original layout.

    Fields are separated by tabs only, and quotes are plain text, so lines are simply split.

    Raises:
        InvalidSetting: a row with too few fields, an unknown label or invalid UTF-8 (gives the line); no rows.
    """
    columns = columns_of(file, task)
    rows, broken = [], 0
    with utf8_text(file) as lines:
        for number, line in enumerate(lines, start=1):
            if (task.has_header and number == 1) or not line.strip():
                continue
            fields = line.rstrip("\r\n").split("\t")
            if len(fields) > max(columns.values()):
                rows.append(_row(fields, columns, task, f"{file} line {number}"))
            elif task.skips_broken_rows:
                broken += 1
            else:
                raise InvalidSetting(
                    "path",
                    file,
                    f"line {number} has {len(fields)} fields, {max(columns.values()) + 1} are needed by the "
                    f"original GLUE layout of {task.folder}",
                )
    if broken:
        log.info("%s: left out %d rows with too few fields", file, broken)
    if not rows:
        raise InvalidSetting("path", file, "has no rows" + (", only a header" if task.has_header else ""))
    return rows


def _row(fields: list[str], columns: dict[str | int, int], task: GlueTask, where: str) -> GlueRow:
    label = fields[columns[task.label]]
    try:
        value = task.label_names.index(label) if task.label_names else float(label)
        if not math.isfinite(value):
            raise ValueError(label)
    except ValueError as error:
        allowed = ", ".join(task.label_names) or "a number"
        raise InvalidSetting("path", where, f"label {label!r} is none of {task.folder}'s: {allowed}") from error
    return GlueRow(fields[columns[task.first]], None if task.second is None else fields[columns[task.second]], value)


def write_hub_rows(file: Path, name: str, task: GlueTask, *, part: str, revision: str) -> None:
    """Download `part` (`train` or `dev`) of task `name` and write it to `file`, one JSON list per line."""
    rows = hub_split(
        HUB_ID,
        config=name,
        revision=revision,
        split="train" if part == "train" else task.hub_dev,
        missing=f"set dataset.path to a folder with the original GLUE files (train.tsv, {task.dev_file}.tsv)",
    )
    with file.open("w", encoding="utf-8") as lines:
        for row in rows:
            second = None if task.hub_second is None else row[task.hub_second]
            lines.write(json.dumps([row[task.hub_first], second, row["label"]], ensure_ascii=False) + "\n")


def read_hub_rows(file: Path) -> Iterator[GlueRow]:
    """The rows written by `write_hub_rows`."""
    with file.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield GlueRow(*json.loads(line))


FEWEST_WORDS = 3  # of an SST-2 phrase that identifies its sentence; "the film" occurs in hundreds


def find_contained(phrases: Sequence[str]) -> Iterator[list[str]]:
    """For each phrase, all phrases that it contains as consecutive words, including itself.

    Phrases of fewer than `FEWEST_WORDS` words are ignored: nothing contains them, and they contain nothing.
    """
    spaced = [" ".join(phrase.split()) for phrase in phrases]
    known = {phrase for phrase in spaced if phrase.count(" ") >= FEWEST_WORDS - 1}
    for phrase in spaced:
        blanks = [place for place, letter in enumerate(phrase) if letter == " "]
        begins, ends = [0, *(blank + 1 for blank in blanks)], [*blanks, len(phrase)]
        parts = (phrase[begin:end] for word, begin in enumerate(begins) for end in ends[word + FEWEST_WORDS - 1 :])
        yield [part for part in parts if part in known]


def _phrases_of(rows: Sequence[GlueRow]) -> Iterator[list[str]]:
    return find_contained([row.first for row in rows])


def _sentences_of(rows: Sequence[GlueRow]) -> Iterator[list[str]]:
    """Both sentences by text, which is equivalent to MRPC's sentence ids and also available on the hub."""
    return ([text for text in (row.first, row.second) if text is not None] for row in rows)


def _texts_of(rows: Sequence[GlueRow]) -> Iterator[list[tuple[str, str | None]]]:
    return ([(row.first, row.second)] for row in rows)


_KEYS: dict[str, Callable[[Sequence[GlueRow]], Iterable[Iterable[Hashable]]]] = {
    "sst2": _phrases_of,
    "mrpc": _sentences_of,
}


@settings_class(kw_only=True)
class Glue(HubTextDataset):
    """One task of GLUE.

    The dev file is the test part here, since GLUE's own test labels were never published; `val` is held out of train. Related
    rows are held out together (`split_by`): SST-2's train contains phrases of its own sentences, so phrases of three words or
    more that contain one another stay together, and shorter ones, which occur in many sentences, are dropped; pairs of MRPC
    that share a sentence stay together, and so do equal texts of other tasks.
    Source: Wang et al., "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding", 2018.

    Attributes:
        task: one of `GLUE_TASKS`. MNLI is evaluated on the matched dev file.
        path: in the original layout: a folder that contains the task's folder (`SST-2/train.tsv`), or that folder itself.
        max_length: longer inputs are truncated, the longer sentence of a pair first.
        revision, pad, group_by_length: as in `HubTextDataset`.
    """

    name: ClassVar[str] = "glue"
    hub_id: ClassVar[str] = HUB_ID

    task: Literal[tuple(GLUE_TASKS)] = "sst2"

    @property
    def layout(self) -> GlueTask:
        return GLUE_TASKS[self.task]

    @property
    def grouping(self) -> str:
        return {"sst2": "sst2-phrases-1", "mrpc": "mrpc-sentences-1"}.get(self.task, "duplicates-1")

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics of the task; the first is tracked."""
        return self.layout.metrics

    @property
    def info(self) -> DataInfo:
        return DataInfo(
            "sequence_classification",
            self.layout.num_classes,
            sequence_length=self.max_length,
            class_names=self.layout.class_names or self.layout.label_names,
        )

    def check(self) -> None:
        if self.path is not None:
            for file in self.files().values():
                columns_of(file, self.layout)

    def content(self) -> dict[str, Any]:
        if self.path is None:
            return {"hub": HUB_ID, "task": self.task, "revision": self.revision}
        return {part: file_digest(file) for part, file in self.files().items()}

    def source(self, cache_dir: Path) -> "GlueSource":
        return GlueSource(self, cache_dir)

    def files(self) -> dict[str, Path]:
        """The local `train` and `dev` file."""
        names = {"train": "train.tsv", "dev": f"{self.layout.dev_file}.tsv"}
        expected = f"a folder with {' and '.join(names.values())} of {self.layout.folder}, or the folder above it"
        root = local_path(self.path, expected=expected)
        for folder in (root / self.layout.folder, root):
            files = {part: folder / name for part, name in names.items()}
            if all(file.is_file() for file in files.values()):
                return files
        raise InvalidSetting("path", self.path, f"does not have the files; set dataset.path to {expected}")


class GlueSource:
    """The sentences of one task, read on first use."""

    def __init__(self, settings: Glue, cache_dir: Path) -> None:
        self.name = f"glue-{settings.task}"
        self._settings = settings
        self._downloads = cache_dir / "downloads" / self.name

    def key(self) -> dict[str, Any]:
        settings = self._settings
        return {
            "content": settings.content(),
            "task": settings.task,
            "max_length": settings.max_length,
            "valid_fraction": settings.valid_fraction,
            "split": settings.split_version,
        }

    def texts(self) -> Iterator[str]:
        for row in self._train:
            yield row.first
            if row.second is not None:
                yield row.second

    def encode(self, split: str, tokenizer: "PreTrainedTokenizerFast") -> "EncodedText":
        import torch

        from sparsefront.data.text import tokenize

        rows = self._read("dev") if split == "test" else self._train
        if split != "test":
            rows = [rows[row] for row in self.division.part(split)]
        labels = torch.tensor(
            [row.label for row in rows], dtype=torch.int64 if self._settings.layout.label_names else None
        )
        firsts, seconds, _ = zip(*rows, strict=True)
        return tokenize(
            firsts,
            None if seconds[0] is None else seconds,
            tokenizer=tokenizer,
            max_length=self._settings.max_length,
            columns={"labels": labels},
            description=f"tokenizing {self.name} {split}",
        )

    @cached_property
    def division(self) -> Division:
        """Which rows of train are held out."""
        rows, settings = self._train, self._settings
        groups = link(_KEYS.get(settings.task, _texts_of)(rows)) if settings.keeps_groups else None
        strata = [row.label if settings.layout.label_names else 0 for row in rows]
        return Division(
            *hold_out(strata, settings.valid_fraction, groups=groups, path=settings.path), groups, len(rows)
        )

    @cached_property
    def _train(self) -> list[GlueRow]:
        return self._read("train")

    def _read(self, part: str) -> list[GlueRow]:
        settings = self._settings
        if settings.path is not None:
            return read_tsv(settings.files()[part], settings.layout)
        file = build_once(
            self._downloads / settings.revision / f"{part}.jsonl",
            lambda target: write_hub_rows(
                target, settings.task, settings.layout, part=part, revision=settings.revision
            ),
        )
        return list(read_hub_rows(file))
