"""The learning-rate curve, the optimizer's groups and the recipe's limits."""

import math

import pytest
import torch
from torch import nn

from sparsefront.errors import InvalidSetting
from sparsefront.training.recipe import Optimization, Recipe, learning_rate_factor


@pytest.mark.parametrize(
    ("decay", "expected"),
    [("linear", lambda p: 1 - p), ("cosine", lambda p: (1 + math.cos(math.pi * p)) / 2), ("constant", lambda p: 1.0)],
)
def test_curve_follows_its_formula(decay, expected):
    for step in range(10, 101):
        p = (step - 10) / 90
        assert learning_rate_factor(step, total_steps=100, warmup_steps=10, decay=decay) == pytest.approx(
            expected(p), abs=1e-12
        )


@pytest.mark.parametrize("nesterov", [True, False])
def test_sgd_with_and_without_nesterov(nesterov):
    """Two steps along a constant gradient g: plain momentum moves by lr (1 + 1.9) g, Nesterov's by lr (1.9 + 2.71) g."""
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 10.0)
    recipe = Recipe(optimizer="sgd", momentum=0.9, nesterov=nesterov, weight_decay=0.0, warmup=0.0, decay="constant")
    optimizer = Optimization(recipe, lr=0.5, total_steps=2).build(net)["optimizer"]
    for _ in range(2):
        net.weight.grad = torch.ones_like(net.weight)
        optimizer.step()
    assert net.weight.item() == pytest.approx(10 - 0.5 * (1.9 + 2.71 if nesterov else 1 + 1.9))


def test_warmup_rises_linearly_above_zero():
    factors = [learning_rate_factor(s, total_steps=50, warmup_steps=4, decay="linear") for s in range(5)]
    assert factors == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_scheduler_steps_along_the_curve():
    net = nn.Linear(3, 2)
    optimization = Optimization(Recipe(warmup=0.0), lr=0.5, total_steps=4)
    built = optimization.build(net)
    optimizer, scheduler = built["optimizer"], built["lr_scheduler"]["scheduler"]
    seen = []
    for _ in range(4):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert seen == pytest.approx([0.5, 0.375, 0.25, 0.125])


def test_biases_and_norms_do_not_decay():
    net = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    groups = Optimization(Recipe(weight_decay=0.1), lr=1.0, total_steps=1).build(net)["optimizer"].param_groups
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert decays == {id(net[0].weight): 0.1, id(net[0].bias): 0.0, id(net[1].weight): 0.0, id(net[1].bias): 0.0}


@pytest.mark.parametrize(
    "bad",
    [
        {"batch_size": 0},
        {"epochs": -1},
        {"lr": 0.0},
        {"recovery_epochs": 0},
        {"recovery_steps": 2, "recovery_epochs": 1},
        {"weight_decay": -0.1},
        {"momentum": -0.9},
        {"gradient_clip": 0.0},
        {"warmup": 1.0},
        {"optimizer": "lion"},
        {"decay": "steps"},
        {"restarts": 0},
        {"label_smoothing": 1.0},
        {"ignore": ["("]},
    ],
    ids=lambda bad: next(iter(bad)),
)
def test_impossible_recipes_are_rejected(bad):
    with pytest.raises(InvalidSetting) as rejected:
        Recipe(**bad)
    assert rejected.value.key == next(iter(bad))
