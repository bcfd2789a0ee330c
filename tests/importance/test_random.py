"""The random control."""

import torch

from sparsefront.importance.random import Random


def test_draws_follow_from_seed_and_layer_alone():
    weights = {"a": torch.ones(8, 16), "b": torch.ones(8, 16)}
    torch.manual_seed(1)
    first = Random(seed=3).scores(weights)
    torch.manual_seed(2)
    again = Random(seed=3).scores(dict(reversed(weights.items())))
    assert all(torch.equal(first[name], again[name]) for name in weights)
    assert not torch.equal(first["a"], first["b"])
    assert not torch.equal(first["a"], Random(seed=4).scores(weights)["a"])


def test_scores_are_uniform_and_know_nothing_of_the_weights():
    weight = torch.randn(64, 3, 4, 4)
    scores = Random().scores({"conv": weight})["conv"]
    assert scores.shape == (64, 48) and scores.min() >= 0 and scores.max() < 1
    assert abs(scores.mean().item() - 0.5) < 0.02
    assert torch.equal(scores, Random().scores({"conv": weight * 100})["conv"])
