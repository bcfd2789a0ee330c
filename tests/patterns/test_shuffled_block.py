"""shuffled_block: groups of outputs that are no neighbors, and the search that finds them."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefront.allocation.global_threshold import GlobalThreshold
from sparsefront.allocation.per_layer import PerLayer
from sparsefront.errors import InvalidSetting
from sparsefront.export.packed_layers import store
from sparsefront.masks.weight_view import Permutation
from sparsefront.patterns.shuffled_block import (
    ShuffledBlock,
    _alike,
    _element_wise,
    _redistributed,
    _round_robin,
    _searched,
    shuffled_outputs,
)
from sparsefront.patterns.vector_wise import VectorWise
from sparsefront.pruning.make_masks import make_masks
from sparsefront.pruning.mask_spec import fix_spec


def scores(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


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


@pytest.mark.parametrize("rounds", [0, 1, 3, 8])
def test_more_is_kept_of_outputs_that_are_alike(rounds):
    """Each of 4 kinds of output weighs its own quarter of the inputs more, and they take turns."""
    emphasis = torch.eye(4).repeat(16, 1).repeat_interleave(16, dim=1)
    importance = scores(64, 64) + emphasis
    shuffled = ShuffledBlock(granularity=16, search_rounds=rounds)
    kept, before = kept_importance(shuffled, importance, 0.75), kept_importance(VectorWise(16), importance, 0.75)
    assert kept > 1.5 * before


def test_neighbors_that_are_alike_are_a_start_too():
    """Groups of neighbors share what they weigh more, too little for their masks to show it; then two outputs change
    places. Grouped by their masks outputs keep less than in the groups that they were in.
    """
    shared = 0.4 * scores(8, 64, seed=1).repeat_interleave(8, dim=0)
    importance = scores(64, 64, seed=2) + shared
    importance[[0, 63]] = importance[[63, 0]]
    by_masks = _searched(importance, _alike(_element_wise(importance, 0.75), 8), 0.75, 8)[0]
    by_place = _searched(importance, torch.arange(64).view(-1, 8), 0.75, 8)[0]
    assert by_masks < by_place
    assert kept_importance(ShuffledBlock(granularity=8), importance, 0.75) == pytest.approx(by_place)


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


def test_groups_ascend():
    groups = shuffled_outputs(scores(48, 40), 8, 0.6, 8).view(-1, 8)
    assert (groups.diff(dim=1) > 0).all() and (groups[:, 0].diff() > 0).all()


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


def test_outputs_that_are_worth_the_same_stay():
    groups = torch.tensor([[5, 0], [3, 1], [2, 4]])
    assert torch.equal(_redistributed(groups, torch.ones(6, 3)), groups)


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


@pytest.mark.parametrize("allocation", [GlobalThreshold(), PerLayer()], ids=lambda allocation: allocation.name)
def test_masks_tighten_within_one_order(allocation):
    """New scores at every update; the permutation is fixed with the first."""
    pattern, layers = ShuffledBlock(granularity=4), "ab"
    first = {layer: scores(24, 32, seed=i) for i, layer in enumerate(layers)}
    spec = fix_spec(first, pattern, allocation, 0.8)
    masks = None
    for update, sparsity in enumerate((0.0, 0.3, 0.6, 0.8)):
        importance = {layer: scores(24, 32, seed=10 * update + i) for i, layer in enumerate(layers)}
        tighter = make_masks(importance, pattern, allocation, sparsity, final_sparsity=0.8, previous=masks, spec=spec)
        for layer, mask in tighter.items():
            pattern.check(mask, sparsity, spec.permutation(layer))
            assert masks is None or not (mask & ~masks[layer]).any()
        masks = tighter
    pruned = sum(int((~mask).sum()) for mask in masks.values())
    assert 0 <= 0.8 * 2 * 24 * 32 - pruned < 4 * len(layers)


def test_its_storage_holds_the_order():
    importance, _, _ = planted(32, 24, 8, seed=7)
    pattern = ShuffledBlock(granularity=8)
    permutation, mask = pattern.find_permutation(importance, 0.7), pattern.mask(importance, 0.7)
    stored = store(importance, mask, pattern.storage((32, 24), 0.7), permutation)
    assert stored.family == "gathered" and torch.equal(stored.output_index.long(), permutation.outputs)
    assert torch.equal(stored.to_dense(), importance * mask)
    with pytest.raises(ValueError, match="some of its outputs keep"):
        store(importance, mask, pattern.storage((32, 24), 0.7))


@pytest.mark.parametrize("rounds", [-1, 1.5, True, "many", None])
def test_impossible_rounds_are_rejected(rounds):
    with pytest.raises(InvalidSetting) as caught:
        ShuffledBlock(granularity=4, search_rounds=rounds)
    assert caught.value.key == "search_rounds"


def test_outputs_that_groups_do_not_divide_are_rejected():
    assert (
        ShuffledBlock(granularity=8).unsupported_reason((20, 16), 0.5)
        == "outputs 20 are not a multiple of granularity 8"
    )
