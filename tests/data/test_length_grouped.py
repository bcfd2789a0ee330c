"""Batches of rows that are about as long: every row once, little padding, an order that repeats and goes on."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparsefront.data.glue import Glue
from sparsefront.data.squad import Squad
from sparsefront.data.text import LengthGroupedBatches
from sparsefront.errors import InvalidSetting
from sparsefront.training.resume import TrainingData


def batches_of(
    lengths: torch.Tensor, batch_size: int, *, drop_last: bool = False, seed: int = 0
) -> LengthGroupedBatches:
    generator = torch.Generator().manual_seed(seed)
    return LengthGroupedBatches(lengths, batch_size, drop_last=drop_last, generator=generator)


@given(rows=st.integers(1, 700), batch_size=st.integers(1, 9), drop_last=st.booleans(), seed=st.integers(0, 99))
def test_every_row_once(rows: int, batch_size: int, drop_last: bool, seed: int) -> None:
    lengths = torch.randint(3, 60, (rows,), generator=torch.Generator().manual_seed(seed))
    sampler = batches_of(lengths, batch_size, drop_last=drop_last, seed=seed)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    seen = [row for batch in batches for row in batch]
    assert len(set(seen)) == len(seen) == (rows // batch_size * batch_size if drop_last else rows)
    assert sorted(map(len, batches), reverse=True)[: rows // batch_size] == [batch_size] * (rows // batch_size)


def test_batches_hold_little_padding_and_no_place_depends_on_length() -> None:
    lengths = torch.randint(3, 60, (800,), generator=torch.Generator().manual_seed(0))  # one pool
    longest = torch.tensor([lengths[batch].max() for batch in batches_of(lengths, 16)]).float()
    assert longest.mean() < 1.1 * lengths.float().mean()
    places = torch.arange(len(longest)).float()
    assert torch.corrcoef(torch.stack([longest, places]))[0, 1].abs() < 0.5, "of sorted batches it is -1"


def test_epochs_differ_and_seeds_repeat_them() -> None:
    lengths = torch.randint(3, 60, (200,))
    one, other = batches_of(lengths, 8, seed=1), batches_of(lengths, 8, seed=1)
    first = list(one)
    assert first == list(other) and list(one) != first
    assert list(batches_of(lengths, 8, seed=2)) != first


def test_text_is_grouped_where_asked(tiny: Any, opened: Any) -> None:
    plain, grouped = (opened(tiny("glue", group_by_length=wanted)) for wanted in (False, True))
    rows = [
        torch.cat([batch["labels"] for batch in data.train_dataloader()]).sort().values for data in (plain, grouped)
    ]
    assert torch.equal(*rows), "the same rows"
    assert isinstance(grouped.train_dataloader().batch_sampler, LengthGroupedBatches)
    assert not isinstance(grouped.val_dataloader().batch_sampler, LengthGroupedBatches), "evaluation keeps its order"
    assert not isinstance(plain.train_dataloader().batch_sampler, LengthGroupedBatches)


def test_a_resumed_training_goes_on_in_the_same_order(tiny: Any, opened: Any) -> None:
    data = TrainingData(opened(tiny("glue", group_by_length=True)))
    loader = data.train_dataloader()
    list(loader)
    state = data.state_dict()
    expected = [batch["input_ids"] for batch in loader]
    resumed = TrainingData(opened(tiny("glue", group_by_length=True)))
    resumed.load_state_dict(state)
    found = [batch["input_ids"] for batch in resumed.train_dataloader()]
    assert len(found) == len(expected) and all(map(torch.equal, found, expected))


@pytest.mark.parametrize("kind", [Glue, Squad])
def test_rows_that_are_all_as_long_are_rejected(kind: type) -> None:
    with pytest.raises(InvalidSetting) as error:
        kind(group_by_length=True, pad="max_length")
    assert error.value.key == "group_by_length" and "pad=longest" in str(error.value)
