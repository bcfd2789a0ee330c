"""Saliency."""

import torch

from sparsefront.obs.sweep import saliency


def test_by_hand():
    weight = torch.tensor([[1.0, -2.0, 3.0], [0.0, 4.0, 1.0]])
    scores = saliency(weight, torch.tensor([1.0, 0.5, 2.0]), torch.tensor([False, False, True]))
    assert scores.tolist() == [[1, 8, 0], [0, 32, 0]]
    assert weight.tolist() == [[1, -2, 3], [0, 4, 1]]
