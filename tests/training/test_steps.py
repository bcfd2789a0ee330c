"""A training step with accumulated batches, smoothed labels, a fused optimizer, and filters that lie channels last."""

from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from digit_training import Net, small_net, train_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sparsefront.importance.movement import Movement
from sparsefront.pruning.masked_weights import MaskedWeights
from sparsefront.pruning.training_masks import AccumulateScores
from sparsefront.recovery.distillation import Distillation
from sparsefront.tasks.classification import ImageClassification
from sparsefront.tasks.lightning_modules import LightningBatches, LightningPlainTask
from sparsefront.training.fit import fit
from sparsefront.training.recipe import Optimization, Recipe
from sparsefront.training.trainer import TrainerSettings

PER_EPOCH, LR = 5, 0.1
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
    data = (
        torch.randn(PER_EPOCH * 4, 6, generator=generator),
        torch.randint(0, 3, (PER_EPOCH * 4,), generator=generator),
    )
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


# Label smoothing: what it does to the loss of a training, and to nothing else.

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


# A fused optimizer trains as another does, and its gradients are clipped.

STEPS = 6


class WatchOptimizer(pl.Callback):
    """Whether the optimizer is fused, and the norm of the gradients that it took last."""

    def on_before_zero_grad(self, trainer, module, optimizer):
        gradients = [parameter.grad for parameter in module.net.parameters() if parameter.grad is not None]
        if gradients:
            self.fused, self.norm = optimizer.param_groups[0]["fused"], float(nn.utils.get_total_norm(gradients))


def train_fused(folder: Path, precision: str, optimizer: str) -> tuple[dict[str, torch.Tensor], WatchOptimizer]:
    pl.seed_everything(0, verbose=False)
    recipe, watch = Recipe(epochs=1, gradient_clip=1e-3, optimizer=optimizer), WatchOptimizer()
    net, trainer = small_net(), {"limit_batches": STEPS, "precision": precision}
    train_digits(net, folder, recipe, batch_size=16, trainer=trainer, callbacks=(watch,))
    return net.state_dict(), watch


@pytest.mark.parametrize(
    ("precision", "optimizer"), [("32-true", "adamw"), ("bf16-mixed", "adamw"), ("bf16-mixed", "sgd")]
)
def test_fused_weights_equal_but_for_rounding(tmp_path, monkeypatch, precision, optimizer):
    plain, unfused = train_fused(tmp_path, precision, optimizer)
    monkeypatch.setattr(TrainerSettings, "fuses_optimizer", True)
    fused, watch = train_fused(tmp_path, precision, optimizer)
    assert watch.fused and not unfused.fused
    assert watch.norm == pytest.approx(1e-3, rel=1e-2) and unfused.norm == pytest.approx(1e-3, rel=1e-2)
    for name in plain:
        torch.testing.assert_close(fused[name], plain[name], rtol=0, atol=1e-5)


# Filters that lie channels last while they train: the same weights but for rounding, contiguous afterwards.

FORMAT = torch.channels_last


class WatchLayout(pl.Callback):
    """Of the last step: layouts of filter, gradient, momentum and mask, and the batch that the network was given."""

    def on_before_zero_grad(self, trainer, module, optimizer):
        weight = module.net[2].weight
        if weight.grad is not None:
            momentum = optimizer.state[weight]["momentum_buffer"]
            self.laid = [one.is_contiguous(memory_format=FORMAT) for one in (weight, weight.grad, momentum)]

    def on_train_batch_start(self, trainer, module, batch, batch_index):
        self.batch = batch


def train_laid(folder: Path, **settings) -> tuple[dict[str, torch.Tensor], WatchLayout]:
    pl.seed_everything(0, verbose=False)
    recipe, watch = Recipe(epochs=1, optimizer="sgd"), WatchLayout()
    net = Net(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(96, 10))
    masked = MaskedWeights(net, ["2"])
    masked.set({"2": torch.arange(6 * 4 * 9).view(6, 4, 3, 3) % 3 > 0})
    train_digits(
        net, folder, recipe, lr=0.1, batch_size=16, trainer={"limit_batches": STEPS} | settings, callbacks=(watch,)
    )
    masked.apply()
    masked.check()
    assert all(weight.is_contiguous() for weight in net.parameters())
    return net.state_dict(), watch


def test_laid_weights_equal_but_for_rounding(tmp_path, monkeypatch):
    plain, watch = train_laid(tmp_path)
    assert (
        watch.laid == [False] * 3 and watch.batch.keys() == {"x", "labels"} and watch.batch["x"].dtype == torch.float32
    )
    monkeypatch.setattr(TrainerSettings, "lays_channels_last", True)
    laid, watch = train_laid(tmp_path)
    assert watch.laid == [True] * 3
    for name in plain:
        torch.testing.assert_close(laid[name], plain[name], rtol=0, atol=1e-5)


@pytest.mark.gpu
def test_gpu_weights_equal_but_for_rounding(tmp_path):
    plain, _ = train_laid(tmp_path)
    laid, watch = train_laid(tmp_path, accelerator="gpu", precision="bf16-mixed")
    assert watch.laid == [True] * 3 and watch.batch["x"].is_cuda
    for name in plain:
        torch.testing.assert_close(laid[name], plain[name], rtol=0, atol=0.02)
