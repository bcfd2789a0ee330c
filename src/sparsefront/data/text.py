"""Tokenized text: data module, padded batches, and length-grouped sampling, shared by all text sets."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from sparsefront.artifacts.code_digest import code_digest
from sparsefront.artifacts.content_digest import digest, versions
from sparsefront.artifacts.durable import save_tensors
from sparsefront.data.base import Division, TokenizerFrom
from sparsefront.data.download import build_once
from sparsefront.data.split_data import NoRows, Part, SplitData
from sparsefront.errors import keys_of
from sparsefront.progress import bar

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


MULTIPLE = 8
"""Lengths are rounded up to a multiple of this, for tensor cores."""


@dataclass(frozen=True, eq=False)
class EncodedText:
    """Rows of tokens and one value per row.

        input_ids   | CLS it was good SEP | CLS bad SEP | ...      one tensor for all rows
        starts        0                     5             8  ...   row r is [starts[r], starts[r + 1])

    Attributes:
        tokens: per token, concatenated over rows: `input_ids`, `token_type_ids`, and for `extractive_qa` `offsets`
            [tokens, 2] (see `data.squad`), which are not part of batches.
        starts: int64 [rows + 1], bounds of the rows.
        columns: per row, copied to batches: `labels`, or `start_positions` and `end_positions`, or `window`.
    """

    tokens: dict[str, Tensor]
    starts: Tensor
    columns: dict[str, Tensor]

    def to_tensors(self) -> dict[str, Tensor]:
        """Flatten into one mapping for safetensors."""
        tokens = {f"token.{name}": values for name, values in self.tokens.items()}
        return {"starts": self.starts} | tokens | {f"row.{name}": values for name, values in self.columns.items()}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "EncodedText":
        """Inverse of `to_tensors`."""
        parts: dict[str, dict[str, Tensor]] = {"token": {}, "row": {}}
        for key, values in tensors.items():
            if key != "starts":
                kind, name = key.split(".", 1)
                parts[kind][name] = values
        return cls(tokens=parts["token"], starts=tensors["starts"], columns=parts["row"])

    def __len__(self) -> int:
        return len(self.starts) - 1

    def first(self, rows: int) -> "EncodedText":
        """The first rows alone."""
        tokens = {name: values[: self.starts[rows]] for name, values in self.tokens.items()}
        columns = {name: values[:rows] for name, values in self.columns.items()}
        return EncodedText(tokens, self.starts[: rows + 1], columns)

    def add_unlabeled(self, more: "EncodedText") -> "EncodedText":
        """These rows and more of the same columns; the column `labeled`, bool, is True for these."""
        tokens, columns = (
            {name: torch.cat([values, getattr(more, kind)[name]]) for name, values in getattr(self, kind).items()}
            for kind in ("tokens", "columns")
        )
        columns["labeled"] = torch.arange(len(self) + len(more)) < len(self)
        return EncodedText(tokens, torch.cat([self.starts, self.starts[-1] + more.starts[1:]]), columns)

    def lengths(self, rows: Tensor) -> Tensor:
        """Number of tokens of each row, int64."""
        return self.starts[rows + 1] - self.starts[rows]

    def pad(self, name: str, rows: Tensor, *, width: int, fill: int) -> Tensor:
        """One kind of token value as [B, width, ...], padded with `fill`; dtype as stored."""
        values = self.tokens[name]
        batch = values.new_full((len(rows), width, *values.shape[1:]), fill)
        places = torch.arange(width)
        real = places < self.lengths(rows)[:, None]
        batch[real] = values[(self.starts[rows][:, None] + places)[real]]
        return batch


@dataclass(frozen=True, eq=False)
class TextPart:
    """One split of a text set, as batches.

    Attributes:
        text: the rows.
        pad_token_id: padding of `input_ids`.
        width: fixed number of tokens of every row; None = the longest row of a batch, rounded up to `multiple`, but at most
            `max_length`.
        max_length: maximum length of a row.
    """

    text: EncodedText
    pad_token_id: int
    width: int | None
    max_length: int
    multiple: int = MULTIPLE

    @property
    def labels(self) -> Tensor | None:
        """One label per row; None if there are no labels."""
        return self.text.columns.get("labels")

    def __len__(self) -> int:
        return len(self.text)

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask`, `token_type_ids`: int64 [B, length]; and the rows' columns, [B]."""
        rows = torch.as_tensor(indices)
        lengths = self.text.lengths(rows)
        width = self.width or min(self.max_length, -(-int(lengths.max()) // self.multiple) * self.multiple)
        return {
            "input_ids": self.text.pad("input_ids", rows, width=width, fill=self.pad_token_id).long(),
            "attention_mask": (torch.arange(width) < lengths[:, None]).long(),
            "token_type_ids": self.text.pad("token_type_ids", rows, width=width, fill=0).long(),
            **{name: values[rows] for name, values in self.text.columns.items()},
        }


CHUNK = 1000
"""Texts per step of the progress bar; enough for the tokenizer, which has a thread for each core."""


def tokenize(
    firsts: Sequence[str],
    seconds: Sequence[str] | None,
    *,
    tokenizer: "PreTrainedTokenizerFast",
    max_length: int,
    columns: dict[str, Tensor],
    description: str,
    head_share: float | None = None,
) -> EncodedText:
    """Rows `[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`, truncated to `max_length` tokens.

    Args:
        columns: one value per row, stored with the tokens.
        description: of the progress bar.
        head_share: of a longer row, keep this share of the tokens from its beginning and the others from its end; None = cut
            as the tokenizer does.
    """
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    if head_share is None:
        backend.enable_truncation(max_length, direction=tokenizer.truncation_side)
    else:
        backend.no_truncation()
    rows: list[Any] = list(firsts if seconds is None else zip(firsts, seconds, strict=True))
    # a template gives all single texts the types of one, and reading them takes as long as the ids
    has_types = seconds is not None or any(backend.encode("text").type_ids)
    ids: list[np.ndarray] = []
    types: list[np.ndarray] = []
    with bar(total=len(rows), description=description, unit="row") as shown:
        for begin in range(0, len(rows), CHUNK):
            encodings = backend.encode_batch_fast(rows[begin : begin + CHUNK])
            for row in encodings:
                places: Any = slice(None)
                if head_share is not None and len(row) > max_length:
                    places = _within(row.special_tokens_mask, max_length, head_share)
                ids.append(np.asarray(row.ids, np.int32)[places])
                types.append(np.asarray(row.type_ids if has_types else [0] * len(row), np.uint8)[places])
            shown.update(len(encodings))
    tokens = {
        "input_ids": torch.from_numpy(np.concatenate(ids)),
        "token_type_ids": torch.from_numpy(np.concatenate(types)),
    }
    return EncodedText(tokens, row_starts([len(row) for row in ids]), columns)


def _within(special: Sequence[int], max_length: int, head_share: float) -> np.ndarray:
    """The places of tokens of a longer row that are kept, ascending: all special ones, and of the others the head and the tail.

    Args:
        special: 1 where the tokenizer added the token, else 0.
    """
    places = np.arange(len(special))
    own = places[np.asarray(special) == 0]
    room = max_length - (len(special) - len(own))
    head = round(head_share * room)
    return np.setdiff1d(places, own[head : len(own) - (room - head)])


def row_starts(lengths: Sequence[int]) -> Tensor:
    """Bounds of concatenated rows, int64 [rows + 1]."""
    return torch.from_numpy(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))


POOL = 50
"""Batches whose rows are sorted together, as many as in transformers' Trainer."""


class LengthGroupedBatches(Sampler[list[int]]):
    """Every row once per epoch: random order, sorted by length within pools of `POOL` batches, batches in random order.

    transformers' `LengthGroupedSampler` sorts similarly, but yields each pool from longest to shortest; here the position of
    a batch does not depend on its length.

    Args:
        lengths: int64 [rows], tokens of each.
        batch_size: rows per batch; the last one may be smaller.
        drop_last: drop that one.
        generator: for all random choices; its state determines the order.
    """

    def __init__(self, lengths: Tensor, batch_size: int, *, drop_last: bool, generator: torch.Generator) -> None:
        self.lengths, self.batch_size, self.drop_last, self.generator = lengths, batch_size, drop_last, generator

    def __len__(self) -> int:
        rows = len(self.lengths)
        return rows // self.batch_size if self.drop_last else -(-rows // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        rows = torch.randperm(len(self.lengths), generator=self.generator)
        pools = [
            pool[self.lengths[pool].argsort(descending=True, stable=True)]
            for pool in rows.split(POOL * self.batch_size)
        ]
        batches = [batch for pool in pools for batch in pool.split(self.batch_size)][: len(self)]
        for place in torch.randperm(len(batches), generator=self.generator):
            yield batches[place].tolist()


FORMAT = 1
"""Increment when the meaning of the cached tensors changes."""


class TextSource(Protocol):
    """The raw text of a data set, and how it is tokenized."""

    name: str

    def key(self) -> dict[str, Any]:
        """Everything that the encoded rows depend on except split, tokenizer and code; JSON-able."""

    @property
    def division(self) -> Division:
        """Which rows of train are held out."""

    def texts(self) -> Iterable[str]:
        """The texts of train, for learning a vocabulary; read lazily."""

    def encode(self, split: str, tokenizer: "PreTrainedTokenizerFast") -> EncodedText:
        """The tokenized rows of a split, with a progress bar."""


class TextData(SplitData):
    """Loaders of tokenized text.

    Args:
        source: of the text.
        unlabeled: of rows without a label, its split `unsup`, added to train.
        tokenizer_from: returns the tokenizer, called once; gets the texts of train as a lazy iterable.
        cache_dir: encoded rows are stored in its folder `features`.
        max_length: maximum length of a row, in tokens.
        pad: to the `longest` row of the batch, rounded up to `multiple`, or always to `max_length`.
        group_by_length: use training batches of rows of similar length.
        holds_out: whether `val` has rows; an empty text cannot be tokenized.
        batch_size, seed, num_workers: as in `SplitData`.
    """

    def __init__(
        self,
        source: TextSource,
        *,
        unlabeled: TextSource | None = None,
        tokenizer_from: TokenizerFrom | None,
        cache_dir: Path,
        max_length: int,
        pad: str,
        batch_size: int,
        seed: int,
        multiple: int = MULTIPLE,
        group_by_length: bool = False,
        holds_out: bool = True,
        num_workers: int = 0,
    ) -> None:
        if tokenizer_from is None:
            raise ValueError("text needs a tokenizer: pass tokenizer_from, as the model's `tokenizer`")
        super().__init__(self._load_part, batch_size=batch_size, seed=seed, num_workers=num_workers)
        self.source, self._unlabeled = source, unlabeled
        self._tokenizer_from = tokenizer_from
        self._features = Path(cache_dir) / "features"
        self._max_length, self._multiple = max_length, multiple
        self._group_by_length = group_by_length
        self._holds_out = holds_out
        self._width = max_length if pad == "max_length" else None

    @cached_property
    def tokenizer(self) -> "PreTrainedTokenizerFast":
        # Setting it silences a warning in each loader process; these never tokenize, so nothing can deadlock.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        return self._tokenizer_from(self._texts())

    def _texts(self) -> Iterator[str]:
        with keys_of("dataset"):  # blame the texts, not the model that learns from them
            yield from self.source.texts()

    def encode(self, split: str) -> EncodedText:
        """The rows of a split."""
        text = self._encode(self.source, split)
        if split != "train" or self._unlabeled is None:
            return text
        return text.add_unlabeled(self._encode(self._unlabeled, "unsup"))

    def _encode(self, source: TextSource, split: str) -> EncodedText:
        """The rows of a split of this source, from the cache or tokenized and cached now."""
        from safetensors.torch import load_file

        key = {
            "format": FORMAT,
            "split": split,
            "tokenizer": tokenizer_digest(self.tokenizer),
            "code": self._code,
            "versions": versions("tokenizers", "transformers"),
            **source.key(),
        }

        def make(file: Path) -> None:
            save_tensors(file, source.encode(split, self.tokenizer).to_tensors(), {"key": json.dumps(key)})

        file = build_once(self._features / f"{source.name}-{split}-{digest(key)}.safetensors", make)
        return EncodedText.from_tensors(load_file(file))

    @cached_property
    def _code(self) -> str:
        """Digest of the code that tokenizes the text."""
        return code_digest(type(self.source).__module__)

    def training_batches(self, part: Part, *, drop_last: bool, generator: torch.Generator) -> Sampler[list[int]]:
        if not self._group_by_length:
            return super().training_batches(part, drop_last=drop_last, generator=generator)
        lengths = part.text.starts.diff()
        return LengthGroupedBatches(lengths, self.batch_size, drop_last=drop_last, generator=generator)

    def add_column(self, split: str, name: str, values: Tensor) -> None:
        """Add one value per row, [rows, ...], to the batches of a split."""
        part = self.part(split)
        self._parts[split] = replace(part, text=replace(part.text, columns=part.text.columns | {name: values}))

    def _load_part(self, split: str) -> Part:
        if split == "val" and not self._holds_out:
            return NoRows()
        return TextPart(self.encode(split), self.tokenizer.pad_token_id, self._width, self._max_length, self._multiple)


def tokenizer_digest(tokenizer: "PreTrainedTokenizerFast") -> str:
    """Digest of how a tokenizer encodes text, and of its padding token.

    It excludes truncation and padding state of earlier calls and the padding side: rows are padded here.
    """
    definition = json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}
    beside = ("truncation_side", "split_special_tokens", "pad_token_id")
    return digest(definition | {name: getattr(tokenizer, name) for name in beside})
