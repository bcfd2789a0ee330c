"""Sentence pairs as token ids: encoded once, cached, and batched by number of tokens."""

import logging
from collections.abc import Iterator, Sequence
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
from sparsefront.data.base import TokenizerFrom
from sparsefront.data.download import build_once
from sparsefront.data.split_data import NoRows, Part, SplitData
from sparsefront.data.text import MULTIPLE, EncodedText, row_starts
from sparsefront.errors import InvalidSetting
from sparsefront.progress import bar
from sparsefront.tasks.causal_lm import IGNORED
from sparsefront.tasks.decoding import BOS, EOS, PAD

if TYPE_CHECKING:
    from tokenizers import Tokenizer

log = logging.getLogger(__name__)
CHUNK = 2000  # sentences per step of the progress bar


@dataclass(frozen=True, eq=False)
class Pairs:
    """One split.

    Args:
        sources, targets: rows of `input_ids` that end with `end`.
        pad, start, end: of `PairTokenizer`.
    """

    sources: EncodedText
    targets: EncodedText
    pad: int
    start: int
    end: int

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def lengths(self) -> Tensor:
        """Tokens of the longer sentence of each pair, int64 [rows]."""
        return torch.maximum(self.sources.starts.diff(), self.targets.starts.diff())

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        """`source` int64 [B, S], `source_mask` bool [B, S]; `target` int64 [B, T], starting with `start`, and `labels` int64
        [B, T], the token after each. Padded with `pad`, and with `IGNORED` in `labels`.
        """
        rows = torch.as_tensor(indices)
        source, labels = _pad(self.sources, rows, self.pad), _pad(self.targets, rows, IGNORED)
        before = labels[:, :-1]
        before = before.masked_fill((before == self.end) | (before == IGNORED), self.pad)
        target = torch.cat([labels.new_full((len(rows), 1), self.start), before], dim=1)
        return {"source": source, "source_mask": source != self.pad, "target": target, "labels": labels}


