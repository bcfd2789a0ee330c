"""uniform: rank columns over layers, what aggregates favor, signed scores.

channel: whole rows or whole columns.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefront.allocation.global_threshold import GlobalThreshold
from sparsefront.patterns.channel import Channel
from sparsefront.patterns.uniform import Uniform
from sparsefront.pruning.make_masks import make_masks

few = settings(max_examples=40, derandomize=True)


def counts(mask: torch.Tensor) -> list[int]:
    return mask.sum(dim=1).tolist()


@few
@given(
    sizes=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 7)), min_size=1, max_size=3),
    sparsity=st.floats(0, 0.99),
    per_row=st.booleans(),
    seed=st.integers(0, 9),
)
def test_one_threshold_over_all_ranks(sizes, sparsity, per_row, seed):
    """Against loops: sorted rows, the norm of each column, the lowest columns of the network while they fit."""
    generator = torch.Generator().manual_seed(seed)
    importance = {str(i): torch.rand(*size, generator=generator) for i, size in enumerate(sizes)}
    columns = []
    for layer, values in importance.items():
        rows = [sorted(row, reverse=True) for row in values.tolist()]
        for rank in range(values.shape[1]):
            norm = sum(row[rank] ** 2 for row in rows) ** 0.5
            columns.append((norm / len(rows) ** 0.5 if per_row else norm, layer, len(rows)))
    left = int(sparsity * sum(values.numel() for values in importance.values()) + 1e-6)
    kept = {layer: values.shape[1] for layer, values in importance.items()}
    for _, layer, size in sorted(columns):
        if size > left:
            break
        left -= size
        kept[layer] -= 1
    masks = make_masks(importance, Uniform(1, aggregate="rms" if per_row else "l2"), GlobalThreshold(), sparsity)
    for layer, mask in masks.items():
        assert counts(mask) == [kept[layer]] * len(mask)
        worst = importance[layer].masked_fill(~mask, 2.0).amin(dim=1)
        assert (worst >= importance[layer].masked_fill(mask, -1.0).amax(dim=1)).all()


def test_signed_scores_keep_the_largest():
    importance = torch.tensor([[-9.0, 2.0, -1.0, 3.0], [1.0, -7.0, 4.0, -2.0]])
    mask = Uniform(1).mask(importance, 0.5)
    assert mask.tolist() == [[False, True, False, True], [True, False, True, False]]


def test_rows_that_differ_are_named():
    mask = torch.tensor([[True, False], [True, True]])
    with pytest.raises(ValueError, match="row 1 of weights keeps 2, row 0 keeps 1"):
        Uniform(1).check(mask, 0.25)
    with pytest.raises(ValueError, match="row 1 of blocks keeps 1, row 0 keeps 0"):
        Uniform(2).check(torch.tensor([[False] * 4] * 2 + [[True, True, False, False]] * 2), 0.75)


def test_channel_of_part_is_named():
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[2, 5] = False
    with pytest.raises(ValueError, match="output 2 keeps 5 of its 6 weights"):
        Channel("outputs").check(mask, 0.1)
    with pytest.raises(ValueError, match="input 5 keeps 3 of its 4 weights"):
        Channel("inputs").check(mask, 0.1)


def test_channels_are_not_ranked_together():
    importance = {"weak": torch.full((4, 8), 0.1), "strong": torch.ones(4, 8)}
    assert not Channel().ranked_in_source
    masks = make_masks(importance, Channel(), GlobalThreshold(), 0.5)
    assert not masks["weak"].any() and masks["strong"].all()
