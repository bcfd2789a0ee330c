"""Masks in a training loop of one's own: whatever steps, pruned weights are zero when anybody looks."""

import copy

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks as hooks_of_all

import sparsefront as sf

BATCHES = [(torch.randn(8, 16), torch.randint(0, 4, (8,))) for _ in range(4)]
OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True),
}


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


@pytest.fixture
def masks(net) -> sf.Masks:
    """Made of a copy: the weights of the network itself are all there."""
    return sf.prune(copy.deepcopy(net), "element_wise", 0.5, layers=["0", "2"], tell=len)


def is_held(net: nn.Module, masks: dict[str, torch.Tensor]) -> bool:
    weights = {name: net.get_submodule(name).weight for name in masks}
    return not any(weights[name][~mask].any() for name, mask in masks.items())


def step(net: nn.Module, optimizer: torch.optim.Optimizer, batch) -> None:
    optimizer.zero_grad()
    F.cross_entropy(net(batch[0]), batch[1]).backward()
    optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_momentum_and_decay(net, masks, name):
    optimizer = OPTIMIZERS[name](net.parameters())
    step(net, optimizer, BATCHES[0])  # momentum of weights that are pruned now
    before, names = net[0].weight.clone(), list(net.state_dict())
    with sf.hold(net, masks):
        assert is_held(net, masks) and list(net.state_dict()) == names
        for batch in BATCHES:
            step(net, optimizer, batch)
            assert is_held(net, masks)
    assert is_held(net, masks) and (net[0].weight[masks["0"]] != before[masks["0"]]).all()
    assert not net._forward_pre_hooks and not net._state_dict_pre_hooks and not hooks_of_all
    step(net, optimizer, BATCHES[0])
    assert not is_held(net, masks)


class Lightning(pl.LightningModule):
    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        self.parts, self.held = nn.ModuleDict(parts), []

    def training_step(self, batch, _):
        return sum(F.cross_entropy(part(batch[0]), batch[1]) for part in self.parts.values())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.1)


def lightning(module: Lightning, callback: pl.Callback) -> None:
    quiet = {name: False for name in ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")}
    trainer = pl.Trainer(max_epochs=2, accelerator="cpu", callbacks=[callback], **quiet)
    trainer.fit(module, torch.utils.data.DataLoader(BATCHES, batch_size=None))


def test_two_networks_that_fit(net, masks):
    twins = {"one": net, "other": copy.deepcopy(net)}
    with pytest.raises(
        sf.InvalidSetting, match=r"^masks=given: names layers that 2 parts of Lightning has: give HoldMasks"
    ):
        lightning(Lightning(**twins), sf.HoldMasks(masks))
    lightning(Lightning(**twins), sf.HoldMasks(masks, net=net))
    assert is_held(net, masks) and not is_held(twins["other"], masks)


@pytest.mark.parametrize("by_callback", [True, False])
def test_trainer_of_transformers(tmp_path, by_callback):
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    net = BertForSequenceClassification(BertConfig(vocab_size=50, **sizes))
    masks = sf.prune(net, "n_m", 0.5, layers="bert.encoder.*", tell=len)
    rows = [{"input_ids": torch.randint(0, 50, (8,)), "labels": torch.tensor(row % 2)} for row in range(8)]
    settings = TrainingArguments(
        tmp_path, max_steps=3, learning_rate=0.1, use_cpu=True, report_to=[], save_strategy="no"
    )
    held = sf.hold(net, masks)
    with held:
        callbacks = [held.trainer_callback()] if by_callback else []
        Trainer(net, settings, train_dataset=rows, callbacks=callbacks).train()
        assert is_held(net, masks) and bool(hooks_of_all) is not by_callback
