"""A fused optimizer trains as another does, and its gradients are clipped."""

from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from digit_training import small_net, train_digits
from torch import nn

from sparsefront.training.recipe import Recipe
from sparsefront.training.trainer import TrainerSettings

BATCHES = 6


class Watch(pl.Callback):
    """Whether the optimizer is fused, and the norm of the gradients that it took last."""

    def on_before_zero_grad(self, trainer, module, optimizer):
        gradients = [parameter.grad for parameter in module.net.parameters() if parameter.grad is not None]
        if gradients:
            self.fused, self.norm = optimizer.param_groups[0]["fused"], float(nn.utils.get_total_norm(gradients))


def train(folder: Path, precision: str, optimizer: str) -> tuple[dict[str, torch.Tensor], Watch]:
    pl.seed_everything(0, verbose=False)
    recipe, watch = Recipe(epochs=1, gradient_clip=1e-3, optimizer=optimizer), Watch()
    net, trainer = small_net(), {"limit_batches": BATCHES, "precision": precision}
    train_digits(net, folder, recipe, batch_size=16, trainer=trainer, callbacks=(watch,))
    return net.state_dict(), watch


@pytest.mark.parametrize(
    ("precision", "optimizer"), [("32-true", "adamw"), ("bf16-mixed", "adamw"), ("bf16-mixed", "sgd")]
)
def test_fused_weights_equal_but_for_rounding(tmp_path, monkeypatch, precision, optimizer):
    plain, unfused = train(tmp_path, precision, optimizer)
    monkeypatch.setattr(TrainerSettings, "fuses_optimizer", True)
    fused, watch = train(tmp_path, precision, optimizer)
    assert watch.fused and not unfused.fused
    assert watch.norm == pytest.approx(1e-3, rel=1e-2) and unfused.norm == pytest.approx(1e-3, rel=1e-2)
    for name in plain:
        torch.testing.assert_close(fused[name], plain[name], rtol=0, atol=1e-5)
