"""Text as token numbers: rows of different lengths stored end to end, padded when they become a batch."""

from dataclasses import dataclass

import torch
from torch import Tensor

MULTIPLE = 8
"""Lengths are rounded up to it, for matrix units work on eighths."""


@dataclass(frozen=True, eq=False)
class EncodedText:
    """Rows of tokens and one value per row.

        input_ids   | CLS it was good SEP | CLS bad SEP | ...      one tensor for all rows
        starts        0                     5             8  ...   row r is [starts[r], starts[r + 1])

    Attributes:
        tokens: per token, first dimension = tokens of all rows: `input_ids`, `token_type_ids`, and for `extractive_qa`
            `offsets` [tokens, 2] (see `squad_windows`), which stay out of the batches.
        starts: int64 [rows + 1], the bounds of the rows.
        columns: per row, for the batch as they are: `labels`, or `start_positions` and `end_positions`, or `window`.
    """

    tokens: dict[str, Tensor]
    starts: Tensor
    columns: dict[str, Tensor]

    def to_tensors(self) -> dict[str, Tensor]:
        """One flat mapping, as safetensors stores it."""
        tokens = {f"token.{name}": values for name, values in self.tokens.items()}
        return {"starts": self.starts} | tokens | {f"row.{name}": values for name, values in self.columns.items()}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "EncodedText":
        """The rows that `to_tensors` has flattened."""
        parts: dict[str, dict[str, Tensor]] = {"token": {}, "row": {}}
        for key, values in tensors.items():
            if key != "starts":
                kind, name = key.split(".", 1)
                parts[kind][name] = values
        return cls(tokens=parts["token"], starts=tensors["starts"], columns=parts["row"])

    def __len__(self) -> int:
        return len(self.starts) - 1

    def lengths(self, rows: Tensor) -> Tensor:
        """Tokens of each row, int64."""
        return self.starts[rows + 1] - self.starts[rows]

    def padded(self, name: str, rows: Tensor, *, width: int, fill: int) -> Tensor:
        """One kind of token value as [B, width, ...], `fill` behind the end of each row; dtype as stored."""
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
        pad_token_id: what stands behind the end of `input_ids`.
        width: tokens of every row of every batch; None = as many as the longest of a batch has, rounded up to 8, but
            never more than `max_length`.
        max_length: the longest row there may be.
    """

    text: EncodedText
    pad_token_id: int
    width: int | None
    max_length: int

    @property
    def labels(self) -> Tensor | None:
        """One label per row; None where the rows have none."""
        return self.text.columns.get("labels")

    def __len__(self) -> int:
        return len(self.text)

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask`, `token_type_ids`: int64 [B, length]; and the columns of the rows, [B]."""
        rows = torch.as_tensor(indices)
        lengths = self.text.lengths(rows)
        width = self.width or min(self.max_length, -(-int(lengths.max()) // MULTIPLE) * MULTIPLE)
        return {
            "input_ids": self.text.padded("input_ids", rows, width=width, fill=self.pad_token_id).long(),
            "attention_mask": (torch.arange(width) < lengths[:, None]).long(),
            "token_type_ids": self.text.padded("token_type_ids", rows, width=width, fill=0).long(),
            **{name: values[rows] for name, values in self.text.columns.items()},
        }
