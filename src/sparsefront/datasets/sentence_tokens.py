"""Sentences and pairs of sentences as rows of tokens."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sparsefront.datasets.encoded_text import EncodedText
from sparsefront.progress import bar

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CHUNK = 1000
"""Texts between two steps of the progress bar; enough for the tokenizer to keep all cores busy."""


def tokenized(
    firsts: Sequence[str],
    seconds: Sequence[str] | None,
    *,
    tokenizer: "PreTrainedTokenizerFast",
    max_length: int,
    columns: dict[str, Tensor],
    description: str,
) -> EncodedText:
    """Rows `[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`, cut to `max_length` tokens.

    Args:
        columns: one value per row, kept beside the tokens.
        description: before the progress bar.
    """
    ids: list[np.ndarray] = []
    types: list[np.ndarray] = []
    with bar(total=len(firsts), description=description, unit="row") as shown:
        for begin in range(0, len(firsts), CHUNK):
            chunk = slice(begin, begin + CHUNK)
            encoding = tokenizer(
                list(firsts[chunk]),
                None if seconds is None else list(seconds[chunk]),
                truncation=True,
                max_length=max_length,
                return_attention_mask=False,
                return_token_type_ids=True,
            )
            ids.extend(np.asarray(row, dtype=np.int32) for row in encoding["input_ids"])
            types.extend(np.asarray(row, dtype=np.uint8) for row in encoding["token_type_ids"])
            shown.update(len(encoding["input_ids"]))
    tokens = {
        "input_ids": torch.from_numpy(np.concatenate(ids)),
        "token_type_ids": torch.from_numpy(np.concatenate(types)),
    }
    return EncodedText(tokens, row_starts([len(row) for row in ids]), columns)


def row_starts(lengths: Sequence[int]) -> Tensor:
    """Bounds of rows that lie end to end, int64 [rows + 1]."""
    return torch.from_numpy(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))
