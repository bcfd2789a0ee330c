"""AdamS against its algorithm in plain numbers, and what its decay adapts to."""

import math

import pytest
import torch
from torch.nn import Parameter

from sparsefront.training.recipe import AdamS

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
