"""Labeled text from the Hugging Face hub or a local folder, with configurable columns."""

import math
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sparsefront.artifacts.content_digest import digest, file_digest, path_digest
from sparsefront.data.base import DataInfo, Division, held_out, linked, local_path
from sparsefront.data.download import hub_split, hub_split_names
from sparsefront.data.text_dataset import HubTextDataset
from sparsefront.data.text_files import SUFFIXES, Table, read_table, table_files
from sparsefront.errors import InvalidSetting, first_line
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from sparsefront.data.text import EncodedText

EXPECTED = "a folder with train and test as .csv, .tsv, .jsonl or .parquet files, or written by datasets' save_to_disk"
REPORTED = ("test", "validation", "dev", "valid")  # reporting splits; the first that exists


@settings_class(kw_only=True)
class TextColumns(HubTextDataset):
    """One or two texts and a label per row, from `hub` or from `path`.

    Equal texts are held out together. Labels may be strings, numbers or datasets' ClassLabel: classes are in ClassLabel's
    order, else sorted, by value if all are numbers. Fractional labels make it a regression. In .csv and .tsv files, an empty
    field has no value, and any other is text ("NA", "01"); in .tsv files, so are quotation marks.

    Attributes:
        path: see `EXPECTED`; exclusive with `hub`.
        hub: owner/name on the hub, or name alone.
        config: its configuration.
        text, text_pair, label: columns; text_pair=null for single texts.
        train_split, test_split: names of the splits; test_split=null uses the first that exists of test, validation, dev,
            valid.
        revision, pad, group_by_length, max_length: as in `HubTextDataset`.
    """

    name: ClassVar[str] = "text"

    hub: str | None = None
    config: str | None = None
    text: str = "text"
    text_pair: str | None = None
    label: str = "label"
    train_split: str = "train"
    test_split: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path is not None and self.hub is not None:
            raise InvalidSetting("hub", self.hub, f"dataset.path={self.path} is set too: choose one of the two")

    @property
    def hub_id(self) -> str:  # type: ignore[override]  # a setting here, a constant of other text sets
        """owner/name of the data on the hub."""
        if self.hub is None:
            allowed = f"set dataset.path to {EXPECTED}, or dataset.hub to owner/name on the hub"
            raise InvalidSetting("path", None, allowed)
        return self.hub

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics for the labels; the first is tracked."""
        return ("accuracy", "f1") if self.info.num_classes == 2 else ("accuracy",) if self.class_names else REGRESSION

    @property
    def grouping(self) -> str:
        return "duplicates-1"

    @property
    def info(self) -> DataInfo:
        """Reads the labels, whose classes determine the head."""
        names = self.class_names
        return DataInfo(
            "sequence_classification", max(1, len(names)), sequence_length=self.max_length, class_names=names
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """In class order; empty for a regression."""
        return self._rows.class_names

    def check(self) -> None:
        """Reads the splits' columns and labels."""
        if self.path is None:
            _ = self.hub_id  # required in this case
        else:
            _ = self.class_names
            self._rows.read(self._rows.reported)

    def content(self) -> dict[str, Any]:
        if self.path is None:
            return {"hub": self.hub_id, "config": self.config, "revision": self.revision}
        return {"files": self._rows.digest()}

    def source(self, cache_dir: Path) -> "TextRows":
        return self._rows

    @cached_property
    def _rows(self) -> "TextRows":
        return TextRows(self)


REGRESSION = ("pearson", "spearman")
LABELS = str | bool | int | float


