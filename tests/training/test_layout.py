"""Filters that lie channels last while they train: the same weights but for rounding, contiguous afterwards."""

from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from digit_training import Net, train_digits
from torch import nn

from sparsefront.pruning.masked_weights import MaskedWeights
from sparsefront.training.compilation import channels_last
from sparsefront.training.recipe import Recipe
from sparsefront.training.trainer import TrainerSettings

BATCHES, FORMAT = 6, torch.channels_last


class Watch(pl.Callback):
    """Of the last step: layouts of filter, gradient, momentum and mask, and the batch that the network was given."""

    def on_before_zero_grad(self, trainer, module, optimizer):
        weight = module.net[2].weight
        if weight.grad is not None:
            momentum = optimizer.state[weight]["momentum_buffer"]
            self.laid = [one.is_contiguous(memory_format=FORMAT) for one in (weight, weight.grad, momentum)]

    def on_train_batch_start(self, trainer, module, batch, batch_index):
        self.batch = batch


def train(folder: Path, **settings) -> tuple[dict[str, torch.Tensor], Watch]:
    pl.seed_everything(0, verbose=False)
    recipe, watch = Recipe(epochs=1, optimizer="sgd"), Watch()
    net = Net(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(96, 10))
    masked = MaskedWeights(net, ["2"])
    masked.set({"2": torch.arange(6 * 4 * 9).view(6, 4, 3, 3) % 3 > 0})
    train_digits(
        net, folder, recipe, lr=0.1, batch_size=16, trainer={"limit_batches": BATCHES} | settings, callbacks=(watch,)
    )
    masked.apply()
    masked.check()
    assert all(weight.is_contiguous() for weight in net.parameters())
    return net.state_dict(), watch


def test_laid_weights_equal_but_for_rounding(tmp_path, monkeypatch):
    plain, watch = train(tmp_path)
    assert (
        watch.laid == [False] * 3 and watch.batch.keys() == {"x", "labels"} and watch.batch["x"].dtype == torch.float32
    )
    monkeypatch.setattr(TrainerSettings, "lays_channels_last", True)
    laid, watch = train(tmp_path)
    assert watch.laid == [True] * 3
    for name in plain:
        torch.testing.assert_close(laid[name], plain[name], rtol=0, atol=1e-5)


@pytest.mark.gpu
def test_gpu_weights_equal_but_for_rounding(tmp_path):
    plain, _ = train(tmp_path)
    laid, watch = train(tmp_path, accelerator="gpu", precision="bf16-mixed")
    assert watch.laid == [True] * 3 and watch.batch["x"].is_cuda
    for name in plain:
        torch.testing.assert_close(laid[name], plain[name], rtol=0, atol=0.02)


def test_plain_convolutions_are_laid_meanwhile(tmp_path):
    class Own(nn.Conv2d):
        pass

    net = nn.Sequential(nn.Conv2d(4, 4, 3), Own(4, 4, 3), nn.Conv1d(4, 4, 3), nn.Linear(4, 4))
    with pytest.raises(RuntimeError, match="stop"), channels_last(net, wanted=True):
        assert [part.weight.is_contiguous() for part in net] == [False, True, True, True]
        raise RuntimeError("stop")
    with channels_last(net, wanted=False):
        assert all(part.weight.is_contiguous() for part in net)
