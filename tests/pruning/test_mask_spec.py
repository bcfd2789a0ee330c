"""What is fixed before the first mask: permutations and sparsities of layers, on disk and in use."""

import math
import re
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

from sparsefront.allocation.base import PerLayerAllocation
from sparsefront.allocation.global_threshold import GlobalThreshold
from sparsefront.errors import InvalidSetting
from sparsefront.masks.weight_view import Permutation
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.vector_wise import VectorWise
from sparsefront.pruning.make_masks import make_masks
from sparsefront.pruning.mask_spec import MaskSpec, fix_spec


@dataclass(frozen=True)
class Given(PerLayerAllocation):
    """An allocation whose sparsities are written down."""

    of: dict[str, float]
    asked: list
    name: ClassVar[str] = "given"

    def layer_sparsities(self, weight_shapes, sparsity, lost):
        self.asked.append((dict(weight_shapes), sparsity, lost))
        return self.of


def scores(n: int = 6, k: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, k, generator=torch.Generator().manual_seed(seed))


def test_sparsities_of_layers():
    importance = {"a": scores(seed=1), "b": scores(seed=2)}
    allocation = Given({"a": 0.75, "b": 0.0}, [])
    shapes = {"a": (6, 2, 2, 2), "b": (6, 8)}
    spec = fix_spec(importance, ElementWise(), allocation, 0.375, weight_shapes=shapes)
    for overall, expected in ((0.1875, 18), (0.375, 36)):
        masks = make_masks(importance, ElementWise(), allocation, overall, final_sparsity=0.375, spec=spec)
        assert int((~masks["a"]).sum()) == expected and masks["b"].all()
    ((seen, sparsity, lost),) = allocation.asked
    assert seen == shapes and sparsity == 0.375
    assert lost("a", 0.0) == 0.0
    assert lost("a", 0.25) == pytest.approx(importance["a"].flatten().sort().values[:12].sum().item())


@pytest.mark.parametrize("sparsities", [None, {"a.b": 0.5, "c": 0.25}])
def test_structure_comes_back_from_disk(tmp_path, sparsities):
    orders = {"a.b": Permutation(outputs=torch.tensor([1, 0])), "c": Permutation(inputs=torch.tensor([2, 0, 1]))}
    MaskSpec(orders, sparsities).save(tmp_path)
    read = MaskSpec.load(tmp_path)
    assert read.sparsities == sparsities
    assert torch.equal(read.permutation("a.b").outputs, orders["a.b"].outputs)
    assert read.permutation("a.b").inputs is None and read.permutation("elsewhere").orders() == {}
    assert torch.equal(read.permutation("c").inputs, orders["c"].inputs)


def test_patterns_come_back_from_disk(tmp_path):
    patterns = {"a.b": NM(m=4), "c": VectorWise(granularity=4)}
    MaskSpec({}, {"a.b": 0.5, "c": 0.75, "d": 0.0}, patterns).save(tmp_path)
    read = MaskSpec.load(tmp_path)
    assert read.patterns == patterns
    assert read.pattern_of("c", NM()) == patterns["c"] and read.pattern_of("d", NM()) == NM()
    MaskSpec().save(tmp_path)
    assert MaskSpec.load(tmp_path).patterns is None, "nothing is left of another one"


@dataclass(frozen=True)
class Noted(NM):
    """Notes at which sparsity an order is asked for."""

    asked: list = field(default_factory=list)

    def find_permutation(self, importance, sparsity):
        self.asked.append(sparsity)
        return Permutation(inputs=torch.arange(importance.shape[1]).flip(0))


def test_order_of_a_layers_sparsity():
    importance, pattern = {"a": scores(seed=1), "b": scores(seed=2)}, Noted()
    assert fix_spec(importance, pattern, GlobalThreshold(), 0.75).permutations.keys() == {"a", "b"}
    assert pattern.asked == [0.75, 0.75]
    pattern.asked.clear()
    spec = fix_spec(importance, pattern, Given({"a": 0.5, "b": 0.0}, []), 0.75)
    assert spec.permutations.keys() == {"a"} and pattern.asked == [0.5]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"a": 0.5}, "gives layer b no sparsity"),
        ({"a": 0.5, "b": 1.5}, r"gives layer b a sparsity of 1.5; it must lie in [0, 1)"),
        ({"a": math.nan, "b": 0.5}, r"gives layer a a sparsity of nan; it must lie in [0, 1)"),
    ],
)
def test_own_allocation_that_breaks_its_promise(given, why):
    importance = {"a": scores(), "b": scores()}
    with pytest.raises(InvalidSetting, match=f"^allocation=given: {re.escape(why)}"):
        fix_spec(importance, ElementWise(), Given(given, []), 0.5)
