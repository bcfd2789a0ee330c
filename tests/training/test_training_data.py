"""Which batches a rank trains on, and in which order a resumed training does."""

from pathlib import Path

import pytest
import torch
from torch.utils.data import BatchSampler, SequentialSampler

from sparsefront.data.digits import Digits
from sparsefront.training.fit import steps_per_epoch
from sparsefront.training.resume import RankBatches, TrainingData
from sparsefront.training.trainer import TrainerSettings


@pytest.fixture
def data():
    return Digits().data_module(batch_size=64, seed=0, cache_dir=Path())


def rows(loader) -> list[float]:
    """One number per batch, by which to recognize it."""
    return [batch["x"].sum().item() for batch in loader]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 6, 7])
def test_ranks_take_turns(world_size, count):
    batches = BatchSampler(SequentialSampler(range(4 * count - 1)), 4, drop_last=False)
    shares = [RankBatches(batches, rank, world_size) for rank in range(world_size)]
    taken = [list(share) for share in shares]
    assert {len(share) for share in shares} == {len(part) for part in taken} == {-(-count // world_size)}
    in_turn = [batch for step in zip(*taken, strict=True) for batch in step]
    assert in_turn[:count] == list(batches), "together what a single process takes, in its order"
    assert all(batch in list(batches) for batch in in_turn[count:]), "what is taken twice is a batch, too"


def test_single_process_sees_every_row(data):
    stored = list(TrainingData(data).train_dataloader())
    assert stored[0]["x"].dtype == torch.uint8, "what is left to do is done where the network is"
    batches = list(map(data.part("train").finished, stored))
    assert [len(batch["labels"]) for batch in batches] == [64] * 20 + [14]
    seen = torch.cat([batch["x"].flatten(1) for batch in batches])
    every = data.part("train").__getitems__(list(range(1294)))["x"].flatten(1)
    assert torch.equal(seen.unique(dim=0), every.unique(dim=0)) and not torch.equal(seen, every)


def test_order_resumes(data):
    whole = TrainingData(data)
    loader = whole.train_dataloader()
    first = rows(loader)
    state = whole.state_dict()
    second, third = rows(loader), rows(loader)
    assert first != second != third
    resumed = TrainingData(data)
    resumed.load_state_dict(state)
    loader = resumed.train_dataloader()
    assert [rows(loader), rows(loader)] == [second, third]


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({}, 21),
        ({"devices": 2}, 11),
        ({"accumulate_grad_batches": 4}, 6),
        ({"devices": 2, "accumulate_grad_batches": 3}, 4),
        ({"limit_batches": 5}, 5),
        ({"limit_batches": 5, "devices": 2, "accumulate_grad_batches": 2}, 3),
        ({"limit_batches": 500}, 21),
    ],
)
def test_steps_are_those_of_the_optimizer(data, settings, steps):
    """Of 1294 digits: 20 batches of 64 and one of 14."""
    assert len(data.train_dataloader()) == 21
    assert steps_per_epoch(data, TrainerSettings(accelerator="cpu", **settings)) == steps
