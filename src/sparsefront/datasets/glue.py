"""GLUE: one or two sentences, one label."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sparsefront.artifacts.content_digest import file_digest
from sparsefront.datasets.base import local_path
from sparsefront.datasets.build_once import build_once
from sparsefront.datasets.glue_rows import HUB_ID, GlueRow, columns_of, read_hub_rows, read_tsv, write_hub_rows
from sparsefront.datasets.glue_tasks import GLUE_TASKS, GlueTask
from sparsefront.datasets.held_out import held_out
from sparsefront.datasets.info import DataInfo
from sparsefront.datasets.text_dataset import TextDataset
from sparsefront.declared.settings_class import settings_class
from sparsefront.errors import InvalidSetting

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from sparsefront.datasets.encoded_text import EncodedText


@settings_class(kw_only=True)
class Glue(TextDataset):
    """One task of GLUE.

    The dev file is the test part here, since GLUE's own test labels were never published; `val` is held out of train.
    SST-2's train holds phrases of its own sentences, so its held-out accuracy runs above that on dev.
    Source: Wang et al., "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding", 2018.

    Attributes:
        task: one of `GLUE_TASKS`. MNLI is evaluated on the matched dev file.
        path: the original layout: a folder that holds the task's folder (`SST-2/train.tsv`), or the task's own folder.
        max_length: longer inputs are cut, the longer sentence of a pair first.
        revision, pad, group_by_length: as in `TextDataset`.
    """

    name: ClassVar[str] = "glue"
    hub_id: ClassVar[str] = HUB_ID

    task: Literal[tuple(GLUE_TASKS)] = "sst2"

    @property
    def layout(self) -> GlueTask:
        return GLUE_TASKS[self.task]

    @property
    def metrics(self) -> tuple[str, ...]:
        """What the task is evaluated by; the first is tracked."""
        return self.layout.metrics

    @property
    def info(self) -> DataInfo:
        return DataInfo("sequence_classification", self.layout.num_classes, sequence_length=self.max_length)

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
    """The sentences of one task, read when they are first needed."""

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
        }

    def texts(self) -> Iterator[str]:
        for row in self._train:
            yield row.first
            if row.second is not None:
                yield row.second

    def encode(self, split: str, tokenizer: "PreTrainedTokenizerFast") -> "EncodedText":
        import torch

        from sparsefront.datasets.sentence_tokens import tokenized

        rows = self._read("dev") if split == "test" else self._train
        if split != "test":
            strata = [row.label if self._settings.layout.label_names else 0 for row in rows]
            chosen = held_out(strata, self._settings.valid_fraction, path=self._settings.path)
            rows = [rows[row] for row in chosen[("train", "val").index(split)]]
        labels = torch.tensor(
            [row.label for row in rows], dtype=torch.int64 if self._settings.layout.label_names else None
        )
        firsts, seconds, _ = zip(*rows, strict=True)
        return tokenized(
            firsts,
            None if seconds[0] is None else seconds,
            tokenizer=tokenizer,
            max_length=self._settings.max_length,
            columns={"labels": labels},
            description=f"tokenizing {self.name} {split}",
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
