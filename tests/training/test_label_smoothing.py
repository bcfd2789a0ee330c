"""Label smoothing: what it does to the loss of a training, and to nothing else."""

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import nn

from sparsefront.recovery.distillation import Distillation
from sparsefront.tasks.classification import ImageClassification
from sparsefront.tasks.lightning_modules import LightningBatches, LightningPlainTask
from sparsefront.training.fit import fit
from sparsefront.training.recipe import Optimization, Recipe
from sparsefront.training.trainer import TrainerSettings

LABELS = torch.tensor([0, 2, 1, 2])


def logits() -> torch.Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


def test_smoothed_loss_is_that_of_pytorch():
    task = ImageClassification(nn.Linear(1, 1), num_classes=3)
    task.label_smoothing = 0.1
    expected = F.cross_entropy(logits(), LABELS, label_smoothing=0.1)
    torch.testing.assert_close(task.training_loss(logits(), {"labels": LABELS}), expected)
    torch.testing.assert_close(task.loss(logits(), {"labels": LABELS}), F.cross_entropy(logits(), LABELS))


def test_labels_beside_a_teacher():
    net = nn.Linear(5, 3)
    task = ImageClassification(net, num_classes=3)
    task.net_inputs = lambda batch: {"input": batch["x"]}
    task.label_smoothing = 0.3
    distillation = Distillation(nn.Linear(5, 3), hardness=0.0, temperature=2.0)
    distillation.on_train_start(None, task)
    batch = {"x": torch.randn(4, 5), "labels": LABELS}
    output = net(batch["x"])
    expected = F.cross_entropy(output, LABELS, label_smoothing=0.3)
    torch.testing.assert_close(task.training_loss(output, batch), expected)


class Losses(pl.Callback):
    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.seen.append(float(outputs["loss"]))


@pytest.mark.parametrize("smoothing", [0.0, 0.25])
def test_the_recipe_smooths_every_training(smoothing, tmp_path):
    recipe = Recipe(label_smoothing=smoothing, optimizer="sgd", lr=1e-9, momentum=0.0, weight_decay=0.0)
    net = nn.Linear(5, 3)
    x = torch.randn(4, 5)
    task = LightningPlainTask(net, F.cross_entropy, Optimization(recipe, lr=1e-9, total_steps=1))
    losses = Losses()
    data = LightningBatches([(x, LABELS)], net, argument="train_dataloader")
    settings = TrainerSettings(accelerator="cpu", checkpoint=False, progress_bar=False)
    fit(task, data, epochs=1, recipe=recipe, trainer=settings, loggers=[], directory=tmp_path, callbacks=(losses,))
    expected = F.cross_entropy(net(x), LABELS, label_smoothing=smoothing).item()
    assert losses.seen == pytest.approx([expected], rel=1e-4)
