"""Blocks that treat some sizes otherwise: a graph runs only where it is right, or the block stays."""

import copy

import pytest
import torch
from torch import nn

from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion.block_pass import fuse_blocks
from sparsefront.measure.correctness import output_error
from sparsefront.patterns.tile_wise import TileWise


class Branches(nn.Module):
    """Doubles where the sizes of x [batch, length, 32] are such."""

    def __init__(self, doubled):
        super().__init__()
        self.up, self.down, self.doubled = nn.Linear(32, 48), nn.Linear(48, 32), doubled

    def forward(self, x):
        y = self.down(self.up(x))
        return x + 2 * y if self.doubled(*x.shape[:2]) else x + y


def fused(pruned):
    net = copy.deepcopy(pruned.net)
    return net, fuse_blocks(net, pruned.formats, pruned.masks, pruned.inputs[0], KernelChoice())


@pytest.mark.parametrize(
    ("doubled", "graphs"),
    [
        (lambda batch, length: length > 6, 2),
        (lambda batch, length: length >= 6, 2),
        (lambda batch, length: length < 10, 1),
        (lambda batch, length: torch.sym_min(16 * length, 32 * length) == 16 * length, 1),
    ],
    ids=["longer", "at least", "shorter", "always"],
)
def test_other_branches_are_other_graphs(doubled, graphs, stack):
    pruned = stack([Branches(doubled)], TileWise(8))
    net, report = fused(pruned)
    assert not report.unsupported
    with torch.inference_mode():
        for inputs in pruned.inputs * 2:
            assert output_error(net(**inputs), pruned.net(**inputs)) < 1e-5
    assert len(net.blocks[0].graphs) == graphs


@pytest.mark.parametrize(
    "doubled",
    [
        lambda batch, length: length % 2 == 0,
        lambda batch, length: length > batch,
        lambda batch, length: length == 5,
        lambda batch, length: length == 2 * batch,
        lambda batch, length: batch == 1,
    ],
    ids=["even", "above another", "not", "twice another", "alone"],
)
def test_each_size_has_a_graph(doubled, stack):
    pruned = stack([Branches(doubled)], TileWise(8))
    net, report = fused(pruned)
    assert report.rewritten
    with torch.inference_mode():
        for inputs in pruned.inputs * 2:
            assert output_error(net(**inputs), pruned.net(**inputs)) < 1e-5
