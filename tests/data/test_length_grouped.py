"""Batches of rows that are about as long: every row once, little padding, an order that repeats and goes on."""

from typing import Any

import torch

from sparsefront.data.text import LengthGroupedBatches
from sparsefront.training.resume import TrainingData


def batches_of(lengths: torch.Tensor, batch_size: int, *, drop_last: bool = False) -> LengthGroupedBatches:
    generator = torch.Generator().manual_seed(0)
    return LengthGroupedBatches(lengths, batch_size, drop_last=drop_last, generator=generator)


def test_batches_hold_little_padding() -> None:
    lengths = torch.randint(3, 60, (800,), generator=torch.Generator().manual_seed(0))  # one pool
    longest = torch.tensor([lengths[batch].max() for batch in batches_of(lengths, 16)]).float()
    assert longest.mean() < 1.1 * lengths.float().mean()
    places = torch.arange(len(longest)).float()
    assert torch.corrcoef(torch.stack([longest, places]))[0, 1].abs() < 0.5, "of sorted batches it is -1"


def test_resumed_order_is_the_same(tiny: Any, opened: Any) -> None:
    data = TrainingData(opened(tiny("glue", group_by_length=True)))
    loader = data.train_dataloader()
    list(loader)
    state = data.state_dict()
    expected = [batch["input_ids"] for batch in loader]
    resumed = TrainingData(opened(tiny("glue", group_by_length=True)))
    resumed.load_state_dict(state)
    found = [batch["input_ids"] for batch in resumed.train_dataloader()]
    assert len(found) == len(expected) and all(map(torch.equal, found, expected))
