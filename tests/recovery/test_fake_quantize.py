"""Training in fp8: what products see, what gradients see, and that weights and masks stay what they were."""

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from sparsefront_kernels.quantized.quantize import dequantize, quantize
from torch import nn

import sparsefront as sf
from sparsefront.recovery.fake_quantize import apply_quantized, round_rows
from sparsefront.recovery.finetune import Finetune
from sparsefront.training.trainer import TrainerSettings

TRAINER = TrainerSettings(accelerator="cpu", progress_bar=False, checkpoint=False)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_rounding_is_that_of_kernels(scale):
    x = scale * torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    x[3], x[5, 2] = 0.0, 0.0
    assert torch.equal(round_rows(x), dequantize(quantize(x, "fp8")))
    assert (round_rows(x)[3] == 0).all() and round_rows(x)[5, 2] == 0
    assert round_rows(x.half()).dtype == torch.float16


def test_gradient_of_rounded_operands():
    layer, x = nn.Linear(8, 4), torch.randn(2, 3, 8, requires_grad=True)
    given = torch.randn(2, 3, 4)
    y = apply_quantized(layer, x)
    y.backward(given)
    assert torch.equal(y, F.linear(round_rows(x), round_rows(layer.weight), layer.bias))
    expected = given.flatten(0, 1).T @ round_rows(x).flatten(0, 1)
    torch.testing.assert_close(layer.weight.grad, expected)
    torch.testing.assert_close(x.grad, given @ round_rows(layer.weight).detach())


class Watch(pl.Callback):
    """What the layers gave in each step, and what fp8 and fp32 would have given."""

    def __init__(self, net):
        self.rounds, self.net = [], net

    @torch.no_grad()
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        x, layer = torch.ones(1, 16) / 3, self.net[0]
        self.rounds.append(torch.equal(layer(x), F.linear(round_rows(x), round_rows(layer.weight), layer.bias)))


def test_recovery_in_fp8(monkeypatch):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    masks = sf.prune(net, "element_wise", 0.5, tell=len)
    batches, watch, seen = [(torch.randn(8, 16), torch.randint(4, (8,)))] * 3, Watch(net), {}
    monkeypatch.setattr(Finetune, "callbacks", lambda self, round: (watch,))
    for quantize_it in (True, False):
        watch.rounds.clear()
        left = sf.recover(
            net, masks, batches, F.cross_entropy, recovery=Finetune(quantize=quantize_it), epochs=1, trainer=TRAINER
        )
        assert watch.rounds == [quantize_it] * 3
        assert all((net.get_submodule(name).weight[~mask] == 0).all() for name, mask in left.items())
        assert all("forward" not in vars(module) for module in net.modules())
        seen[quantize_it] = set(net.state_dict())
    assert seen[True] == seen[False]
