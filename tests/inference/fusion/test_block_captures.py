"""Blocks share a graph exactly where it is the same for both: an attribute that their forward reads tells them apart."""

import copy
from functools import partial

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional

from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion.block_pass import fuse_blocks
from sparsefront.inference.fusion.calls import find_chains, observe_calls
from sparsefront.inference.fusion.prepared_block import BlockCaptures
from sparsefront.measure.correctness import output_error
from sparsefront.patterns.tile_wise import TileWise

WIDTHS = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}


def groups(net, inputs):
    """What each block has in common with others, in order."""
    captures = BlockCaptures()
    (blocks,) = find_chains(net).values()
    calls = observe_calls(net, blocks, inputs)
    linears = {name for name, module in net.named_modules() if isinstance(module, nn.Linear)}
    for name in blocks:
        captures.prepare(net, name, calls[name], linears, {}, {})
    return [captures.groups[name] for name in blocks]


class Block(nn.Module):
    """Attributes that no repr shows; `number` is read by nobody."""

    def __init__(self, window=99, act=functional.relu, scales=(1.0,), number=0):
        super().__init__()
        self.up, self.down = nn.Linear(32, 48), nn.Linear(48, 32)
        self.settings, self.act, self.number = {"window": window, "scales": list(scales)}, act, number

    def forward(self, x):
        near = torch.ones_like(x[..., 0]).cumsum(-1).unsqueeze(-1) <= self.settings["window"]
        return x + self.settings["scales"][0] * near * self.down(self.act(self.up(x)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"window": 99}, {"window": 7}),
        ({"scales": (1.0,)}, {"scales": (0.99,)}),
        ({"scales": (0.0,)}, {"scales": (-0.0,)}),
        ({"scales": (1,)}, {"scales": (True,)}),
        ({"act": functional.relu}, {"act": functional.gelu}),
        ({"act": partial(functional.gelu)}, {"act": partial(functional.gelu)}),  # nobody knows what such objects do
    ],
    ids=["number", "float", "sign", "type", "function", "object"],
)
def test_other_attributes_are_another_graph(one, other, stack):
    pruned = stack([Block(**one), Block(**other), Block(**one)], TileWise(8))
    first, second, third = groups(pruned.net, pruned.inputs[0])
    assert first == third != second
    net = copy.deepcopy(pruned.net)
    report = fuse_blocks(net, pruned.formats, pruned.masks, pruned.inputs[0], KernelChoice())
    assert len(report.blocks) == 3
    with torch.inference_mode():
        for inputs in pruned.inputs:  # the first rows are within any window, those of the longest input are not
            assert output_error(net(**inputs), pruned.net(**inputs)) < 1e-5


@pytest.mark.parametrize("name", ["Bert", "ViT"])
def test_equal_layers_share_a_graph(name):
    """BERT's are numbered, for caches of keys and values."""
    images = {"image_size": 32, "patch_size": 8}
    config = getattr(transformers, f"{name}Config")(**WIDTHS, **(images if name == "ViT" else {}))
    net = getattr(transformers, f"{name}Model")(config).eval()
    inputs = {"pixel_values": torch.randn(2, 3, 32, 32)} if name == "ViT" else {"input_ids": torch.zeros(2, 9).long()}
    found = groups(net, inputs)
    assert len(found) == 3 and len(set(found)) == 1


class Cached(nn.Module):
    """Reads its number only where it is told to."""

    def __init__(self, number):
        super().__init__()
        self.up, self.down, self.number = nn.Linear(32, 48), nn.Linear(48, 32), number

    def forward(self, x, numbered: bool = False):
        y = self.down(self.up(x))
        return x + self.number * y if numbered else x + y


def test_calls_of_another_kind(stack):
    pruned = stack([Cached(1), Cached(2)], TileWise(8))
    net = copy.deepcopy(pruned.net)
    fuse_blocks(net, pruned.formats, pruned.masks, pruned.inputs[0], KernelChoice())
    x = torch.randn(2, 5, 32)
    with torch.inference_mode():
        for ours, theirs in zip(net.blocks, pruned.net.blocks, strict=True):
            assert output_error(ours(x, numbered=True), theirs(x, numbered=True)) < 1e-5
