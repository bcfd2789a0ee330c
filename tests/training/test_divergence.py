"""A training that diverges ends at once with one line, and leaves nothing that a later run would take for finished."""

from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from digit_training import small_net, train_digits
from pytorch_lightning.plugins.precision import MixedPrecision
from torch import Tensor, nn

from sparsefront.tasks.classification import ImageClassification
from sparsefront.training.lightning_parts import Diverged, StopAtDivergence
from sparsefront.training.recipe import Recipe

BATCHES = 12


class Broken(ImageClassification):
    """The loss of one training step, counted from 0 over all epochs, is what it is told."""

    broken_at, value = -1, float("nan")
    seen = 0

    def training_loss(self, output: Tensor, batch: dict[str, Tensor]) -> Tensor:
        loss = super().training_loss(output, batch)
        self.seen += 1
        return loss * self.value if self.seen == self.broken_at + 1 else loss


def train(folder: Path, *, epochs: int = 3, broken_at: int = -1, value: float = float("nan"), **recipe) -> None:
    pl.seed_everything(0, verbose=False)
    settings, broken = (
        Recipe(epochs=epochs, **recipe),
        type("Task", (Broken,), {"broken_at": broken_at, "value": value}),
    )
    trainer = {"limit_batches": BATCHES, "checkpoint_seconds": 0}
    options = {"lr": settings.lr, "task": broken, "trainer": trainer, "stage": "dense"}
    train_digits(small_net(), folder, settings, **options, resume_dir=folder / "unfinished")


def test_line_names_step_and_remedy(tmp_path):
    """Step 17 of 12 an epoch is in epoch 2; at a constant rate without warm-up it is the peak's."""
    with pytest.raises(Diverged) as stopped:
        train(tmp_path, broken_at=16, decay="constant", warmup=0.0, lr=0.002, gradient_clip=None)
    assert str(stopped.value) == (
        "stage dense diverged: the loss is nan (epoch 2 of 3, step 17, learning rate 0.002); "
        "lower recipe.lr or set recipe.gradient_clip=1. Nothing of this training is stored"
    )


@pytest.mark.parametrize(("broken_at", "value"), [(1, -float("inf")), (11, float("nan")), (35, float("nan"))])
def test_whichever_step_it_is(tmp_path, broken_at, value):
    with pytest.raises(Diverged, match=f"epoch {broken_at // BATCHES + 1} of 3, step {broken_at + 1}, "):
        train(tmp_path, broken_at=broken_at, value=value)


class Overflows(pl.LightningModule):
    """Its gradients overflow when the loss is scaled, as those of fp16 do: the scaler skips the step."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 1, bias=False)

    def training_step(self, batch, batch_index):
        return self.net(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_skipped_steps_are_no_divergence():
    module = Overflows()
    before = module.net.weight.detach().clone()
    finite = StopAtDivergence(stage="dense", lr_key="recipe.lr", recipe=Recipe(), precision="16-mixed")
    scaler = torch.amp.GradScaler("cpu", init_scale=3e38, growth_interval=10**6)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        plugins=[MixedPrecision("16-mixed", "cpu", scaler)],
        callbacks=[finite],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader([torch.full((4, 2), 100.0)], batch_size=None))
    assert torch.equal(module.net.weight, before), "the step was skipped"
    finite.check_weights(module)
