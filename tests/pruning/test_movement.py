"""Scores accumulated in training: against sums by hand, however the step comes about."""

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.precision import MixedPrecision
from torch import nn

from sparsefront.importance.movement import Movement
from sparsefront.importance.taylor import Taylor
from sparsefront.pruning.training_masks import AccumulateScores

LR = 0.1


class Regression(pl.LightningModule):
    """mean((x W^T - y)^2) by plain gradient descent; its gradient is known in closed form."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 2, bias=False))

    def training_step(self, batch, batch_index):
        x, y = batch
        return (self.net(x).float() - y).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=LR)


def gradient(weight: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return 2 * (x @ weight.t() - y).t() @ x / y.numel()


def data(batches: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(4, 3, generator=generator), torch.randn(4, 2, generator=generator)) for _ in range(batches)]


def train(module: Regression, batches: list, *callbacks: pl.Callback, **options) -> pl.Trainer:
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(module, torch.utils.data.DataLoader(batches, batch_size=None))
    return trainer


def by_hand(weight: torch.Tensor, batches: list, accumulate: int = 1, keep: torch.Tensor | None = None) -> torch.Tensor:
    weight, moved = weight.clone(), torch.zeros_like(weight)
    for start in range(0, len(batches), accumulate):
        step = batches[start : start + accumulate]
        g = sum(gradient(weight, x, y) for x, y in step) / accumulate
        moved -= weight * g
        weight -= LR * g
        if keep is not None:
            weight *= keep
    return moved


@pytest.mark.parametrize("accumulate", [1, 2])
def test_sums_over_steps(accumulate):
    module, batches = Regression(), data(6)
    weight = module.net[0].weight.detach().clone()
    movement = AccumulateScores(module.net, ["0"], Movement())
    assert torch.equal(movement.sums()["0"], torch.zeros(2, 3))
    train(module, batches, movement, accumulate_grad_batches=accumulate)
    torch.testing.assert_close(movement.sums()["0"], by_hand(weight, batches, accumulate))


def test_taylor_forgets_earlier_steps():
    module, batches = Regression(), data(5)
    weight, expected = module.net[0].weight.detach().clone(), torch.zeros(2, 3)
    for x, y in batches:
        g = gradient(weight, x, y)
        expected = 0.75 * expected + (weight * g).abs()
        weight -= LR * g
    scores = AccumulateScores(module.net, ["0"], Taylor(batches=4, from_training=True))
    train(module, batches, scores)
    torch.testing.assert_close(scores.sums()["0"], expected)


class Overflowing(torch.amp.GradScaler):
    """Pretends, as fp16 would make it happen, that the scaled gradients of one step are too large."""

    def __init__(self, overflows: int) -> None:
        super().__init__("cpu", init_scale=1024.0)
        self.step_index, self.overflows = 0, overflows

    def unscale_(self, optimizer):
        if self.step_index == self.overflows:
            optimizer.param_groups[0]["params"][0].grad[0, 0] = float("inf")
        self.step_index += 1
        super().unscale_(optimizer)


def test_skipped_step_adds_nothing():
    module, batches = Regression(), data(4)
    weight = module.net[0].weight.detach().clone()
    movement = AccumulateScores(module.net, ["0"], Movement())
    precision = MixedPrecision("16-mixed", "cpu", scaler=Overflowing(overflows=1))
    train(module, batches, movement, plugins=[precision])
    taken = [batch for index, batch in enumerate(batches) if index != 1]
    torch.testing.assert_close(movement.sums()["0"], by_hand(weight, taken), rtol=2e-2, atol=2e-3)


def test_sums_go_on_from_checkpoint(tmp_path):
    batches = data(6)
    module = Regression()
    whole = AccumulateScores(module.net, ["0"], Movement())
    train(module, batches, whole)

    module = Regression()
    trainer = train(module, batches[:3], AccumulateScores(module.net, ["0"], Movement()))
    trainer.save_checkpoint(tmp_path / "half.ckpt")

    resumed = Regression()
    movement = AccumulateScores(resumed.net, ["0"], Movement())
    state = torch.load(tmp_path / "half.ckpt", weights_only=True)
    resumed.load_state_dict(state["state_dict"])
    movement.load_state_dict(state["callbacks"]["AccumulateScores"])
    train(resumed, batches[3:], movement)
    assert torch.equal(movement.sums()["0"], whole.sums()["0"])
