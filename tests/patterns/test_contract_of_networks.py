"""What every pattern promises of the layers of a network, under the allocations that it goes with, in one step and on the way."""

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from every_pattern import ALLOCATIONS, assert_near, expressible, met, pruned, scores
from sparsefront_kernels.packing import FORMATS

from sparsefront.allocation.base import Allocation, PerLayerAllocation
from sparsefront.allocation.global_threshold import GlobalThreshold
from sparsefront.allocation.latency_aware import LatencyAware
from sparsefront.masks.weight_view import Permutation, as_matrix, like_weight, pixel_rows
from sparsefront.patterns.base import Pattern
from sparsefront.patterns.blocks import BlockPattern
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.tile_2_4 import Tile24
from sparsefront.patterns.tile_wise import TileWise
from sparsefront.pruning.make_masks import make_masks
from sparsefront.pruning.mask_spec import fix_spec
from sparsefront.schedule.gradual import Gradual
from sparsefront.schedule.iterative import Iterative


def source_allocation(pattern: Pattern) -> Allocation:
    return ALLOCATIONS["global_threshold" if pattern.ranked_in_source else "per_layer"]


@dataclass(frozen=True)
class OfItsOwn(PerLayerAllocation):
    """Sparsities that are written down, as latency_aware finds them in a table."""

    of: dict[str, float]
    name: ClassVar[str] = "latency_aware"

    def layer_sparsities(self, weight_shapes, sparsity, lost):
        return self.of


def test_layers_under_every_allocation(pattern):
    importance = {"narrow": scores(8, 96, seed=1), "wide": 3 * scores(48, 96, seed=2), "tall": scores(96, 192, seed=3)}
    assert source_allocation(pattern).mismatch(pattern) is None
    for name in met(pattern):
        for sparsity in expressible(pattern, (8, 96)):
            masks = make_masks(importance, pattern, ALLOCATIONS[name], sparsity)
            assert list(masks) == list(importance)
            for mask in masks.values():
                pattern.check(mask, sparsity)
            total = sum(mask.numel() for mask in masks.values())
            if pattern.name != "dense":
                rounding_units = [pattern.rounding_unit(tuple(mask.shape)) for mask in masks.values()]
                # ranked together, all layers are within one rounding unit; tile_2_4 rounds in the last window of every tile
                together = name == "global_threshold" and pattern.name != "tile_2_4"
                slack = max(rounding_units) if together else sum(rounding_units)
                assert abs(sum(map(pruned, masks.values())) - sparsity * total) <= slack


def test_layers_of_own_sparsities_tighten(pattern):
    """As latency_aware assigns them: a layer may stay dense, and each has its own end of the way."""
    levels = expressible(pattern, (24, 96))
    if pattern.name == "dense":
        return
    assert LatencyAware().mismatch(pattern) is None
    own = {"dense": 0.0, "least": levels[0], "most": levels[-1]}
    allocation, final = OfItsOwn(own), levels[-1]
    masks = spec = None
    for update, share in enumerate((0.3, 0.7, 1.0)):
        importance = {layer: scores(24, 96, seed=10 * update + i) for i, layer in enumerate(own)}
        spec = spec or fix_spec(importance, pattern, allocation, final)
        tighter = make_masks(
            importance, pattern, allocation, share * final, final_sparsity=final, previous=masks, spec=spec
        )
        assert masks is None or not any((tighter[layer] & ~masks[layer]).any() for layer in masks)
        masks = tighter
    assert masks["dense"].all() and "dense" not in spec.permutations
    for layer in ("least", "most"):
        if own[layer] > 0:
            assert_near(pattern, masks[layer], own[layer])
            pattern.check(masks[layer], own[layer], spec.permutation(layer))


def test_emptied_layer_is_stored(pattern):
    """One layer is worth nothing beside the other."""
    if "global_threshold" not in met(pattern) or not pattern.prunes:
        return
    importance = {"strong": 1 + scores(24, 96, seed=1), "weak": 1e-6 * scores(24, 96, seed=2)}
    sparsity = 0.75 if pattern.name in ("tile_2_4", "block_2_4") else 0.5
    masks = make_masks(importance, pattern, GlobalThreshold(), sparsity)
    if getattr(pattern, "apriori_tuning", 0.0) == 0.0:
        assert not masks["weak"].any()
    for layer, mask in masks.items():
        if pattern.name != "shuffled_block":  # whose order is another one in each layer
            pattern.check(mask, sparsity)
        family, parameters = pattern.storage((24, 96), sparsity)
        permutation = pattern.find_permutation(importance[layer], sparsity) or Permutation()
        stored = FORMATS[family].from_dense(importance[layer], mask, **parameters, **permutation.orders())
        assert torch.equal(stored.to_dense(), importance[layer] * mask)


SCHEDULES = (
    Gradual(updates=9),
    Gradual(initial_sparsity=0.13, updates=4),
    Iterative(rounds=4),
    Iterative(spacing="linear"),
)


