"""Thresholds over groups of one or several layers, against a plain sort."""

import math
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefront.masks import groups as selection
from sparsefront.masks.groups import Groups, budget, keep_best, keep_best_of_last

few = settings(max_examples=100, derandomize=True)


def oracle(layers: list[list[tuple[float, int]]], allowed: int) -> list[list[bool]]:
    """Sort (score, size) of all layers; drop from the lowest on, the later of equals first, while they fit."""
    kept = [[score > -math.inf for score, _ in layer] for layer in layers]
    numbered = ((i, j, score) for i, layer in enumerate(layers) for j, (score, _) in enumerate(layer))
    for _, i, j in sorted((score, -i, -j) for i, j, score in numbered if abs(score) < math.inf):
        size = layers[-i][-j][1]
        if size > allowed:
            break
        allowed -= size
        kept[-i][-j] = False
    return kept


scores = st.one_of(st.sampled_from([-math.inf, math.inf, 0.0, -0.0, 1.0, 2.0, -3.0]), st.floats(-5, 5, width=32))
layers = st.lists(st.lists(st.tuples(scores, st.integers(1, 9)), min_size=1, max_size=12), min_size=1, max_size=4)


# Layers that are small together are ranked in one list, the others layer by layer.
@pytest.fixture(params=[0, 2**23], ids=["by layer", "joined"], scope="module")
def joined_up_to(request):
    with mock.patch.object(selection, "JOINED", request.param):
        yield


@few
@given(layers=layers, allowed=st.integers(0, 120))
def test_groups_of_any_size(joined_up_to, layers, allowed):
    columns = [zip(*layer, strict=True) for layer in layers]
    groups = [Groups(torch.tensor(scores), torch.tensor(sizes)) for scores, sizes in columns]
    assert [kept.tolist() for kept in keep_best(groups, allowed)] == oracle(layers, allowed)


@few
@given(layers=layers, allowed=st.integers(0, 120))
def test_marks_stand_for_infinities(joined_up_to, layers, allowed):
    columns = [zip(*layer, strict=True) for layer in layers]
    groups = []
    for scores, sizes in columns:
        scores = torch.tensor(scores)
        finite = scores.where(scores.abs() < math.inf, 1.0)  # a mark holds whatever the score says
        groups.append(Groups(finite, torch.tensor(sizes), stays=scores == math.inf, gone=scores == -math.inf))
    assert [kept.tolist() for kept in keep_best(groups, allowed)] == oracle(layers, allowed)


@few
@given(
    layers=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=4),
    size=st.integers(1, 5),
    allowed=st.integers(0, 60),
)
def test_groups_of_one_size(joined_up_to, layers, size, allowed):
    groups = [Groups(torch.tensor(layer).float(), size) for layer in layers]
    expected = oracle([[(float(score), size) for score in layer] for layer in layers], allowed)
    assert [kept.tolist() for kept in keep_best(groups, allowed)] == expected


def test_budget_counts_pruned_weights():
    assert budget([Groups(torch.zeros(100), 1)], 100, 0.57) == 57  # 0.57 * 100 is 56.99999999999999
    groups = Groups(torch.tensor([0.0, -math.inf, 0.0]), 10)
    assert budget([groups], 30, 0.5) == 5
    assert budget([groups], 30, 0.1) == 0


@pytest.mark.parametrize("m", [8, 20])
@pytest.mark.parametrize("n", [1, 3, 8])
def test_best_of_the_last_dimension(n, m):
    scores = torch.randint(0, 4, (5, 6, m), generator=torch.Generator().manual_seed(0)).float()
    kept = keep_best_of_last(scores, n)
    for row, chosen in zip(scores.view(-1, m).tolist(), kept.view(-1, m).tolist(), strict=True):
        best = sorted(range(m), key=lambda i: (-row[i], i))[:n]
        assert [i for i in range(m) if chosen[i]] == sorted(best)
