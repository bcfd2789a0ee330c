"""The measure of experiments/pattern_retention, on small weights."""

import pytest
import torch

from experiments.pattern_retention import measure
from sparsefront.allocation.global_threshold import GlobalThreshold
from sparsefront.allocation.per_layer import PerLayer
from sparsefront.patterns.block_wise import BlockWise
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.patterns.n_m import NM


@pytest.fixture
def weights():
    draw = torch.Generator().manual_seed(0)
    return measure.Weights({"a": torch.rand(8, 16, generator=draw), "b": 4 * torch.rand(12, 8, generator=draw)})


@pytest.mark.parametrize("allocation", [PerLayer(), GlobalThreshold()], ids=lambda part: part.name)
def test_element_wise_is_its_own_measure(weights, allocation):
    row = measure.measure("ew", "", ElementWise(), allocation, 0.5, weights)
    assert row.relative == 1.0 and row.is_default is (allocation.name == "global_threshold")
    values = torch.cat([scores.flatten() for scores in weights.importance.values()])
    if allocation.name == "global_threshold":
        assert row.retained == pytest.approx(float(values.sort(descending=True).values[:112].sum() / values.sum()))


@pytest.mark.parametrize(
    ("pattern", "refusal"),
    [(NM(m=4), "m=4: cannot express sparsity 0.9"), (BlockWise(granularity=64), "fits no layer: ")],
)
def test_a_refusal_is_a_row(weights, pattern, refusal):
    row = measure.measure("rejected", "", pattern, PerLayer(), 0.9, weights)
    assert row.refusal.startswith(refusal) and row.relative is None
