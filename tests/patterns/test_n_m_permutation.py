"""n:m in another order of the inputs: the search never loses, and finds what was planted."""

import itertools

import pytest
import torch
from every_pattern import scores
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefront.allocation.per_layer import PerLayer
from sparsefront.export.packed_layers import store
from sparsefront.patterns.base import Window
from sparsefront.patterns.n_m import NM, _Swaps, permute_inputs, sum_kept
from sparsefront.pruning.make_masks import make_masks
from sparsefront.pruning.mask_spec import fix_spec


def kept_by_loops(importance: list[list[float]], order: list[int], n: int, m: int) -> float:
    """Sum of the n largest of every m, with the inputs in an order."""
    windows = [order[start : start + m] for start in range(0, len(order), m)]
    return sum(sum(sorted((row[k] for k in window), reverse=True)[:n]) for row in importance for window in windows)


def planted(outputs: int, inputs: int, window: Window, seed: int) -> tuple[torch.Tensor, float]:
    """Importance in which some order keeps all large weights, and what that order keeps."""
    chance = scores(outputs, inputs // window.m, window.m, seed=seed)
    large = scores(outputs, inputs // window.m, window.m, seed=seed + 1).argsort(dim=2).argsort(dim=2) < window.n
    importance = torch.where(large, 1 + chance, 0.05 * chance).reshape(outputs, inputs)
    shuffle = torch.randperm(inputs, generator=torch.Generator().manual_seed(seed + 2))
    return importance[:, shuffle], sum_kept(importance, torch.arange(inputs), window)


few = settings(max_examples=40, derandomize=True)
windows = st.sampled_from([(2, 4), (1, 4), (3, 4), (1, 2), (1, 3), (2, 6), (5, 6)])


@few
@given(
    importance=st.lists(st.lists(st.integers(0, 5), min_size=12, max_size=12), min_size=1, max_size=5), window=windows
)
def test_found_order_never_loses(importance, window):
    matrix, window = torch.tensor(importance).float(), Window(*window)
    own = kept_by_loops(importance, list(range(12)), *window)
    order = permute_inputs(matrix, window, 6)
    if order is None:
        return
    assert sorted(order.tolist()) == list(range(12))
    assert kept_by_loops(importance, order.tolist(), *window) > own


@few
@given(
    importance=st.lists(st.lists(st.integers(0, 5), min_size=12, max_size=12), min_size=1, max_size=5),
    window=windows,
    order=st.permutations(range(12)),
)
def test_gain_of_every_swap(importance, window, order):
    """Against plain loops, with ties everywhere; whole numbers, so that sums are exact."""
    n, m = window
    search = _Swaps(torch.tensor(importance).float(), torch.tensor(order), Window(n, m))
    before = kept_by_loops(importance, list(order), n, m)
    for one, other in itertools.combinations(range(12), 2):
        if one // m == other // m:
            continue
        swapped = list(order)
        swapped[one], swapped[other] = swapped[other], swapped[one]
        c, d = order[one], order[other]
        gain = search.without[c] + search.without[d] + search.brings[c, d] + search.brings[d, c]
        assert float(gain) == kept_by_loops(importance, swapped, n, m) - before


@pytest.mark.parametrize("window", [(2, 4), (1, 4), (1, 2)], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_a_planted_order_is_found(window, seed):
    importance, most = planted(24, 16, Window(*window), seed)
    order = permute_inputs(importance, Window(*window), 100)
    assert sum_kept(importance, order, Window(*window)) == pytest.approx(most)


def test_nothing_to_gain_is_no_order():
    assert permute_inputs(torch.ones(4, 8), Window(2, 4), 10) is None
    assert permute_inputs(scores(4, 8), Window(4, 4), 10) is None
    assert permute_inputs(scores(4, 8), Window(2, 8), 10) is None
    assert NM(2, 4).find_permutation(scores(4, 8), 0.5) is None


def test_masks_obey_the_fixed_permutation():
    pattern = NM(2, 4, permutation="search")
    layers = {"a": scores(8, 32, seed=1), "b": scores(12, 16, seed=2)}
    spec = fix_spec(layers, pattern, PerLayer(), 0.5)
    masks = make_masks(layers, pattern, PerLayer(), 0.5, spec=spec)
    for layer, mask in masks.items():
        permutation = spec.permutation(layer)
        pattern.check(mask, 0.5, permutation)
        assert torch.equal(mask, pattern.mask(layers[layer], 0.5))
        stored = store(layers[layer], mask, pattern.storage(tuple(mask.shape), 0.5), permutation)
        assert torch.equal(stored.input_order.long(), permutation.inputs)
        assert torch.equal(stored.to_dense(), layers[layer] * mask)
        with pytest.raises(ValueError, match="window"):
            pattern.check(mask, 0.5)
