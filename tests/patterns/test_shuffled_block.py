"""shuffled_block: groups of outputs that are no neighbors, and the search that finds them."""

import itertools

import pytest
import torch
from every_pattern import scores
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefront.masks.weight_view import Permutation
from sparsefront.patterns.shuffled_block import ShuffledBlock, _redistributed, _round_robin, shuffled_outputs
from sparsefront.patterns.vector_wise import VectorWise


def planted(outputs: int, inputs: int, length: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Importance that a shuffle of vector-wise blocks carries, its mask, and which group each output is of."""
    group = (torch.arange(outputs) // length)[torch.randperm(outputs, generator=torch.Generator().manual_seed(seed))]
    kept = (scores(outputs // length, inputs, seed=seed + 1) < 0.3)[group]
    chance = scores(outputs, inputs, seed=seed + 2)
    return torch.where(kept, 1 + chance, 0.05 * chance), kept, group


def kept_importance(pattern, importance: torch.Tensor, sparsity: float) -> float:
    return float(importance[pattern.mask(importance, sparsity)].sum(dtype=torch.float64))


@pytest.mark.parametrize("outputs", [16, 64, 96])
@pytest.mark.parametrize("length", [4, 8, 16])
@pytest.mark.parametrize("seed", range(3))
def test_a_planted_shuffle_is_undone(outputs, length, seed):
    importance, kept, group = planted(outputs, 48, length, seed)
    sparsity = int((~kept).sum()) / kept.numel()
    pattern = ShuffledBlock(granularity=length)
    if outputs == length:
        assert pattern.find_permutation(importance, sparsity) is None
        return
    permutation = pattern.find_permutation(importance, sparsity)
    assert all(len(set(members)) == 1 for members in group[permutation.outputs].view(-1, length).tolist())
    assert torch.equal(pattern.mask(importance, sparsity), kept)


def test_worked_example():
    """Outputs 0 and 2 share inputs 0 and 3, outputs 1 and 3 share 1 and 2: neighbors could keep half of it at best."""
    importance = torch.tensor([[9, 0, 0, 8], [0, 7, 9, 0], [8, 1, 0, 9], [1, 9, 8, 0]]).float()
    permutation = ShuffledBlock(granularity=2).find_permutation(importance, 0.5)
    assert permutation.outputs.tolist() == [0, 2, 1, 3]
    mask = ShuffledBlock(granularity=2).mask(importance, 0.5)
    assert mask.int().tolist() == [[1, 0, 0, 1], [0, 1, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0]]


few = settings(max_examples=40, derandomize=True)


@few
@given(
    importance=st.lists(st.lists(st.integers(0, 4), min_size=5, max_size=5), min_size=8, max_size=8),
    length=st.sampled_from([1, 2, 4, 8]),
    sparsity=st.floats(0, 0.95),
)
def test_never_less_than_neighbors_keep(importance, length, sparsity):
    importance = torch.tensor(importance).float()
    shuffled, neighbors = ShuffledBlock(granularity=length), VectorWise(granularity=length)
    assert kept_importance(shuffled, importance, sparsity) >= kept_importance(neighbors, importance, sparsity)
    shuffled.check(shuffled.mask(importance, sparsity), sparsity)


def test_without_anything_to_gain_outputs_stay_where_they_are():
    assert ShuffledBlock(granularity=4).find_permutation(torch.ones(16, 8), 0.5) is None
    assert ShuffledBlock(granularity=1).find_permutation(scores(16, 8), 0.5) is None
    assert ShuffledBlock(granularity=16).find_permutation(scores(16, 8), 0.5) is None
    assert ShuffledBlock(granularity=4).find_permutation(scores(16, 8), 0.0) is None


def test_the_same_scores_give_the_same_order_whatever_their_scale():
    importance = scores(48, 40)
    order = shuffled_outputs(importance, 8, 0.6, 8)
    assert sorted(order.tolist()) == list(range(48))
    for scale in (1.0, 2.0**20, 2.0**-20):
        assert torch.equal(shuffled_outputs(importance * scale, 8, 0.6, 8), order)


@pytest.mark.parametrize("count", range(1, 9))
def test_a_round_robin_meets_every_pair_once_and_nobody_twice_in_a_round(count):
    rounds = [list(zip(a.tolist(), b.tolist(), strict=True)) for a, b in _round_robin(count, torch.device("cpu"))]
    assert sorted(itertools.chain(*rounds)) == list(itertools.combinations(range(count), 2))
    assert all(len(set(itertools.chain(*pairs))) == 2 * len(pairs) for pairs in rounds)


def test_two_groups_share_their_outputs_as_well_as_can_be():
    """Against every way to split 8 outputs in two."""
    worth = scores(8, 2, seed=3)
    first, second = _redistributed(torch.arange(8).view(2, 4), worth).tolist()
    halves = itertools.combinations(range(8), 4)
    best = max(sum(float(worth[i, 0 if i in half else 1]) for i in range(8)) for half in halves)
    total = sum(float(worth[i, 0]) for i in first) + sum(float(worth[i, 1]) for i in second)
    assert total == pytest.approx(best)


def test_the_structure_is_checked_with_the_order_and_without():
    importance, kept, _ = planted(32, 24, 8, seed=5)
    pattern = ShuffledBlock(granularity=8)
    permutation = pattern.find_permutation(importance, 0.7)
    pattern.check(kept, 0.7, permutation)
    pattern.check(kept, 0.7)
    with pytest.raises(ValueError, match="shuffled_block: the block at row 0"):
        pattern.check(kept, 0.7, Permutation(outputs=torch.arange(32)))
    kept[3, 2] = ~kept[3, 2]
    with pytest.raises(ValueError, match="shuffled_block: the block at row .* kept only in part"):
        pattern.check(kept, 0.7)
