"""With trainer.deterministic equal runs give equal weights, and nothing after the training is slowed down."""

import os
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from digit_training import train_digits
from torch import nn
from torch.utils import deterministic as debugging

from sparsefront.errors import InvalidSetting
from sparsefront.training import compilation
from sparsefront.training.recipe import Recipe
from sparsefront.training.trainer import TrainerSettings

BATCHES = 8


class Net(nn.Module):
    """A bag of embeddings, whose gradient a GPU adds in any order, and which notes how torch is set."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(17, 32), nn.Linear(32, 10)
        self.seen: list[tuple[bool, bool, bool]] = []

    def forward(self, x):
        self.seen.append(state())
        features = nn.functional.embedding(x.flatten(1).mul(16).long().clamp(0, 16), self.embedding.weight)
        index = torch.arange(len(x), device=x.device).repeat_interleave(features.shape[1])
        summed = torch.zeros(len(x), 32, device=x.device).index_add(0, index, features.flatten(0, 1).float())
        return self.head(summed)


class Accumulates(Net):
    """`put_` without accumulation has no order on any device."""

    def forward(self, x):
        x.clone().put_(torch.zeros(1, dtype=torch.long, device=x.device), x.flatten()[:1])
        return super().forward(x)


def state() -> tuple[bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        debugging.fill_uninitialized_memory,
        torch.backends.cudnn.benchmark,
    )


def train(net: nn.Module, folder: Path, **trainer) -> dict[str, torch.Tensor]:
    train_digits(net, folder, Recipe(epochs=1), lr=0.1, batch_size=64, trainer={"limit_batches": BATCHES} | trainer)
    return {name: value.cpu() for name, value in net.state_dict().items()}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """As it was, after the test."""
    monkeypatch.setenv(compilation.WORKSPACE, os.environ.get(compilation.WORKSPACE, compilation.FIXED_WORKSPACE))


@pytest.mark.parametrize("wanted", [True, False])
def test_only_while_it_trains(tmp_path, wanted):
    before, net = state(), Net()
    train(net, tmp_path, deterministic=wanted)
    assert set(net.seen) == ({(True, False, False)} if wanted else {before})
    assert state() == before


def test_nondeterministic_operation_is_named(tmp_path):
    before = state()
    with pytest.raises(InvalidSetting, match=r"trainer\.deterministic=True: put_.*; use false"):
        train(Accumulates(), tmp_path, deterministic=True)
    assert state() == before


def test_deterministic_stages_have_own_keys():
    plain, fixed = TrainerSettings(accelerator="cpu"), TrainerSettings(accelerator="cpu", deterministic=True)
    assert "deterministic" not in plain.cache_key()
    assert fixed.cache_key() == plain.cache_key() | {"deterministic": True}


@pytest.mark.gpu
def test_equal_gpu_runs_give_equal_weights(tmp_path):
    def weights(run: int) -> dict[str, torch.Tensor]:
        pl.seed_everything(0, verbose=False)
        return train(Net(), tmp_path / str(run), deterministic=True, accelerator="gpu")

    first, second = weights(0), weights(1)
    assert all(torch.equal(first[name], second[name]) for name in first)
