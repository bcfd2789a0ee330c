"""Magnitude."""

import pytest
import torch

from sparsefront.errors import InvalidSetting
from sparsefront.importance.magnitude import Magnitude


def test_norms():
    weights = {"linear": torch.tensor([[1.0, -2.0], [0.0, 3.0]]), "conv": -torch.ones(2, 1, 1, 3)}
    l1, l2 = (Magnitude(norm=norm).scores(weights) for norm in ("l1", "l2"))
    assert l1["linear"].tolist() == [[1, 2], [0, 3]] and l2["linear"].tolist() == [[1, 4], [0, 9]]
    assert l1["conv"].shape == (2, 3)


def test_small_half_precision_weights_do_not_vanish():
    weight = torch.full((2, 2), 1e-4, dtype=torch.float16, requires_grad=True)
    scores = Magnitude(norm="l2").scores({"layer": weight})["layer"]
    assert scores.dtype == torch.float32 and (scores > 0).all() and not scores.requires_grad


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_not_finite_is_named(bad):
    weights = {"first": torch.ones(2, 2), "second": torch.tensor([[1.0, bad]])}
    with pytest.raises(ValueError, match="second"):
        Magnitude(norm="l1").scores(weights)


def test_unknown_norm():
    with pytest.raises(InvalidSetting, match="norm=linf"):
        Magnitude(norm="linf")
