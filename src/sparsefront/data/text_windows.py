"""Text as windows of tokens, for networks that predict the next one."""

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
    """A text as one row of tokens, with what the tokenizer puts around a text."""
    ids = tokenizer(text, return_token_type_ids=False, verbose=False)[
        "input_ids"
    ]  # verbose: it is longer than a window
    return EncodedText({"input_ids": torch.tensor(ids, dtype=torch.int32)}, row_starts([len(ids)]), {})


@dataclass(frozen=True, eq=False)
class Windows:
    """One split as windows that begin `stride` tokens apart; what is left at the end, less than a window, is left out.

        tokens   a b c d e f g h i
        row 0    a b c d              length 4, stride 2: asked for b, c and d
        row 1        c d e f          asked for e and f, as c and d were before
        row 2            e f g h      asked for g and h

    Args:
        tokens: int32 [tokens], of the whole split.
    """

    tokens: Tensor
    length: int
    stride: int

    def __len__(self) -> int:
        return max(0, (len(self.tokens) - self.length) // self.stride + 1)

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        """`input_ids`: int64 [B, length]; `scored`: int64 [B], how many tokens at the end of each row are asked for."""
        rows = torch.as_tensor(indices)
        ids = self.tokens[(rows * self.stride)[:, None] + torch.arange(self.length)].long()
        others = torch.full_like(rows, min(self.stride, self.length - 1))
        return {"input_ids": ids, "scored": torch.where(rows == 0, self.length - 1, others)}


class WindowSource(TextSource, Protocol):
    """Gives each split as one row."""

    def named(self, split: str) -> str:
        """The split in words, for messages."""


class WindowData(TextData):
    """Loaders over windows of each split; those of train do not overlap.

    Args:
        length, stride: as in `Windows`; the stride is that of val and test.
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
        """With the last one, also where it is one window: there is no batch normalization that it would stop."""
        return super().training_batches(part, drop_last=False, generator=generator)

    def _load_part(self, split: str) -> Part:
        if split == "val" and not self._holds_out:
            return NoRows()
        tokens = self.encoded(split).tokens["input_ids"]
        if len(tokens) < self._length:
            told = f"{self.source.named(split)} has {len(tokens)} tokens, less than a window: give a longer text, or take less"
            raise InvalidSetting("sequence_length", self._length, told)
        return Windows(tokens, self._length, self._length if split == "train" else self._stride)
