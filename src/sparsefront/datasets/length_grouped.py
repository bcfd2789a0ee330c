"""Training batches of rows that are about as long as one another, so that little of a batch is padding."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import Sampler

POOL = 50
"""Batches whose rows are sorted together; transformers' Trainer takes as many."""


class LengthGroupedBatches(Sampler[list[int]]):
    """Every row once an epoch: rows in random order, sorted by length within pools of `POOL` batches, batches in random order.

    transformers' `LengthGroupedSampler` sorts likewise, but goes through each pool from the longest batch to the
    shortest; here no batch's place depends on its length.

    Args:
        lengths: int64 [rows], tokens of each.
        batch_size: rows of a batch; the last one of an epoch's rows may be smaller.
        drop_last: leave that one out.
        generator: of all random choices; its state is that of the order.
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
