"""Labeled text from the Hugging Face hub or a local folder, with configurable columns."""

import math
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sparsefront.artifacts.content_digest import path_digest
from sparsefront.data.base import DataInfo, Division, held_out, linked, local_path
from sparsefront.data.download import hub_split, hub_split_names
from sparsefront.data.text_dataset import TextDataset
from sparsefront.errors import InvalidSetting, first_line
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerFast

    from sparsefront.data.text import EncodedText

EXPECTED = "a folder written by datasets' save_to_disk, or one with train and test as .csv, .jsonl or .parquet files"
REPORTED = ("test", "validation", "dev", "valid")  # reporting splits; the first that exists


@settings_class(kw_only=True)
class TextColumns(TextDataset):
    """One or two texts and a label per row, from `hub` or from `path`.

    Equal texts are held out together. Labels may be strings, integers or datasets' ClassLabel: classes are in ClassLabel's
    order, else sorted. Fractional labels make it a regression.

    Attributes:
        path: see `EXPECTED`; exclusive with `hub`.
        hub: owner/name on the hub, or name alone.
        config: its configuration.
        text, text_pair, label: columns; text_pair=null for single texts.
        train_split, test_split: names of the splits; test_split=null uses the first that exists of test, validation, dev,
            valid.
        revision, pad, group_by_length, max_length: as in `TextDataset`.
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
        """Reads the splits' columns and labels, which is fast because datasets memory-maps files."""
        if self.path is None:
            _ = self.hub_id  # required in this case
        else:
            self._rows.read(self.train_split)
            self._rows.read(self._rows.reported)

    def content(self) -> dict[str, Any]:
        if self.path is None:
            return {"hub": self.hub_id, "config": self.config, "revision": self.revision}
        return {"files": path_digest(local_path(self.path, expected=EXPECTED))}

    def source(self, cache_dir: Path) -> "TextRows":
        return self._rows

    @cached_property
    def _rows(self) -> "TextRows":
        return TextRows(self)


REGRESSION = ("pearson", "spearman")


class TextRows:
    """The rows of one text set, read on first use."""

    def __init__(self, settings: TextColumns) -> None:
        self.name = "text"
        self._settings = settings
        self._splits: dict[str, datasets.Dataset] = {}

    def key(self) -> dict[str, Any]:
        names = ("text", "text_pair", "label", "train_split", "test_split", "max_length", "valid_fraction")
        settings = {name: getattr(self._settings, name) for name in names}
        return {"content": self._settings.content(), **settings, "split": self._settings.split_version}

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Classes of train; empty if labels are fractional."""
        rows, column = self.read(self._settings.train_split), self._settings.label
        if names := getattr(rows.features[column], "names", None):
            return tuple(names)
        found = set(rows.unique(column))
        if any(isinstance(label, float) and not label.is_integer() for label in found):
            return ()
        return tuple(str(label) for label in sorted(found))

    @cached_property
    def reported(self) -> str:
        """The reporting split."""
        if self._settings.test_split is not None:
            return self._settings.test_split
        if (found := next((split for split in REPORTED if split in self._split_names), None)) is None:
            allowed = f"there is none of {', '.join(REPORTED)}; name one of {', '.join(self._split_names)}"
            raise InvalidSetting("test_split", None, allowed)
        return found

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
        chosen = range(len(rows))
        if split != "test":
            chosen = self.division.part(split).tolist()
        rows = rows.select(chosen)
        dtype = torch.int64 if self.class_names else torch.float32
        return tokenized(
            list(rows[settings.text]),
            None if settings.text_pair is None else list(rows[settings.text_pair]),
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
            columns = [list(rows[column]) for column in (settings.text, settings.text_pair) if column is not None]
            groups = linked((texts,) for texts in zip(*columns, strict=True))
        strata = [int(label) for label in labels] if self.class_names else [0] * len(labels)
        return Division(
            *held_out(strata, settings.valid_fraction, groups=groups, path=settings.path), groups, len(rows)
        )

    def read(self, split: str) -> "datasets.Dataset":
        """Read and validate the rows of a split.

        Raises:
            InvalidSetting: no such split or column, a column that is not text, or an empty split.
        """
        if split not in self._splits:
            rows, settings = self._load(split), self._settings
            for key in ("text", "text_pair", "label"):
                column = getattr(settings, key)
                if column is not None and column not in rows.column_names:
                    raise InvalidSetting(key, column, f"is no column of {split}: one of {', '.join(rows.column_names)}")
                dtype = column and getattr(rows.features[column], "dtype", type(rows.features[column]).__name__)
                if column is not None and key != "label" and dtype not in ("string", "large_string"):
                    raise InvalidSetting(key, column, f"holds {dtype}, not text")
                if key == "label" and not dtype.startswith(("string", "large_string", "bool", "int", "uint", "float")):
                    raise InvalidSetting(key, column, f"holds {dtype}, not one class or number per row")
                if column is not None and (empty := rows.data.column(column).null_count):
                    raise InvalidSetting(key, column, f"{empty} of {len(rows)} rows of {split} have no value")
            if len(rows) == 0:
                raise InvalidSetting("path", settings.path or settings.hub, f"{split} has no rows")
            self._splits[split] = rows
        return self._splits[split]

    def _labels(self, rows: "datasets.Dataset") -> list[float]:
        """Class indices, or scores if the labels are fractional."""
        column, names = self._settings.label, self.class_names
        labels = rows[column]
        if getattr(rows.features[column], "names", None):
            numbers = list(labels)
        elif names:
            numbers = [names.index(str(label)) if str(label) in names else -1 for label in labels]
        else:
            numbers = [math.nan if label is None else float(label) for label in labels]
        for row, (label, number) in enumerate(zip(labels, numbers, strict=True)):
            if number is None or (names and number < 0) or not math.isfinite(number):
                allowed = f"a class of train ({', '.join(names)})" if names else "a finite number"
                raise InvalidSetting("label", column, f"row {row} is labeled {label!r}: expected {allowed}")
        return numbers

    @cached_property
    def _split_names(self) -> list[str]:
        if self._settings.path is not None:
            return list(self._local)
        settings, missing = self._settings, f"set dataset.path to {EXPECTED}"
        return hub_split_names(settings.hub_id, config=settings.config, revision=settings.revision, missing=missing)

    def _load(self, split: str) -> "datasets.Dataset":
        settings = self._settings
        if settings.path is None:
            missing = f"set dataset.path to {EXPECTED}"
            return hub_split(
                settings.hub_id, config=settings.config, revision=settings.revision, split=split, missing=missing
            )
        if split not in self._local:
            key = "train_split" if split == settings.train_split else "test_split"
            raise InvalidSetting(key, split, f"{settings.path} has no such split: one of {', '.join(self._local)}")
        return self._local[split]

    @cached_property
    def _local(self) -> "datasets.DatasetDict":
        import datasets

        folder = local_path(self._settings.path, expected=EXPECTED)
        try:
            if (folder / "dataset_dict.json").is_file():
                return datasets.load_from_disk(str(folder))
            if (folder / "dataset_info.json").is_file():
                return datasets.DatasetDict({self._settings.train_split: datasets.load_from_disk(str(folder))})
            return datasets.load_dataset(str(folder))
        except Exception as error:  # datasets raises a dozen types, all of which mean that rows cannot be read
            reason = first_line(error)
            raise InvalidSetting(
                "path", folder, f"cannot be read ({reason}); set dataset.path to {EXPECTED}"
            ) from error