def group(pattern: Pattern, shape: tuple[int, int], final: float) -> int:
    """Weights of the largest group that a step of this pattern removes from a layer."""
    if isinstance(pattern, NM):
        return 4 if pattern.transposable else 1
    tiles = pattern.tiles if isinstance(pattern, Tile24) else pattern
    if isinstance(tiles, TileWise):
        outputs = tiles.granularity if tiles.whole_tiles else 1
        return max(tiles.rounding_unit(shape), outputs * shape[1] if shape[0] > outputs else 0)
    if isinstance(pattern, BlockPattern) and pattern.name != "uniform":
        return math.prod(pattern.block)
    return pattern.rounding_unit(shape)


def reachable(pattern: Pattern, shape: tuple[int, int], sparsity: float, final: float) -> float:
    """The zeros asked of a layer, or of its last window where that is looser: 0.9 is also 1:11."""
    window = pattern.window(shape, final) if pattern.balanced else None
    return sparsity if window is None else min(sparsity, window.sparsity)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_masks_follow_a_schedule(pattern, schedule):
    """New scores at every update, as in training; what is gone stays gone, and the zeros are those that were asked for."""
    shapes = {"tall": (24, 96), "wide": (8, 192), "one tile": (4, 96)}
    for final in filter(None, expressible(pattern, (24, 96))) if pattern.name != "dense" else ():
        levels = [*schedule.round_sparsities(final), *schedule.updates_of(100, final).values()]
        for name in met(pattern):
            masks = spec = None
            for update, sparsity in enumerate(levels):
                importance = {layer: scores(*shape, seed=7 * update + shape[0]) for layer, shape in shapes.items()}
                allocation = ALLOCATIONS[name]
                spec = spec or fix_spec(importance, pattern, allocation, final)
                tighter = make_masks(
                    importance, pattern, allocation, sparsity, final_sparsity=final, previous=masks, spec=spec
                )
                assert masks is None or not any((tighter[layer] & ~masks[layer]).any() for layer in masks)
                masks = tighter
                if sparsity == final:  # a window may lie beside it, and tile_2_4 keeps more of a short one
                    continue
                groups = {layer: group(pattern, shape, final) for layer, shape in shapes.items()}
                if name == "global_threshold":
                    asked = sum(sparsity * mask.numel() for mask in masks.values())
                    assert abs(asked - sum(map(pruned, masks.values()))) <= max(groups.values()), (final, sparsity)
                    continue
                for layer, mask in masks.items():
                    own = spec.sparsity_of(layer, final) * sparsity / final
                    asked = reachable(pattern, shapes[layer], own, final) * mask.numel()
                    assert abs(asked - pruned(mask)) <= groups[layer], (layer, final, sparsity, asked, pruned(mask))
            for layer, mask in masks.items():
                pattern.check(mask, spec.sparsity_of(layer, final), spec.permutation(layer))
            slack = sum(pattern.rounding_unit(shape) for shape in shapes.values())
            assert abs(sum(map(pruned, masks.values())) - final * sum(map(math.prod, shapes.values()))) <= slack


def test_convolution_is_masked_as_matrix(pattern):
    """A masked convolution is the product of its patches with the masked matrix."""
    convolution = torch.nn.Conv2d(6, 24, 4, bias=False)
    weight = convolution.weight.detach()
    sparsity = expressible(pattern, (24, 96))[-1]
    importance = {"conv": as_matrix(weight).abs()}
    allocation = source_allocation(pattern)
    mask = make_masks(importance, pattern, allocation, sparsity, weight_shapes={"conv": tuple(weight.shape)})["conv"]
    assert torch.equal(mask, pattern.mask(importance["conv"], sparsity))
    x = torch.randn(2, 6, 7, 7)
    products = pixel_rows(x, (4, 4)) @ (as_matrix(weight) * mask).t()  # [2 * pixels, 24]
    expected = products.view(2, 4, 4, 24).permute(0, 3, 1, 2)
    masked = torch.nn.functional.conv2d(x, weight * like_weight(mask, weight))
    torch.testing.assert_close(masked, expected, atol=1e-4, rtol=1e-4)


def test_final_masks_stay_under_new_scores(pattern):
    for final in expressible(pattern, (24, 96)):
        for name in met(pattern):
            first = {layer: scores(24, 96, seed=i) for i, layer in enumerate("ab")}
            second = {layer: scores(24, 96, seed=9 + i) for i, layer in enumerate("ab")}
            spec = fix_spec(first, pattern, ALLOCATIONS[name], final)
            masks = make_masks(first, pattern, ALLOCATIONS[name], final, spec=spec)
            again = make_masks(second, pattern, ALLOCATIONS[name], final, spec=spec, previous=masks)
            for layer, mask in again.items():
                pattern.check(mask, final, spec.permutation(layer))
                assert not (mask & ~masks[layer]).any()
            lost = sum(pruned(again[layer]) - pruned(masks[layer]) for layer in masks)
            assert lost <= sum(pattern.rounding_unit((24, 96)) for _ in masks)
