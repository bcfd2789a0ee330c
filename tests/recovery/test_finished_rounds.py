"""What a recovery leaves in a folder that outlives a kill, and what goes on from there."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sparsefront as sf
from sparsefront.recovery.rounds import RunContext

TRAINER = sf.TrainerSettings(accelerator="cpu", progress_bar=False, checkpoint_seconds=0)
ROUNDS = {"one round": "one_shot", "two rounds": sf.schedule.Iterative(levels=[0.3, 0.6])}


class KilledInTheMiddle(TensorDataset):
    """Ends the training after so many samples."""

    left = 10**9

    def __getitem__(self, index):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().__getitem__(index)


class Recovery:
    """Four epochs of four steps, over all rounds: `masks` and `net` are what they end with."""

    def __init__(self, folder, *, sparsity=0.6, schedule="one_shot", samples=10**9, lr=1e-2, **arguments) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        dense = copy.deepcopy(self.net)
        data = KilledInTheMiddle(torch.randn(32, 8), torch.randint(0, 4, (32,)))
        data.left = samples
        masks = sf.prune(self.net, "element_wise", sparsity, layers="0", schedule=schedule, tell=len)
        self.place = RunContext(folder, folder / "unfinished")
        self.masks = sf.recover(
            self.net,
            masks,
            DataLoader(data, batch_size=8),
            F.cross_entropy,
            **{"epochs": 4, "lr": lr, "trainer": TRAINER, "context": self.place, "dense_net": dense, **arguments},
        )


def killed(folder, **arguments) -> None:
    """In the last epoch but one of its four, which is the first or the second of a round."""
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        Recovery(folder, samples=90, **arguments)


@pytest.mark.parametrize("schedule", ROUNDS.values(), ids=ROUNDS)
def test_finished_recovery_leaves_nothing(tmp_path, schedule):
    Recovery(tmp_path, schedule=schedule)
    assert not (tmp_path / "unfinished").exists()
    second, alone = (
        Recovery(tmp_path, schedule=schedule, lr=0.1),
        Recovery(tmp_path / "alone", schedule=schedule, lr=0.1),
    )
    assert torch.equal(second.net[0].weight, alone.net[0].weight)


@pytest.mark.parametrize("schedule", ROUNDS.values(), ids=ROUNDS)
def test_killed_recovery_goes_on(tmp_path, schedule):
    whole = Recovery(tmp_path / "whole", schedule=schedule)
    killed(tmp_path, schedule=schedule)
    again = Recovery(tmp_path, schedule=schedule, samples=64)
    assert torch.equal(again.net[0].weight, whole.net[0].weight) and torch.equal(again.masks["0"], whole.masks["0"])


OTHERS = {
    "net, masks, pruning": {"sparsity": 0.75},
    "recipe": {"lr": 1e-3},
    "recovery": {"recovery": "lr_rewind"},
    "trainer": {
        "trainer": sf.TrainerSettings(
            accelerator="cpu", accumulate_grad_batches=2, progress_bar=False, checkpoint_seconds=0
        )
    },
}


@pytest.mark.parametrize("differing", OTHERS)
def test_another_recovery_does_not_go_on(tmp_path, differing):
    killed(tmp_path)
    message = (
        f"context.resume_dir=.*unfinished: what another recovery left there differs in {differing}: repeat that one"
    )
    with pytest.raises(sf.InvalidSetting, match=message):
        Recovery(tmp_path, **OTHERS[differing])