class TextRows:
    """The rows of one text set, read on first use."""

    def __init__(self, settings: TextColumns) -> None:
        self.name = "text"
        self._settings = settings
        self._tables: dict[str, dict[str, Sequence[Any]]] = {}
        self._digests: dict[str, list[str]] = {}  # split -> of its files as they were read
        self._declared: dict[str, Sequence[str]] = {}  # split -> class names of its ClassLabel

    def key(self) -> dict[str, Any]:
        names = ("text", "text_pair", "label", "train_split", "test_split", "max_length", "valid_fraction")
        settings = {name: getattr(self._settings, name) for name in names}
        return {"content": self._settings.content(), **settings, "split": self._settings.split_version}

    def digest(self) -> str:
        """Of the local files that are read."""
        if self._saved:
            return path_digest(self._folder)
        return digest([self._digests_of(split) for split in (self._settings.train_split, self.reported)])

    def _digests_of(self, split: str) -> list[str]:
        """Digests of the files of a split."""
        return (
            [] if self._settings.path is None or self._saved else [file_digest(file) for file in self._files_of(split)]
        )

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Classes of train; empty if labels are fractional.

        Raises:
            InvalidSetting: fractional numbers among other texts.
        """
        settings = self._settings
        labels = dict.fromkeys(self.read(settings.train_split)[settings.label])
        names = self._declared.get(settings.train_split)
        if names:
            return tuple(names)
        numbers = {label: _number(label) for label in labels}
        if all(number is None or number.is_integer() for number in numbers.values()):
            by_value = None not in numbers.values()
            return tuple(sorted(labels, key=lambda label: (numbers[label], label) if by_value else label))
        other = next((label for label, number in numbers.items() if number is None), None)
        if other is not None:
            score = next(label for label, number in numbers.items() if number is not None and not number.is_integer())
            allowed = (
                f"holds {other!r} and {score!r}: all labels are numbers in a regression, and none is fractional else"
            )
            raise InvalidSetting("label", settings.label, allowed)
        return ()

    @cached_property
    def reported(self) -> str:
        """The reporting split."""
        if self._settings.test_split is not None:
            return self._settings.test_split
        reporting_split = next((split for split in REPORTED if split in self._split_names), None)
        if reporting_split is None:
            allowed = f"there is none of {', '.join(REPORTED)}; name one of {', '.join(self._split_names)}"
            raise InvalidSetting("test_split", None, allowed)
        return reporting_split

    def texts(self) -> Iterator[str]:
        rows = self.read(self._settings.train_split)
        for column in filter(None, (self._settings.text, self._settings.text_pair)):
            yield from rows[column]

    def encode(self, split: str, tokenizer: "PreTrainedTokenizerFast") -> "EncodedText":
        import torch

        from sparsefront.data.text import tokenized

        settings = self._settings
        rows = self.read(self.reported if split == "test" else settings.train_split)
        labels = self._labels(rows)
        chosen = range(len(labels)) if split == "test" else self.division.part(split).tolist()
        firsts, *seconds = (
            [rows[column][row] for row in chosen]
            for column in (settings.text, settings.text_pair)
            if column is not None
        )
        dtype = torch.int64 if self.class_names else torch.float32
        return tokenized(
            firsts,
            seconds[0] if seconds else None,
            tokenizer=tokenizer,
            max_length=settings.max_length,
            columns={"labels": torch.tensor([labels[row] for row in chosen], dtype=dtype)},
            description=f"tokenizing {settings.path or settings.hub} {split}",
        )

    @cached_property
    def division(self) -> Division:
        """Which rows of train are held out."""
        settings = self._settings
        rows = self.read(settings.train_split)
        labels = self._labels(rows)
        groups = None
        if settings.keeps_groups:
            columns = [rows[column] for column in (settings.text, settings.text_pair) if column is not None]
            groups = linked((texts,) for texts in zip(*columns, strict=True))
        strata = [int(label) for label in labels] if self.class_names else [0] * len(labels)
        return Division(
            *held_out(strata, settings.valid_fraction, groups=groups, path=settings.path), groups, len(labels)
        )

    def read(self, split: str) -> dict[str, Sequence[Any]]:
        """Read and validate the columns of a split: texts, and labels as text.

        Raises:
            InvalidSetting: no such split or column, a column that is not text, an empty split, or a file that changed since it
                was first read.
        """
        digests = self._digests_of(split)
        if split not in self._tables:
            settings = self._settings
            columns = {key: getattr(settings, key) for key in ("text", "text_pair", "label")}
            columns = {key: column for key, column in columns.items() if column is not None}
            table = self._load(split, set(columns.values()))
            for key, column in columns.items():
                if column not in table.names:
                    raise InvalidSetting(key, column, f"is no column of {split}: one of {', '.join(table.names)}")
            rows = {column: list(table.columns[column]) for column in columns.values()}
            for key, column in columns.items():
                values, kinds, expected = rows[column], str, "not text"
                if key == "label":
                    kinds, expected = LABELS, "not one class or number per row"
                if not values:
                    raise InvalidSetting("path", settings.path or settings.hub, f"{split} has no rows")
                empty = sum(value is None or value != value for value in values)
                if empty:  # JSON's NaN
                    raise InvalidSetting(key, column, f"{empty} of {len(values)} rows of {split} have no value")
                other = next((value for value in values if not isinstance(value, kinds)), None)
                if other is not None:
                    raise InvalidSetting(key, column, f"holds {type(other).__name__}, {expected}")
            names = table.class_names.get(settings.label)
            if names:
                self._declared[split] = names
            rows[settings.label] = _as_texts(rows[settings.label], settings.label, names)
            self._tables[split], self._digests[split] = rows, digests
            digests = self._digests_of(split)
        if digests != self._digests[split]:
            raise InvalidSetting(
                "path", self._settings.path, f"{split} has changed since it was first read: start again"
            )
        return self._tables[split]

    def _labels(self, rows: dict[str, Sequence[Any]]) -> list[float]:
        """Class indices, or scores if the labels are fractional."""
        column, names = self._settings.label, self.class_names
        indices: dict[str, float] = {name: index for index, name in enumerate(names)}
        numbers = [indices.get(label) if names else _number(label) for label in rows[column]]
        for row, (label, number) in enumerate(zip(rows[column], numbers, strict=True)):
            if number is None:
                allowed = f"a class of train ({', '.join(names)})" if names else "a finite number"
                raise InvalidSetting("label", column, f"row {row} is labeled {label!r}: expected {allowed}")
        return numbers  # type: ignore[return-value]  # None was refused

    @cached_property
    def _split_names(self) -> list[str]:
        settings, missing = self._settings, f"set dataset.path to {EXPECTED}"
        if settings.path is None:
            return hub_split_names(settings.hub_id, config=settings.config, revision=settings.revision, missing=missing)
        return list(self._saved or self._files)

    def _load(self, split: str, columns: Collection[str]) -> Table:
        settings = self._settings
        if settings.path is not None and not self._saved:
            return read_table(self._files_of(split), columns)
        if settings.path is not None:
            self._require_split(split)
            rows = self._saved[split]
        else:
            missing = f"set dataset.path to {EXPECTED}"
            rows = hub_split(
                settings.hub_id, config=settings.config, revision=settings.revision, split=split, missing=missing
            )
        classes = {name: names for name in columns if (names := getattr(rows.features.get(name), "names", None))}
        return Table(rows.column_names, {name: rows[name] for name in columns if name in rows.column_names}, classes)

    def _require_split(self, split: str) -> None:
        if split not in self._split_names:
            key = "train_split" if split == self._settings.train_split else "test_split"
            allowed = f"{self._settings.path} has no such split: one of {', '.join(self._split_names)}"
            raise InvalidSetting(key, split, allowed)

    def _files_of(self, split: str) -> list[Path]:
        self._require_split(split)
        return self._files[split]

    @property
    def _folder(self) -> Path:
        folder = local_path(str(self._settings.path), expected=EXPECTED)
        if not folder.is_dir():
            raise InvalidSetting("path", folder, f"is no folder; set dataset.path to {EXPECTED}")
        return folder

    @cached_property
    def _files(self) -> dict[str, list[Path]]:
        splits = table_files(self._folder)
        if not splits:
            raise InvalidSetting("path", self._folder, f"has no {', '.join(SUFFIXES)}; set dataset.path to {EXPECTED}")
        return splits

    @cached_property
    def _saved(self) -> dict[str, Any]:
        """The splits of a folder that datasets wrote, which are memory-mapped; empty for others."""
        folder = self._folder
        several = (folder / "dataset_dict.json").is_file()
        if not several and not (folder / "dataset_info.json").is_file():
            return {}
        import datasets

        try:
            saved = datasets.load_from_disk(str(folder))
        except Exception as error:  # datasets raises a dozen types, all of which mean that rows cannot be read
            reason = first_line(error)
            raise InvalidSetting(
                "path", folder, f"cannot be read ({reason}); set dataset.path to {EXPECTED}"
            ) from error
        return dict(saved) if several else {self._settings.train_split: saved}


def _number(label: str) -> float | None:
    """The finite number that a text stands for; None for other texts."""
    try:
        return number if "_" not in label and math.isfinite(number := float(label)) else None
    except ValueError:
        return None


def _as_texts(labels: Sequence[Any], column: str, names: Sequence[str] | None) -> list[str]:
    """Labels as texts: the classes of a ClassLabel by name, and 1.0 like 1.

    Raises:
        InvalidSetting: texts and numbers in one column.
    """
    if names:
        return [names[label] if 0 <= label < len(names) else str(label) for label in labels]
    kinds = {float if type(label) is int else type(label) for label in labels}
    if len(kinds) > 1:
        allowed = f"holds {' and '.join(sorted({type(label).__name__ for label in labels}))}: give all labels one type"
        raise InvalidSetting("label", column, allowed)
    return [str(int(label)) if isinstance(label, float) and label.is_integer() else str(label) for label in labels]
