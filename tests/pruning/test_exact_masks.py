"""Pruned weights are exactly zero after every step of whatever training, and gradual masks only ever lose weights."""

from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from sparsefront.allocation.global_threshold import GlobalThreshold
from sparsefront.data.digits import Digits
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.pruning.make_masks import make_masks
from sparsefront.pruning.masked_weights import MaskedWeights
from sparsefront.pruning.training_masks import ApplyMasks
from sparsefront.schedule.gradual import Gradual
from sparsefront.tasks.classification import ImageClassification
from sparsefront.training.fit import fit, steps_per_epoch
from sparsefront.training.recipe import Optimization, Recipe
from sparsefront.training.trainer import TrainerSettings

LAYERS = ["first", "second.0"]
FINAL = 0.8
MOMENTUM = {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1}
ADAMW = {"optimizer": "adamw", "weight_decay": 0.1}


class Net(nn.Module):
    """With `recompute`, the activations of its second part are computed again for the backward pass."""

    def __init__(self, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.first = nn.Linear(64, 32)
        self.second = nn.Sequential(nn.Linear(32, 24), nn.Tanh())
        self.head = nn.Linear(24, 10)

    def forward(self, x):
        hidden = torch.relu(self.first(x.flatten(1)))
        hidden = checkpoint(self.second, hidden, use_reentrant=False) if self.recompute else self.second(hidden)
        return self.head(hidden)


class Inspect(pl.Callback):
    """Checks every step, and keeps what it saw of the first layer."""

    def __init__(self, net: nn.Module, masked: MaskedWeights) -> None:
        self.net, self.masked = net, masked
        self.pruned: list[int] = []
        self.weights: list[torch.Tensor] = []
        self.validated: list[torch.Tensor] = []
        self._step, self._before = 0, self.masked.masks()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        masks = self.masked.masks()
        for name in LAYERS:
            weight = self.net.get_submodule(name).weight.detach()
            assert torch.equal(weight[~masks[name]], torch.zeros_like(weight[~masks[name]])), "a pruned weight lives"
            before = self._before[name].to(weight.device)  # the network moved to its device after the first masks
            assert not (masks[name] & ~before).any(), "a pruned weight came back"
        self._before = {name: mask.clone() for name, mask in masks.items()}
        if trainer.global_step > self._step:
            self._step = trainer.global_step
            self.pruned.append(sum(int((~mask).sum()) for mask in masks.values()))
            self.weights.append(self.net.first.weight.detach().clone())

    def on_validation_batch_start(self, trainer, module, batch, batch_index):
        if batch_index == 0:
            self.validated.append(self.net.first.weight.detach().clone())


class Run:
    def __init__(
        self,
        folder: Path,
        recipe: dict,
        *,
        accumulate: int = 1,
        precision: str = "32-true",
        accelerator: str = "cpu",
        recompute: bool = False,
        total_steps: int | None = None,
    ) -> None:
        pl.seed_everything(0, verbose=False)
        trainer = TrainerSettings(
            accelerator=accelerator,
            precision=precision,
            accumulate_grad_batches=accumulate,
            limit_batches=6 * accumulate,
            progress_bar=False,
        )
        data = Digits().data_module(batch_size=16, seed=0, cache_dir=folder)
        settings = Recipe(epochs=2, **recipe)
        self.steps = 2 * steps_per_epoch(data, trainer)
        self.net = Net(recompute)
        self.masked = MaskedWeights(self.net, LAYERS)
        self.start = self.net.first.weight.detach().clone()

        def masks_at(sparsity, previous):
            scores = {name: self.net.get_submodule(name).weight.detach().abs() for name in LAYERS}
            return make_masks(
                scores, ElementWise(), GlobalThreshold(), sparsity, final_sparsity=FINAL, previous=previous
            )

        self.masked.set(masks_at(0.0, None))
        gradual = {"schedule": Gradual(updates=5), "sparsity": FINAL, "total_steps": total_steps or self.steps}
        self.apply_masks = ApplyMasks(self.masked, make_masks=masks_at, **gradual)
        self.seen = Inspect(self.net, self.masked)
        optimization = Optimization(settings, lr=0.02, total_steps=self.steps)
        fit(
            ImageClassification(self.net, num_classes=10, optimization=optimization),
            data,
            epochs=2,
            recipe=settings,
            trainer=trainer,
            loggers=[],
            directory=folder,
            callbacks=(self.apply_masks, self.seen),
        )

    def check_end(self) -> None:
        self.masked.check()
        masks = self.masked.masks().values()
        total = sum(mask.numel() for mask in masks)
        assert sum(int((~mask).sum()) for mask in masks) == int(FINAL * total)
        assert len(self.seen.pruned) == self.steps == 12, "schedules count optimizer steps"
        counted = [sparsity for _, sparsity in self.apply_masks.reached]
        assert counted == pytest.approx(sorted({count / total for count in self.seen.pruned})[-5:]), (
            "counted, not as it was asked"
        )
        assert self.seen.pruned == sorted(self.seen.pruned) and len(set(self.seen.pruned)) == 1 + 5
        assert not torch.equal(self.net.first.weight.detach().cpu(), self.start), "it trained"


@pytest.mark.parametrize(
    ("recipe", "how"),
    [
        (MOMENTUM, {}),
        (ADAMW, {}),
        (MOMENTUM, {"accumulate": 3}),
        (ADAMW, {"precision": "bf16-mixed"}),
        (MOMENTUM, {"recompute": True}),
    ],
    ids=["momentum", "adamw", "accumulated", "bf16", "checkpointed"],
)
def test_pruned_weights_after_every_step(tmp_path, recipe, how):
    Run(tmp_path, recipe, **how).check_end()


def test_training_that_ends_too_early(tmp_path):
    with pytest.raises(RuntimeError, match="ended before steps"):
        Run(tmp_path, ADAMW, total_steps=100)


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", [MOMENTUM, ADAMW], ids=["momentum", "adamw"])
@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed"])
def test_pruned_weights_on_a_gpu(tmp_path, recipe, precision):
    """16-mixed: the scaler's first steps overflow and are skipped."""
    Run(tmp_path, recipe, precision=precision, accelerator="gpu").check_end()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_averages_are_masked_by_last_masks(tmp_path, accumulate):
    decay = 0.7
    run = Run(tmp_path, ADAMW | {"ema": decay}, accumulate=accumulate)
    run.check_end()
    average, averages = run.start, []
    for weight in run.seen.weights:
        average = decay * average + (1 - decay) * weight
        averages.append(average)
    mask = run.masked.masks()["first"]
    assert (averages[-1][~mask] != 0).any(), "weights that were pruned on the way left traces to be masked"
    torch.testing.assert_close(run.net.first.weight.detach(), averages[-1] * mask, rtol=1e-5, atol=1e-6)
    assert torch.equal(run.net.first.weight[~mask], torch.zeros_like(run.net.first.weight[~mask]))