def _pad(text: EncodedText, rows: Tensor, fill: int) -> Tensor:
    width = -(-int(text.lengths(rows).max()) // MULTIPLE) * MULTIPLE
    return text.pad("input_ids", rows, width=width, fill=fill).long()


class TokenBatches(Sampler[list[int]]):
    """Every row once per epoch, in batches of similar length with at most `tokens` tokens, including padding.

    Rows are sorted by length, with random order among equal lengths, and cut into batches, which are shuffled. The number of
    batches is the same in every epoch.

    Args:
        lengths: int64 [rows], tokens of each.
        tokens: rows times the longest row, rounded up to 8. A longer row is a batch of its own.
        generator: for all random choices.
    """

    def __init__(self, lengths: Tensor, tokens: int, *, generator: torch.Generator) -> None:
        self.lengths, self.generator = lengths, generator
        self.bounds = _bounds(lengths.sort(descending=True).values, tokens)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __iter__(self) -> Iterator[list[int]]:
        rows = torch.randperm(len(self.lengths), generator=self.generator)
        rows = rows[self.lengths[rows].argsort(descending=True, stable=True)]
        for place in torch.randperm(len(self), generator=self.generator).tolist():
            yield rows[self.bounds[place] : self.bounds[place + 1]].tolist()


def _bounds(lengths: Tensor, tokens: int) -> list[int]:
    """Start of each batch, and the end of the last one; the longest row comes first."""
    widths, bounds = (-(-lengths // MULTIPLE) * MULTIPLE).tolist(), [0]
    while bounds[-1] < len(widths):
        bounds.append(min(len(widths), bounds[-1] + max(1, tokens // widths[bounds[-1]])))
    return bounds


class PairTokenizer(Protocol):
    """Encodes and decodes sentences.

    Attributes:
        pad, start, end: padding token, first token of a target, and last token of a sentence.
    """

    pad: int
    start: int
    end: int

    def key(self) -> dict[str, Any]:
        """What else tokens depend on besides the texts, JSON-able."""

    def encode(self, texts: list[str], side: str) -> list[list[int]]:
        """The tokens of each sentence, including `end`; `side` is source or target."""

    def decode(self, rows: list[list[int]]) -> list[str]:
        """Decode rows of target tokens, without special tokens."""


class LearntTokenizer:
    """A vocabulary of both languages learned here, as a `PairTokenizer`."""

    pad, start, end = PAD, BOS, EOS

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self.tokenizer = tokenizer

    def key(self) -> dict[str, Any]:
        """Empty: it is determined by the texts."""
        return {}

    def encode(self, texts: list[str], side: str) -> list[list[int]]:
        return [[*row.ids, EOS] for row in self.tokenizer.encode_batch(texts, add_special_tokens=False)]

    def decode(self, rows: list[list[int]]) -> list[str]:
        return self.tokenizer.decode_batch(rows, skip_special_tokens=True)


class PairSource(Protocol):
    """The text of a data set."""

    name: str

    def key(self) -> dict[str, Any]:
        """What the pairs and their vocabulary depend on, JSON-able."""

    def pairs(self, split: str) -> tuple[list[str], list[str]]:
        """Aligned sources and targets of a split."""

    def tokenizer(self, cache_dir: Path) -> "Tokenizer":
        """The vocabulary of both languages."""


class PairData(SplitData):
    """Loaders of sentence pairs.

    Args:
        sentences: their text.
        max_length: maximum number of tokens per sentence, including `end`.
        batch_tokens: of a training batch: see `TokenBatches`; None: it has batch_size rows.
        holds_out: whether `val` has rows.
        cache_dir: for the vocabulary and the encoded pairs.
        tokenizer_from: returns a network's own `PairTokenizer`; None: learn a vocabulary from the sentences.
        batch_size, seed, num_workers: as in `SplitData`.
    """

    def __init__(
        self,
        sentences: PairSource,
        *,
        max_length: int,
        batch_tokens: int | None,
        holds_out: bool,
        batch_size: int,
        seed: int,
        cache_dir: Path,
        tokenizer_from: TokenizerFrom | None = None,
        num_workers: int = 0,
    ) -> None:
        super().__init__(self._load_part, batch_size=batch_size, seed=seed, num_workers=num_workers)
        self.sentences, self._cache_dir, self._tokenizer_from = sentences, cache_dir, tokenizer_from
        self._max_length, self._batch_tokens, self._holds_out = max_length, batch_tokens, holds_out

    @cached_property
    def tokenizer(self) -> PairTokenizer:
        if self._tokenizer_from is None:
            return LearntTokenizer(self.sentences.tokenizer(self._cache_dir))
        pair_tokenizer: PairTokenizer = self._tokenizer_from(())
        return pair_tokenizer

    def references(self, split: str) -> list[str]:
        """The reference translations of val or test, in order."""
        return self.sentences.pairs(split)[1]

    def text(self, tokens: Tensor) -> list[str]:
        """Decode token ids [B, T] into sentences, without special tokens."""
        return [text.strip() for text in self.tokenizer.decode(tokens.tolist())]

    def training_batches(self, part: Part, *, drop_last: bool, generator: torch.Generator) -> Sampler[list[int]]:
        if self._batch_tokens is None:
            return super().training_batches(part, drop_last=False, generator=generator)
        return TokenBatches(part.lengths, self._batch_tokens, generator=generator)  # type: ignore[attr-defined]

    def _load_part(self, split: str) -> Part:
        if split == "val" and not self._holds_out:
            return NoRows()
        from safetensors.torch import load_file

        key = {
            "split": split,
            "max_length": self._max_length,
            "code": code_digest(__name__),
            "versions": versions("tokenizers"),
            **self.sentences.key(),
            **self.tokenizer.key(),
        }

        def make(file: Path) -> None:
            tensors = {
                f"{side}.{name}": value
                for side, text in zip(("source", "target"), self._encode(split), strict=True)
                for name, value in text.to_tensors().items()
            }
            save_tensors(file, tensors, {})

        name = f"{self.sentences.name}-{split}-{digest(key)}.safetensors"
        tensors = load_file(build_once(self._cache_dir / "features" / name, make))
        sides, special = (_side(tensors, side) for side in ("source", "target")), self.tokenizer
        pairs = Pairs(*sides, special.pad, special.start, special.end)
        return pairs if split == "train" else self._drop_long(pairs, split)

    def _drop_long(self, pairs: Pairs, split: str) -> Pairs:
        """The pairs of val or test before the first one that is too long.

        Raises:
            InvalidSetting: an evaluation reaches it.
        """
        lengths, longest = pairs.lengths, self._max_length
        if not (lengths > longest).any():
            return pairs
        first, limit = int((lengths > longest).int().argmax()), self.evaluate_limit
        reached = len(pairs) if limit is None else -(-limit // self.batch_size) * self.batch_size
        if first < reached:
            allowed = f"pair {first + 1} of {split} has a sentence of {lengths[first]} tokens, and it is evaluated"
            raise InvalidSetting("max_length", longest, f"{allowed}: give at least {lengths[:reached].max()}")
        message = "data: pair %d of %s is longer than dataset.max_length=%d tokens: only those before it are read, enough for %s"
        log.info(message, first + 1, split, longest, f"measure.evaluate_limit={limit}")
        return replace(pairs, sources=pairs.sources.first(first), targets=pairs.targets.first(first))

    def _encode(self, split: str) -> list[EncodedText]:
        """Both sides of a split; of train, without pairs that are too long.

        Raises:
            InvalidSetting: all pairs of train are too long.
        """
        pairs, longest = self.sentences.pairs(split), self._max_length
        sides = [self._numbers(texts, split, side) for side, texts in zip(("source", "target"), pairs, strict=True)]
        lengths = np.array([[len(row) for row in rows] for rows in sides]).max(0)
        fits = lengths <= longest
        if split == "train" and not fits.any():
            raise InvalidSetting(
                "max_length", longest, f"is less than all pairs of train have, {lengths.min()} and more"
            )
        if split == "train" and not fits.all():
            message = "data: %d of %d pairs of train are longer than dataset.max_length=%d tokens: left out"
            log.info(message, int((~fits).sum()), len(fits), longest)
            sides = [[row for row, row_fits in zip(rows, fits, strict=True) if row_fits] for rows in sides]
        return [
            EncodedText(
                {"input_ids": torch.from_numpy(np.concatenate(rows))}, row_starts([len(row) for row in rows]), {}
            )
            for rows in sides
        ]

    def _numbers(self, texts: Sequence[str], split: str, side: str) -> list[np.ndarray]:
        """Tokens of each sentence, including its end, int32."""
        tokens: list[np.ndarray] = []
        with bar(total=len(texts), description=f"{split}, {side}", unit="sentence") as shown:
            for begin in range(0, len(texts), CHUNK):
                chunk = self.tokenizer.encode(list(texts[begin : begin + CHUNK]), side)
                tokens.extend(np.asarray(row, dtype=np.int32) for row in chunk)
                shown.update(len(chunk))
        return tokens


def _side(tensors: dict[str, Any], side: str) -> EncodedText:
    return EncodedText.from_tensors(
        {name.removeprefix(f"{side}."): value for name, value in tensors.items() if name.startswith(f"{side}.")}
    )
