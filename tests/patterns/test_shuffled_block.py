"""shuffled_block: groups of outputs that are no neighbors, and the search that finds them."""

import pytest
import torch
from every_pattern import scores
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefront.masks.weight_view import Permutation
from sparsefront.patterns.shuffled_block import ShuffledBlock
from sparsefront.patterns.vector_wise import VectorWise


def planted(outputs: int, inputs: int, length: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Importance that a shuffle of vector-wise blocks carries, its mask, and which group each output is of."""
    group = (torch.arange(outputs) // length)[torch.randperm(outputs, generator=torch.Generator().manual_seed(seed))]
    kept = (scores(outputs // length, inputs, seed=seed + 1) < 0.3)[group]
    chance = scores(outputs, inputs, seed=seed + 2)
    return torch.where(kept, 1 + chance, 0.05 * chance), kept, group


def kept_importance(pattern, importance: torch.Tensor, sparsity: float) -> float:
    return float(importance[pattern.mask(importance, sparsity)].sum(dtype=torch.float64))


@pytest.mark.parametrize(("outputs", "length"), [(16, 16), (64, 4), (64, 16), (96, 8)])
@pytest.mark.parametrize("seed", range(2))
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


def test_nothing_to_gain_moves_nothing():
    assert ShuffledBlock(granularity=4).find_permutation(torch.ones(16, 8), 0.5) is None
    assert ShuffledBlock(granularity=1).find_permutation(scores(16, 8), 0.5) is None
    assert ShuffledBlock(granularity=16).find_permutation(scores(16, 8), 0.5) is None
    assert ShuffledBlock(granularity=4).find_permutation(scores(16, 8), 0.0) is None


def test_check_with_order_and_without():
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
