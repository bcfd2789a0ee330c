"""Windows of tokens for causal language modeling."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.utils.data import Sampler

from sparsefront.data.base import TokenizerFrom
from sparsefront.data.split_data import NoRows, Part
from sparsefront.data.text import EncodedText, TextData, TextSource, row_starts
from sparsefront.errors import InvalidSetting

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def one_row(text: str, tokenizer: "PreTrainedTokenizerFast") -> EncodedText:
    """Tokenize a text as one row, including the special tokens that the tokenizer adds."""
    ids = tokenizer(text, return_token_type_ids=False, verbose=False)[
        "input_ids"
    ]  # verbose=False: no warning that it exceeds the model's length
    return EncodedText({"input_ids": torch.tensor(ids, dtype=torch.int32)}, row_starts([len(ids)]), {})


@dataclass(frozen=True, eq=False)
class Windows:
    """One split as windows that start every `stride` tokens; an incomplete last window is dropped.

        tokens   a b c d e f g h i
        row 0    a b c d              length 4, stride 2: scores b, c and d
        row 1        c d e f          scores e and f; c and d were scored before
        row 2            e f g h      scores g and h

    Args:
        tokens: int32 [tokens], of the whole split.
    """

    tokens: Tensor
    length: int
    stride: int

    def __len__(self) -> int:
        return max(0, (len(self.tokens) - self.length) // self.stride + 1)

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        """`input_ids`: int64 [B, length]; `scored`: int64 [B], number of tokens at the end of each row that are scored."""
        rows = torch.as_tensor(indices)
        ids = self.tokens[(rows * self.stride)[:, None] + torch.arange(self.length)].long()
        others = torch.full_like(rows, min(self.stride, self.length - 1))
        return {"input_ids": ids, "scored": torch.where(rows == 0, self.length - 1, others)}


class WindowSource(TextSource, Protocol):
    """A text source that returns each split as one row."""

    def label(self, split: str) -> str:
        """Describe the split for messages."""


class WindowData(TextData):
    """Loaders of windows of each split; those of train do not overlap.

    Args:
        length, stride: as in `Windows`; the stride is for val and test.
        source, tokenizer_from, cache_dir, batch_size, seed, holds_out, num_workers: as in `TextData`.
    """

    source: WindowSource

    def __init__(
        self,
        source: WindowSource,
        *,
        length: int,
        stride: int,
        tokenizer_from: TokenizerFrom | None,
        cache_dir: Path,
        batch_size: int,
        seed: int,
        holds_out: bool = True,
        num_workers: int = 0,
    ) -> None:
        super().__init__(
            source,
            tokenizer_from=tokenizer_from,
            cache_dir=cache_dir,
            max_length=length,
            pad="longest",
            batch_size=batch_size,
            seed=seed,
            holds_out=holds_out,
            num_workers=num_workers,
        )
        self._length, self._stride = length, stride

    def training_batches(self, part: Part, *, drop_last: bool, generator: torch.Generator) -> Sampler[list[int]]:
        """Includes the last batch even if it is a single window: there is no BatchNorm."""
        return super().training_batches(part, drop_last=False, generator=generator)

    def _load_part(self, split: str) -> Part:
        if split == "val" and not self._holds_out:
            return NoRows()
        tokens = self.encode(split).tokens["input_ids"]
        if len(tokens) < self._length:
            message = f"{self.source.label(split)} has {len(tokens)} tokens, less than a window: give a longer text, or take less"
            raise InvalidSetting("sequence_length", self._length, message)
        return Windows(tokens, self._length, self._length if split == "train" else self._stride)
