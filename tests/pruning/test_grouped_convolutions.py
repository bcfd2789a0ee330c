"""Convolutions in groups: each group obeys the pattern by itself, or the layer stays dense with the reason."""

import copy

import pytest
import torch
from torch import nn

import sparsefront as sf
from sparsefront.errors import InvalidSetting
from sparsefront.masks.weight_view import as_matrix
from sparsefront.options import option
from sparsefront.patterns.base import Pattern

# pattern -> its settings, sparsity, and why the grouped layer [16, 8 * 9] of four groups stays dense; None where it does not
CASES = {
    "element_wise": ({}, 0.5, None),
    "n_m": ({"m": 4}, 0.5, None),
    "n_m, permuted": ({"m": 4, "permutation": "search"}, 0.5, None),
    "n_m, transposable": ({"transposable": True}, 0.5, None),
    "vector_wise": ({"granularity": 4}, 0.75, None),
    "vector_wise, balanced": ({"granularity": 2, "distribution": "balanced"}, 0.75, None),
    "vector_wise, too long": ({"granularity": 8}, 0.75, "in 4 groups of 4 outputs, which 8 do not divide"),
    "block_wise": ({"granularity": 4}, 0.75, None),
    "block_wise, too wide": ({"granularity": "4x16"}, 0.75, "inputs 72 are not a multiple of 16"),
    "block_2_4": ({"granularity": 4}, 0.75, None),
    "uniform": ({"granularity": 2}, 0.75, None),
    "channel": ({}, 0.5, None),
    "channel, inputs": ({"axis": "inputs"}, 0.5, "cannot go together in pattern channel"),
    "tile_wise": ({"granularity": 4}, 0.75, "cannot go together in pattern tile_wise"),
    "tile_2_4": ({"granularity": 4}, 0.75, "cannot go together in pattern tile_2_4"),
    "shuffled_block": ({"granularity": 4}, 0.75, "cannot go together in pattern shuffled_block"),
}

FAMILIES = {"vector_wise": "gathered", "block_wise": "blocked", "uniform": "ell"}  # others are stored as single weights


def network() -> tuple[nn.Sequential, torch.Tensor]:
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(3, 32, 3), nn.Conv2d(32, 16, 3, groups=4, padding=1), nn.Conv2d(16, 16, 1)]
    depthwise = nn.Conv2d(16, 16, 3, groups=16)
    return nn.Sequential(*convolutions, depthwise).eval(), torch.randn(2, 3, 8, 8)


@pytest.mark.parametrize("case", CASES)
def test_each_group_obeys_the_pattern(case: str):
    settings, sparsity, reason = CASES[case]
    pattern = type(option("pattern", case.partition(",")[0], Pattern))(**settings)
    net, x = network()
    masks = sf.prune(net, pattern, sparsity, layers=["1", "2", "3"], tell=lambda line: None)
    assert masks.ignored["3"] == "convolution in 16 groups of one input channel"
    if reason is not None:
        assert reason in masks.ignored["1"] and "1" not in masks
    else:
        permutation = masks.spec.permutation("1")
        for group in as_matrix(masks["1"]).split(4):
            pattern.check(group, sparsity, permutation)
        assert 1 - masks["1"].float().mean().item() == pytest.approx(sparsity, abs=0.06)
    swapped = copy.deepcopy(net)
    report = sf.swap(swapped, masks, (x,))
    if reason is None:
        assert report.layers["1"].family == FAMILIES.get(pattern.name, "csr")
    with torch.no_grad():
        torch.testing.assert_close(swapped(x), net(x), atol=1e-5, rtol=1e-5)
    assert report.layers.keys() == masks.keys() and all(layer.is_sparse for layer in report.layers.values())


def test_scores_of_inputs_leave_groups_dense():
    net, x = network()
    masks = sf.prune(
        net, "element_wise", 0.5, importance="wanda", layers=["1", "2"], calibration=[x], tell=lambda line: None
    )
    assert "whose inputs importance=wanda does not tell apart" in masks.ignored["1"] and masks.keys() == {"2"}
    masks = sf.prune(net, "element_wise", 0.5, layers=["1", "2"], tell=lambda line: None)
    with pytest.raises(
        InvalidSetting, match=r"recovery=obs_update: looks at the inputs of layers, .* groups apart \(1\)"
    ):
        sf.recover(net, masks, [x], recovery="obs_update", dense_net=network()[0])
