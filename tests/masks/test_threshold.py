"""The threshold against a walk through the sorted scores, with and without guesses from a sample."""

import math
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefront.masks import groups as selection
from sparsefront.masks.groups import Groups, find_threshold

few = settings(max_examples=150, derandomize=True)
scores = st.one_of(st.sampled_from([-math.inf, math.inf, 0.0, -0.0, 1.0, 2.0, -3.0]), st.floats(-5, 5, width=32))
layers = st.lists(st.lists(st.tuples(scores, st.integers(1, 9)), min_size=1, max_size=30), min_size=1, max_size=4)


def oracle(layers: list[list[tuple[float, int]]], allowed: int) -> tuple[float, int]:
    """The first score, in ascending order, whose groups are together too much; inf where none are."""
    flat = [pair for layer in layers for pair in layer]
    for value in sorted({score for score, _ in flat}):
        if sum(size for score, size in flat if score <= value) > allowed:
            return value, sum(size for score, size in flat if score < value)
    return math.inf, sum(size for score, size in flat if score < math.inf)


@few
@given(layers=layers, more=st.integers(0, 200), sample=st.sampled_from([2, 5, 16, 1000]))
def test_any_scores_and_sizes(layers, more, sample):
    """`sample` decides whether everything is sorted at once or guesses are tried first, good ones and bad."""
    allowed = more + sum(size for layer in layers for score, size in layer if score == -math.inf)
    columns = [zip(*layer, strict=True) for layer in layers]
    groups = [Groups(torch.tensor(scores), torch.tensor(sizes)) for scores, sizes in columns]
    with mock.patch.object(selection, "SAMPLE", sample):
        assert find_threshold(groups, allowed) == oracle(layers, allowed)


SHAPES = {
    "normal": lambda g: torch.randn(400, 250, generator=g),
    "magnitudes": lambda g: torch.randn(400, 250, generator=g).abs(),
    "all equal": lambda g: torch.ones(400, 250),
    "few values": lambda g: torch.randint(0, 3, (400, 250), generator=g).float(),
    "one column far off": lambda g: torch.cat([torch.rand(400, 249, generator=g), torch.full((400, 1), 1e6)], dim=1),
    "transposed": lambda g: torch.rand(250, 400, generator=g).t(),
    "mostly gone": lambda g: torch.rand(400, 250, generator=g).masked_fill(
        torch.rand(400, 250, generator=g) < 0.95, -math.inf
    ),
}


@pytest.mark.parametrize("share", [0.0, 1e-6, 0.3, 0.999, 1.0])
@pytest.mark.parametrize("name", SHAPES)
def test_many_scores(name, share):
    """More than the sample holds, so that guesses are tried."""
    generator = torch.Generator().manual_seed(0)
    values = [SHAPES[name](generator), 2 * SHAPES[name](generator)]
    groups = [Groups(value, 3) for value in values]
    assert sum(value.numel() for value in values) > selection.SAMPLE
    ascending = torch.cat([value.flatten() for value in values]).sort().values
    gone = int((ascending == -math.inf).sum())
    count = gone + int(share * (len(ascending) - gone))
    found, below = find_threshold(groups, 3 * count + 2)
    expected = ascending[count].item() if count < len(ascending) else math.inf
    assert found == expected and below == 3 * int((ascending < expected).sum())


def test_guesses_spare_most_passes():
    """32 halvings become the two guesses and a sort."""
    group = Groups(torch.randn(1000, 1000, generator=torch.Generator().manual_seed(0)), 1)
    with mock.patch.object(selection, "_weights_below", wraps=selection._weights_below) as counted:
        find_threshold([group], 750_000)
    assert counted.call_count == 2
