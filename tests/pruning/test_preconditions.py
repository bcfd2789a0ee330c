"""Sparsities that would round to no pruning or to empty layers, and the nearest ones that do not."""

import math
import re

import pytest
import torch

import sparsefront as sf
from sparsefront.allocation.erk import Erk
from sparsefront.allocation.global_threshold import GlobalThreshold
from sparsefront.allocation.per_layer import PerLayer
from sparsefront.errors import InvalidSetting
from sparsefront.pruning.make_masks import make_masks
from sparsefront.pruning.preconditions import require_effect

P = sf.patterns
SHAPES = {"fc1": (32, 16), "fc2": (16, 32), "odd": (20, 16)}
PATTERNS = {
    "element_wise": P.ElementWise(),
    "vectors": P.VectorWise(4),
    "blocks": P.BlockWise("4x8"),
    "tiles": P.TileWise(8),
    "tiles as in the sources": P.TileWise(8, input_multiple=1, aggregate="l2_over_length"),
    "rows of equal count": P.Uniform(2),
    "channels": P.Channel(),
    "windows": P.NM(),
}
ALLOCATIONS = {"per_layer": PerLayer(), "erk": Erk(), "global_threshold": GlobalThreshold()}
MET = [(name, how) for name in PATTERNS for how in ALLOCATIONS if ALLOCATIONS[how].mismatch(PATTERNS[name]) is None]


def made(pattern, allocation, sparsity):
    """Masks of the layers that fit, whose scores fall from output to output, so that the smallest groups go first."""
    shapes = {name: shape for name, shape in SHAPES.items() if pattern.unsupported_reason(shape, sparsity) is None}
    scores = {name: torch.arange(math.prod(shape), 0, -1).view(shape).float() for name, shape in shapes.items()}
    return make_masks(scores, pattern, allocation, sparsity)


def nearest(message: str) -> float:
    return float(re.search(r"the nearest that (?:prunes|works) is ([\d.]+)", message).group(1))


@pytest.mark.parametrize(("pattern", "allocation"), MET)
def test_too_little_names_the_nearest(pattern, allocation):
    pattern, allocation, sparsity = PATTERNS[pattern], ALLOCATIONS[allocation], 1e-4
    assert all(bool(mask.all()) for mask in made(pattern, allocation, sparsity).values())
    with pytest.raises(InvalidSetting, match=f"^sparsity=0.0001: rounds to no change: {pattern.name} ") as rejected:
        require_effect(pattern, allocation, SHAPES, sparsity)
    works = nearest(str(rejected.value))
    require_effect(pattern, allocation, SHAPES, works)
    with pytest.raises(InvalidSetting):
        require_effect(pattern, allocation, SHAPES, 0.99 * works)
    if not isinstance(allocation, GlobalThreshold):  # of which only the totals are known
        assert not all(bool(mask.all()) for mask in made(pattern, allocation, works).values())


@pytest.mark.parametrize("pattern", [name for name in PATTERNS if name != "windows"])
@pytest.mark.parametrize("allocation", ["per_layer", "global_threshold"])
def test_too_much_names_the_nearest(pattern, allocation):
    pattern, allocation, sparsity = PATTERNS[pattern], ALLOCATIONS[allocation], 1 - 1e-13
    assert not any(bool(mask.any()) for mask in made(pattern, allocation, sparsity).values())
    with pytest.raises(
        InvalidSetting, match=r"rounds to empty layers: fc1 \[32, 16\] would keep no weight"
    ) as rejected:
        require_effect(pattern, allocation, SHAPES, sparsity)
    works = nearest(str(rejected.value))
    require_effect(pattern, allocation, SHAPES, works)
    assert 0.99 < works < 1 and any(bool(mask.any()) for mask in made(pattern, allocation, works).values())


def test_layer_of_a_single_group():
    with pytest.raises(InvalidSetting, match="and no sparsity changes that"):
        require_effect(P.Channel(), PerLayer(), {"one output": (1, 64)}, 0.5)
