"""Masks while a network trains with Lightning: tightened on time, nested, exact at the end."""

import logging

import pytest
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sparsefront.allocation.per_layer import PerLayer
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.tile_wise import TileWise
from sparsefront.pruning.make_masks import make_masks
from sparsefront.pruning.masked_weights import MaskedWeights
from sparsefront.pruning.training_masks import ApplyMasks
from sparsefront.schedule.gradual import Gradual
from sparsefront.schedule.one_shot import OneShot

LAYERS = ["0", "2"]
FINAL = 0.75


class Regression(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))

    def training_step(self, batch, batch_index):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def loader(rows: int) -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(rows, 32), torch.randn(rows, 16)), batch_size=16)


def trainer(apply_masks: ApplyMasks, **length) -> pl.Trainer:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return pl.Trainer(accelerator="cpu", callbacks=[apply_masks], **quiet, **length)


def train(schedule, pattern, *, accumulate: int = 1, total_steps: int = 12) -> tuple[Regression, MaskedWeights, list]:
    """The trained module, its masks, and the masks after every change."""
    pl.seed_everything(0, verbose=False)
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    module = Regression()
    masked = MaskedWeights(module.net, LAYERS)
    history: list[dict[str, torch.Tensor]] = []

    def masks_at(sparsity, previous):
        scores = {name: module.net.get_submodule(name).weight.detach().abs() for name in LAYERS}
        masks = make_masks(scores, pattern, PerLayer(), sparsity, final_sparsity=FINAL, previous=previous)
        history.append({name: mask.clone() for name, mask in masks.items()})
        return masks

    masked.set(masks_at(schedule.sparsity_at(0.0, FINAL), None))
    apply_masks = ApplyMasks(masked, schedule=schedule, sparsity=FINAL, make_masks=masks_at, total_steps=total_steps)
    fitted = trainer(apply_masks, max_epochs=1, accumulate_grad_batches=accumulate)
    fitted.fit(module, loader(16 * accumulate * total_steps))
    zeros = [1 - sum(int(mask.sum()) for mask in masks.values()) / (64 * 32 + 16 * 64) for masks in history]
    assert [sparsity for _, sparsity in apply_masks.reached] == zeros[1:], "counted, not as it was asked"
    if apply_masks.reached:
        assert fitted.callback_metrics["train/sparsity"] == pytest.approx(zeros[-1])
    return module, masked, history


@pytest.mark.parametrize("accumulate", [1, 2])
def test_masks_change_at_updates_alone(accumulate):
    schedule = Gradual(end=0.8, updates=5)
    module, masked, history = train(schedule, TileWise(granularity=8), accumulate=accumulate)
    assert len(history) == 1 + 5, "the first masks and one change per update, not per batch"
    masked.check()
    module, masked, history = train(OneShot(), NM())
    assert len(history) == 1 and all(torch.equal(masked.masks()[layer], history[0][layer]) for layer in LAYERS)


def test_training_that_ends_too_early():
    module = Regression()
    masked = MaskedWeights(module.net, LAYERS)
    apply_masks = ApplyMasks(masked, schedule=Gradual(), sparsity=FINAL, make_masks=lambda *_: {}, total_steps=100)
    with pytest.raises(RuntimeError, match="ended before steps"):
        trainer(apply_masks, max_steps=2).fit(module, loader(64))
