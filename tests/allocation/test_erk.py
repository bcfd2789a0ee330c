"""Erdos-Renyi-Kernel densities: the formula, its cap, the total, and the figures published for ResNet-50."""

import math

import pytest
import torch
from torch import nn
from torchvision.models import resnet50

from sparsefront.allocation.erk import Erk
from sparsefront.allocation.owl import Owl
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.pruning.make_masks import make_masks
from sparsefront.pruning.mask_spec import fix_spec


def sparsities(shapes: dict[str, tuple[int, ...]], sparsity: float) -> dict[str, float]:
    return Erk().layer_sparsities(shapes, sparsity, lost=None)


def test_a_worked_example():
    """Sides 8 and 20 share 28 kept weights: epsilon is 1."""
    shapes = {"small": (4, 4), "large": (10, 10)}
    found = sparsities(shapes, 1 - 28 / 116)
    assert found == pytest.approx({"small": 1 - 8 / 16, "large": 1 - 20 / 100})


def test_layers_beyond_density_1():
    shapes = {"a": (2, 2), "b": (4, 4), "c": (32, 32)}
    found = sparsities(shapes, 0.8)
    assert found["a"] == 0.0 and found["b"] == 0.0
    assert (1 - found["c"]) * 1024 == pytest.approx(0.2 * (4 + 16 + 1024) - 20)


def test_masks_have_these_sparsities():
    generator = torch.Generator().manual_seed(0)
    importance = {"conv": torch.rand(16, 72, generator=generator), "fc": torch.rand(64, 128, generator=generator)}
    shapes = {"conv": (16, 8, 3, 3), "fc": (64, 128)}
    masks = make_masks(importance, ElementWise(), Erk(), 0.8, weight_shapes=shapes)
    for layer, s in sparsities(shapes, 0.8).items():
        assert int((~masks[layer]).sum()) == math.floor(s * masks[layer].numel() + 1e-6)


def resnet50_layers() -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    """Weight shapes of every Linear and Conv2d, and the dense multiply-adds of each on one image of 224 x 224."""
    with torch.device("meta"):
        net = resnet50()
    layers = {name: module for name, module in net.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)}
    multiply_adds = {}
    for name, module in layers.items():

        def note(module, inputs, output, name=name):
            multiply_adds[name] = module.weight.numel() * output[0, 0].numel()

        module.register_forward_hook(note)
    net(torch.empty(1, 3, 224, 224, device="meta"))
    return {name: tuple(module.weight.shape) for name, module in layers.items()}, multiply_adds


@pytest.mark.parametrize(("sparsity", "published"), [(0.8, 0.42), (0.9, 0.24), (0.95, 0.12), (0.965, 0.09)])
def test_resnet50_costs_what_rigl_reports(sparsity, published):
    """Inference FLOPs of ERK over those of dense, "Extended Training Results" in RigL's README (all layers sparse)."""
    shapes, multiply_adds = resnet50_layers()
    found = sparsities(shapes, sparsity)
    sparse = sum((1 - found[layer]) * count for layer, count in multiply_adds.items())
    assert sparse / sum(multiply_adds.values()) == pytest.approx(published, abs=0.0075)


# owl.


def test_owl_keeps_more_beside_outliers():
    generator = torch.Generator().manual_seed(0)
    scores = {name: torch.rand(16, 32, generator=generator) for name in ("b.0.q", "b.0.k", "b.1.q", "b.2.q", "head")}
    scores["b.1.q"][:2] *= 50
    scores["b.2.q"][:1] *= 50
    shapes = {name: tuple(one.shape) for name, one in scores.items()}
    for sparsity in (0.5, 0.95, 0.02):
        spec = fix_spec(scores, ElementWise(), Owl(), sparsity)
        own = spec.sparsities
        assert own["b.0.q"] == own["b.0.k"] == own["head"] > own["b.2.q"] > own["b.1.q"]
        assert sum(own[name] * math.prod(shapes[name]) for name in own) / (5 * 512) == pytest.approx(sparsity)
        assert all(0 <= one <= 0.99 + 1e-9 for one in own.values())
    assert max(own.values()) - min(own.values()) <= 2 * 0.08 + 1e-9
    same = fix_spec(dict.fromkeys(shapes, scores["head"]), ElementWise(), Owl(), 0.7).sparsities
    assert set(same.values()) == {0.7}
