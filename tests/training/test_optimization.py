"""The learning-rate curve, the optimizers' groups and steps, and the recipe's limits."""

import math

import pytest
import torch
from torch import nn
from torch.nn import Parameter

from sparsefront.errors import InvalidSetting
from sparsefront.training.recipe import AdamS, Optimization, Recipe, learning_rate_factor


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


# AdamS against its algorithm in plain numbers, and what its decay adapts to.

LR, DECAY, STEPS = 0.01, 0.3, 12


def by_loops(weight: float, gradients: list[float], kept: list[bool], *, decay: float = DECAY) -> list[float]:
    """Algorithm 1 for one weight: its values after every step."""
    momentum = square = 0.0
    values = []
    for t, (gradient, keep) in enumerate(zip(gradients, kept, strict=True)):
        momentum = 0.9 * momentum + 0.1 * gradient
        share = t / STEPS
        used = momentum
        if not keep:
            used = (1 - share) * momentum + share * decay * ((weight > 0) - (weight < 0))
        square = 0.999 * square + 0.001 * used**2
        weight -= LR * (used / (1 - 0.9 ** (t + 1))) / (math.sqrt(square / (1 - 0.999 ** (t + 1))) + 1e-8)
        values.append(weight)
    return values


def run(start: torch.Tensor, gradients: torch.Tensor, masks: torch.Tensor | None, *, decay: float = DECAY) -> list:
    """The weights after every step; gradients and masks [steps, weights]."""
    parameter, by_parameter = Parameter(start.clone()), {}
    optimizer = AdamS([parameter], lr=LR, decay=decay, total_steps=STEPS, masks=by_parameter)
    values = []
    for t, gradient in enumerate(gradients):
        if masks is not None:
            by_parameter[parameter] = masks[t]
        parameter.grad = gradient.clone()
        optimizer.step()
        values.append(parameter.detach().clone())
    return values


def case(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    start = 0.05 * torch.randn(6, generator=generator)  # small: the decay takes some of them over zero
    return start, torch.randn(STEPS, 6, generator=generator), torch.rand(STEPS, 6, generator=generator) < 0.5


def test_steps_follow_the_algorithm():
    start, gradients, masks = case()
    found = run(start, gradients, masks)
    for k in range(6):
        expected = by_loops(start[k].item(), gradients[:, k].tolist(), masks[:, k].tolist())
        assert [values[k].item() for values in found] == pytest.approx(expected, abs=1e-6)


def test_pruned_weights_end_at_zero():
    """At a = 1 nothing of the momentum is left: each weight goes by about the rate, against its sign."""
    scales = torch.tensor([1e-3, 1.0, 1e3])
    parameter = Parameter(torch.tensor([0.5, -0.5, 0.5]))
    masks = {parameter: torch.zeros(3, dtype=torch.bool)}
    optimizer = AdamS([parameter], lr=LR, decay=1e-2, total_steps=1, masks=masks)
    for step in range(3000):
        optimizer.param_groups[0]["lr"] = LR * (1 - step / 3000)
        parameter.grad = scales * torch.randn(3, generator=torch.Generator().manual_seed(step))
        optimizer.step()
    assert (parameter.detach().abs()[:2] < 1e-3).all()


def test_it_goes_on_from_its_state():
    start, gradients, masks = case(4)
    whole = run(start, gradients, masks)
    parameter, by_parameter = Parameter(start.clone()), {}
    optimizer = AdamS([parameter], lr=LR, decay=DECAY, total_steps=STEPS, masks=by_parameter)
    for t in range(STEPS):
        if t == 5:
            state = optimizer.state_dict()
            parameter = Parameter(parameter.detach().clone())
            optimizer = AdamS([parameter], lr=LR, decay=DECAY, total_steps=STEPS, masks=by_parameter)
            optimizer.load_state_dict(state)
        by_parameter[parameter] = masks[t]
        parameter.grad = gradients[t].clone()
        optimizer.step()
    assert torch.equal(parameter.detach(), whole[-1])
