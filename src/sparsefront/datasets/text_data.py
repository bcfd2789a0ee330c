"""The data module of text sets: tokenized once, read from the cache ever after."""

import json
import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils.data import Sampler

from sparsefront.artifacts.code_digest import BOOKKEEPING, code_digest
from sparsefront.artifacts.digest import digest, versions
from sparsefront.artifacts.durable import save_tensors
from sparsefront.artifacts.import_closure import import_closure
from sparsefront.datasets.base import TokenizerFrom
from sparsefront.datasets.build_once import build_once
from sparsefront.datasets.encoded_text import EncodedText, TextPart
from sparsefront.datasets.length_grouped import LengthGroupedBatches
from sparsefront.datasets.split_data import NoRows, Part, SplitData
from sparsefront.errors import keys_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

FORMAT = 1
"""Raised when the meaning of the cached tensors changes."""


class TextSource(Protocol):
    """The raw text of a data set and how it becomes rows of tokens."""

    name: str

    def key(self) -> dict[str, Any]:
        """Everything that the encoded rows depend on apart from split, tokenizer and code; JSON-able."""

    def texts(self) -> Iterable[str]:
        """The texts of train, for a tokenizer that learns its vocabulary; nothing is read before the first is taken."""

    def encode(self, split: str, tokenizer: "PreTrainedTokenizerFast") -> EncodedText:
        """The rows of a split, with a progress bar."""


class TextData(SplitData):
    """Loaders over tokenized text.

    Args:
        source: where the text comes from.
        tokenizer_from: gives the tokenizer, once; is handed the texts of train, which are read only if it iterates.
        cache_dir: the encoded rows are kept in its folder `features`.
        max_length: the longest row there may be, in tokens.
        pad: `longest` of the batch, or `max_length` always.
        group_by_length: whether rows of a training batch are about as long as one another.
        holds_out: whether `val` has rows; text without any cannot be tokenized.
        batch_size, seed, num_workers: as in `SplitData`.
    """

    def __init__(
        self,
        source: TextSource,
        *,
        tokenizer_from: TokenizerFrom | None,
        cache_dir: Path,
        max_length: int,
        pad: str,
        batch_size: int,
        seed: int,
        group_by_length: bool = False,
        holds_out: bool = True,
        num_workers: int = 0,
    ) -> None:
        if tokenizer_from is None:
            raise ValueError("text needs a tokenizer: pass tokenizer_from, as the model's `tokenizer`")
        super().__init__(self._load_part, batch_size=batch_size, seed=seed, num_workers=num_workers)
        self.source = source
        self._tokenizer_from = tokenizer_from
        self._features = Path(cache_dir) / "features"
        self._max_length = max_length
        self._group_by_length = group_by_length
        self._holds_out = holds_out
        self._width = max_length if pad == "max_length" else None

    @cached_property
    def tokenizer(self) -> "PreTrainedTokenizerFast":
        # Set either way it silences a warning for every loader process; those never tokenize, so nothing can lock up.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        return self._tokenizer_from(self._texts())

    def _texts(self) -> Iterator[str]:
        with keys_of("dataset"):  # what is wrong with the texts is not wrong with the model that learns from them
            yield from self.source.texts()

    def encoded(self, split: str) -> EncodedText:
        """The rows of a split: from the cache, or tokenized now and put there."""
        from safetensors.torch import load_file

        key = {
            "format": FORMAT,
            "split": split,
            "tokenizer": tokenizer_digest(self.tokenizer),
            "code": self._code,
            "versions": versions("tokenizers", "transformers"),
            **self.source.key(),
        }

        def make(file: Path) -> None:
            save_tensors(file, self.source.encode(split, self.tokenizer).to_tensors(), {"key": json.dumps(key)})

        file = build_once(self._features / f"{self.source.name}-{split}-{digest(key)}.safetensors", make)
        return EncodedText.from_tensors(load_file(file))

    @cached_property
    def _code(self) -> str:
        """Digest of the code that makes rows of the text; this module stores them as they are."""
        return code_digest(import_closure(((type(self.source).__module__, None),), without=(*BOOKKEEPING, __name__)))

    def training_batches(self, part: Part, *, drop_last: bool, generator: torch.Generator) -> Sampler[list[int]]:
        if not self._group_by_length:
            return super().training_batches(part, drop_last=drop_last, generator=generator)
        lengths = part.text.starts.diff()
        return LengthGroupedBatches(lengths, self.batch_size, drop_last=drop_last, generator=generator)

    def _load_part(self, split: str) -> Part:
        if split == "val" and not self._holds_out:
            return NoRows()
        return TextPart(self.encoded(split), self.tokenizer.pad_token_id, self._width, self._max_length)


def tokenizer_digest(tokenizer: "PreTrainedTokenizerFast") -> str:
    """Digest of what a tokenizer does to a text, and of the token that stands behind its end in a batch.

    The truncation and padding of its last call are no part of it, nor is the side on which it would pad: rows are padded here.
    """
    definition = json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}
    beside = ("truncation_side", "split_special_tokens", "pad_token_id")
    return digest(definition | {name: getattr(tokenizer, name) for name in beside})
