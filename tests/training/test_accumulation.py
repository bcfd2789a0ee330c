"""Every optimizer step takes the mean of its batches' gradients, also the last one of an epoch."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sparsefront.importance.movement import Movement
from sparsefront.pruning.training_masks import AccumulateScores
from sparsefront.tasks.lightning_modules import LightningBatches, LightningPlainTask
from sparsefront.training.fit import fit
from sparsefront.training.recipe import Optimization, Recipe
from sparsefront.training.trainer import TrainerSettings

BATCHES, LR = 5, 0.1
PLAIN = Recipe(
    epochs=2, optimizer="sgd", momentum=0.0, weight_decay=0.0, warmup=0.0, decay="constant", gradient_clip=None
)
TOGETHER = {1: [1] * 5, 2: [2, 2, 1], 4: [4, 1], 5: [5], 8: [5]}
"""Batches of a step -> those of each step of an epoch of five."""


def network() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(6, 3)


def loader() -> DataLoader:
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(BATCHES * 4, 6, generator=generator), torch.randint(0, 3, (BATCHES * 4,), generator=generator)
    return DataLoader(TensorDataset(*data), batch_size=4)


@pytest.mark.parametrize("accumulated", TOGETHER)
def test_step_averages_its_batches(tmp_path, accumulated):
    net, expected = network(), network()
    movement = AccumulateScores(net, [""], Movement())
    fit(
        LightningPlainTask(net, F.cross_entropy, Optimization(PLAIN, lr=LR, total_steps=100)),
        LightningBatches(loader(), net, argument="data"),
        epochs=2,
        recipe=PLAIN,
        trainer=TrainerSettings(accelerator="cpu", progress_bar=False, accumulate_grad_batches=accumulated),
        loggers=[],
        directory=tmp_path,
        callbacks=(movement,),
    )
    moved = torch.zeros_like(expected.weight)
    for _ in range(2):
        batches = iter(loader())
        for count in TOGETHER[accumulated]:
            loss = sum(F.cross_entropy(expected(x), y) for x, y in (next(batches) for _ in range(count))) / count
            gradients = torch.autograd.grad(loss, [expected.weight, expected.bias])
            moved -= expected.weight.detach() * gradients[0]
            with torch.no_grad():
                for parameter, gradient in zip((expected.weight, expected.bias), gradients, strict=True):
                    parameter -= LR * gradient
    torch.testing.assert_close(net.weight, expected.weight)
    torch.testing.assert_close(movement.sums()[""], moved)
