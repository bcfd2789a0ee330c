"""Blocks are found in every model; what they return is kept for one forward."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from sparsefront.config.validate import validate
from sparsefront.models.base import block_names
from sparsefront.training.graphs import HiddenStates


def skeleton(composed, *overrides):
    experiment = validate(composed(*overrides))
    net = experiment.model.skeleton(experiment.dataset.info)
    return net, experiment.model.prunable(net)


def test_blocks_of_the_small_vit(composed):
    assert block_names(*skeleton(composed)) == [f"blocks.{i}" for i in range(4)]
    assert block_names(*skeleton(composed, "model.prune_head=true")) == [f"blocks.{i}" for i in range(4)]


def test_blocks_of_a_resnet_are_its_bottlenecks(composed):
    found = block_names(*skeleton(composed, "model=resnet50", "recipe=default", "pattern=element_wise"))
    counts = {1: 3, 2: 4, 3: 6, 4: 3}
    assert found == [f"layer{stage}.{i}" for stage, count in counts.items() for i in range(count)]


def test_blocks_of_torchvision_s_vit(composed):
    net, layers = skeleton(composed, "model=vit", "recipe=default", "pattern=element_wise", "dataset=cifar10")
    blocks = [name for name, module in net.named_modules() if type(module).__name__ == "EncoderBlock"]
    assert len(blocks) == 12 and block_names(net, layers) == blocks


def test_blocks_of_bert():
    from transformers import BertConfig, BertModel

    with torch.device("meta"):
        net = BertModel(BertConfig(hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32))
    layers = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    assert block_names(net, layers) == [f"encoder.layer.{i}" for i in range(3)]


def test_bare_layers_are_no_blocks():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    assert block_names(net, ["0", "2"]) == []
    nested = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Sequential(nn.Linear(4, 4)))
    assert block_names(nested, ["0.0", "1.0"]) == ["0", "1"]


class Tupled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x), "attention"


def test_only_the_forward_that_is_listened_to_is_kept():
    net = nn.ModuleList([Tupled(), nn.Linear(3, 3)])
    states = HiddenStates(net, ["1", "0"])
    inputs = torch.randn(2, 3)
    net[0](inputs)
    states.listen()
    first, second = net[0](inputs)[0], net[1](inputs)
    taken = states.take()
    assert taken[0] is second and taken[1] is first, "in the order of the names, the hidden state of a tuple"
    net[0](inputs)
    assert not states._outputs, "nothing is held between steps"
    states.remove()
    assert not net[0]._forward_hooks


def test_recomputed_activations_are_not_kept():
    net = nn.ModuleList([nn.Linear(3, 3)])
    states = HiddenStates(net, ["0"])
    states.listen()
    inputs = torch.randn(2, 3, requires_grad=True)
    output = checkpoint(net[0], inputs, use_reentrant=False)
    (kept,) = states.take()
    kept.sum().backward()
    assert torch.equal(kept, output) and inputs.grad is not None and not states._outputs
