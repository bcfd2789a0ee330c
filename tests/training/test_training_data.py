"""Which batches a rank trains on, in which order, and with which settings of its loader."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler

from sparsefront.data.digits import Digits
from sparsefront.tasks.lightning_modules import LightningBatches
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
    batches = list(map(data.part("train").process, stored))
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


# A user's DataLoader as it is trained on: with its workers, and with random numbers that follow its seed.

SETTINGS = {
    "num_workers": 1,
    "prefetch_factor": 5,
    "timeout": 30.0,
    "multiprocessing_context": "fork",
    "persistent_workers": True,
    "in_order": False,
    "pin_memory": True,
}


NET = nn.Linear(3, 1)


class Drawn(Dataset):
    """Every sample is drawn from torch's generator when it is read."""

    scale = 0.0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.rand(3) * self.scale + 1, index


def scale_by_two(worker: int) -> None:
    torch.utils.data.get_worker_info().dataset.scale = 2.0


def trained_on(**settings) -> TrainingData:
    loader = DataLoader(Drawn(), batch_size=2, worker_init_fn=scale_by_two, **settings)
    return TrainingData(LightningBatches(loader, NET, argument="data"))


def epoch(loader: DataLoader) -> list[float]:
    return [batch["input"].sum().item() for batch in loader]


def test_every_setting_of_the_loader_stays():
    loader = trained_on(**SETTINGS).train_dataloader()
    kept = {name: getattr(loader, name) for name in SETTINGS}
    assert kept.pop("multiprocessing_context").get_start_method() == "fork"
    assert kept == {name: value for name, value in SETTINGS.items() if name in kept}
    assert loader.worker_init_fn is scale_by_two


def test_workers_keep_function_and_seed():
    found = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        found.append(epoch(trained_on(num_workers=1).train_dataloader()))
        assert torch.equal(torch.get_rng_state(), before), "what the network draws stays as it is"
    assert found[0] == found[2] != found[1] and max(found[0]) > 6
