"""What every pattern promises, over all YAML files of the group; a new pattern is found by its file."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from sparsefront_kernels.registry import FORMATS

from sparsefront.allocation.base import Allocation, PerLayerAllocation
from sparsefront.allocation.erk import Erk
from sparsefront.allocation.global_threshold import GlobalThreshold
from sparsefront.allocation.latency_aware import LatencyAware
from sparsefront.allocation.per_layer import PerLayer
from sparsefront.errors import InvalidSetting
from sparsefront.masks.permutation import Permutation
from sparsefront.masks.runs import in_runs
from sparsefront.masks.selection import follow_guides, select_in_layer
from sparsefront.masks.weight_view import as_matrix, like_weight, pixel_rows
from sparsefront.patterns.base import Pattern, new_mask, step_groups
from sparsefront.patterns.tile_wise import SOURCES
from sparsefront.pruning.make_masks import make_masks
from sparsefront.pruning.mask_layout import fix_layout

FILES = (Path(__file__).resolve().parents[2] / "conf" / "pattern").glob("*.yaml")
NAMES = sorted(path.stem for path in FILES if path.stem != "mixed")  # which has no structure of its own: test_mixed.py
SUITED = {"whole_tiles": True, "input_multiple": 16, "aggregate": "rms"}  # to the hardware
# Each distribution of a pattern is held to the contract, not only the YAML's own.
VARIANTS = [(name, {}) for name in NAMES] + [
    ("n_m", {"m": 16}),
    ("n_m", {"n": 2, "m": 4}),
    ("n_m", {"transposable": True}),
    ("vector_wise", {"distribution": "balanced"}),
    ("block_wise", {"distribution": "balanced"}),
    ("block_wise", {"granularity": "2x4"}),
    ("block_2_4", {"granularity": "2x8"}),
    ("channel", {"axis": "inputs"}),
    ("uniform", {"granularity": 1}),
    ("uniform", {"aggregate": "rms"}),
    ("vector_wise", {"aggregate": "l1"}),
    ("block_wise", {"aggregate": "l1", "distribution": "balanced"}),
    ("channel", {"aggregate": "mean"}),
    ("tile_wise", {"aggregate": "mean"}),
    ("tile_wise", {"element_overlay": 0.05}),
    ("tile_wise", {"apriori_tuning": 0.5}),
    ("tile_wise", {"apriori_tuning": 1.0, "element_overlay": 0.05}),
    ("tile_wise", SOURCES),
    ("tile_wise", SUITED),
    ("tile_wise", SUITED | {"apriori_tuning": 0.5, "element_overlay": 0.05}),
    ("tile_wise", SUITED | {"apriori_tuning": 1.0, "input_multiple": 5}),
]
SPARSITIES = (0.0, 0.5, 0.75, 0.9)
ALLOCATIONS = {"per_layer": PerLayer(), "global_threshold": GlobalThreshold(), "erk": Erk()}
UNIT = 4  # small, so that small layers have many groups


def met(pattern: Pattern) -> list[str]:
    """Names of the allocations that a pattern goes with."""
    return [name for name, allocation in ALLOCATIONS.items() if allocation.mismatch(pattern) is None]


def source_allocation(pattern: Pattern) -> Allocation:
    return ALLOCATIONS["global_threshold" if pattern.ranked_in_source else "per_layer"]


@dataclass(frozen=True)
class OfItsOwn(PerLayerAllocation):
    """Sparsities that are written down, as latency_aware finds them in a table."""

    of: dict[str, float]
    name: ClassVar[str] = "latency_aware"

    def layer_sparsities(self, weight_shapes, sparsity, lost):
        return self.of


@pytest.fixture(params=VARIANTS, ids=lambda variant: "-".join([variant[0], *map(str, variant[1].values())]))
def pattern(request: pytest.FixtureRequest, from_yaml) -> Pattern:
    name, keys = request.param
    return from_yaml(name, **{"granularity": UNIT, **keys})


def scores(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def expressible(pattern: Pattern, shape: tuple[int, int]) -> list[float]:
    """The sparsities that this pattern can give this layer."""
    fitting = []
    for sparsity in SPARSITIES:
        try:
            pattern.check_sparsity(sparsity)
        except InvalidSetting:
            continue
        if pattern.unsupported_reason(shape, sparsity) is None:
            fitting.append(sparsity)
    return fitting


def pruned(mask: torch.Tensor) -> int:
    return int((~mask).sum())


def assert_near(pattern: Pattern, mask: torch.Tensor, sparsity: float) -> None:
    target = 0 if pattern.name == "dense" else sparsity * mask.numel()
    assert abs(pruned(mask) - target) <= pattern.rounding_unit(tuple(mask.shape)), (pruned(mask), target)


def test_the_granularity_of_a_yaml_is_its_own_where_the_root_has_none(from_yaml):
    assert from_yaml("tile_wise").granularity == 128
    assert from_yaml("tile_wise", 64).granularity == 64
    assert from_yaml("block_wise", "4x64").block == (4, 64)


def test_shape_dtype_device_sparsity_invariant(pattern):
    shape = (24, 96)
    assert expressible(pattern, shape), "the contract must have something to test"
    for sparsity in expressible(pattern, shape):
        mask = pattern.mask(scores(*shape), sparsity)
        assert mask.shape == shape and mask.dtype == torch.bool and mask.device.type == "cpu"
        assert_near(pattern, mask, sparsity)
        pattern.check(mask, sparsity)


@pytest.mark.gpu
def test_on_a_gpu_the_mask_is_the_same(pattern):
    for sparsity in expressible(pattern, (24, 96)):
        importance = scores(24, 96).round(decimals=1)  # with ties
        mask = pattern.mask(importance.cuda(), sparsity)
        assert mask.is_cuda
        pattern.check(mask, sparsity)
        if not (
            pattern.uses_granularity or pattern.name == "channel"
        ):  # sums of squares may differ in their last digit between devices
            assert torch.equal(mask.cpu(), pattern.mask(importance, sparsity))


def test_all_equal_scores_prune_no_more_than_asked(pattern):
    for sparsity in expressible(pattern, (24, 96)):
        for value in (0.0, 1.0, 1e-30):
            mask = pattern.mask(torch.full((24, 96), value), sparsity)
            assert_near(pattern, mask, sparsity)
            pattern.check(mask, sparsity)


def test_sparsity_0_keeps_everything(pattern):
    if 0.0 in expressible(pattern, (24, 96)):
        assert pattern.mask(scores(24, 96), 0.0).all()


def test_the_highest_sparsity_keeps_something(pattern):
    """As high as the pattern goes, in a layer of few groups: rounding must not take the last one."""
    for shape in ((UNIT, 64), (2 * UNIT, 64)):
        for sparsity in (0.999, 0.98, 0.9, 0.75, 0.5):
            try:
                mask = pattern.mask(scores(*shape), sparsity)
            except (InvalidSetting, ValueError):
                continue
            assert mask.any()
            assert_near(pattern, mask, sparsity)
            pattern.check(mask, sparsity)
            break
        else:
            pytest.fail(f"no sparsity at all for {shape}")


@pytest.mark.parametrize("shape", [(25, 96), (24, 97), (23, 61), (1, 64), (1, 7), (13, 1), (1, 1)], ids=str)
def test_odd_shapes_are_masked_or_rejected_with_the_count(pattern, shape):
    for sparsity in (0.5, 0.75):
        try:
            pattern.check_sparsity(sparsity)
        except InvalidSetting:
            continue
        reason = pattern.unsupported_reason(shape, sparsity)
        if reason is None:
            mask = pattern.mask(scores(*shape), sparsity)
            assert_near(pattern, mask, sparsity)
            pattern.check(mask, sparsity)
        else:
            assert any(str(count) in reason for count in shape) and "\n" not in reason
            with pytest.raises(ValueError, match="cannot divide"):
                pattern.mask(scores(*shape), sparsity)


def test_same_scores_same_mask(pattern):
    for sparsity in expressible(pattern, (24, 96)):
        first, second = (pattern.mask(scores(24, 96, seed=3), sparsity) for _ in range(2))
        assert torch.equal(first, second)


def test_a_scale_changes_nothing(pattern):
    for sparsity in expressible(pattern, (24, 96)):
        importance = scores(24, 96)
        for scale in (2.0**20, 2.0**100, 2.0**-80):
            assert torch.equal(pattern.mask(importance, sparsity), pattern.mask(importance * scale, sparsity))


def test_importance_of_other_layouts_and_dtypes(pattern):
    for sparsity in expressible(pattern, (24, 96)):
        importance = scores(24, 96).half().double()
        expected = pattern.mask(importance, sparsity)
        assert torch.equal(pattern.mask(importance.half(), sparsity), expected)
        assert torch.equal(pattern.mask(importance.t().contiguous().t(), sparsity), expected)


def test_several_layers_under_every_allocation_that_it_meets(pattern):
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


def test_layers_with_sparsities_of_their_own_tighten_towards_them(pattern):
    """As latency_aware assigns them: a layer may stay dense, and each has its own end of the way."""
    levels = expressible(pattern, (24, 96))
    if pattern.name == "dense":
        return
    assert LatencyAware().mismatch(pattern) is None
    own = {"dense": 0.0, "least": levels[0], "most": levels[-1]}
    allocation, final = OfItsOwn(own), levels[-1]
    masks = layout = None
    for update, share in enumerate((0.3, 0.7, 1.0)):
        importance = {layer: scores(24, 96, seed=10 * update + i) for i, layer in enumerate(own)}
        layout = layout or fix_layout(importance, pattern, allocation, final)
        tighter = make_masks(
            importance,
            pattern,
            allocation,
            share * final,
            final_sparsity=final,
            previous=masks,
            layout=layout,
        )
        assert masks is None or not any((tighter[layer] & ~masks[layer]).any() for layer in masks)
        masks = tighter
    assert masks["dense"].all() and "dense" not in layout.permutations
    for layer in ("least", "most"):
        if own[layer] > 0:
            assert_near(pattern, masks[layer], own[layer])
            pattern.check(masks[layer], own[layer], layout.permutation(layer))


def test_a_layer_that_a_threshold_empties_obeys_and_is_stored(pattern):
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


def test_masks_on_the_way_to_a_final_sparsity_are_nested_and_end_in_the_structure(pattern):
    """New scores at every update, as in training; what is gone stays gone."""
    for final in expressible(pattern, (24, 96)):
        for name in met(pattern):
            masks = layout = None
            for update, share in enumerate((0.0, 0.35, 0.6, 0.85, 0.97, 1.0)):
                importance = {layer: scores(24, 96, seed=10 * update + i) for i, layer in enumerate("ab")}
                layout = layout or fix_layout(importance, pattern, ALLOCATIONS[name], final)
                tighter = make_masks(
                    importance,
                    pattern,
                    ALLOCATIONS[name],
                    share * final,
                    final_sparsity=final,
                    previous=masks,
                    layout=layout,
                )
                if masks is not None:
                    assert not any((tighter[layer] & ~masks[layer]).any() for layer in masks)
                masks = tighter
            for layer, mask in masks.items():
                pattern.check(mask, final, layout.permutation(layer))
            if pattern.name != "dense":
                slack = sum(pattern.rounding_unit((24, 96)) for _ in masks)
                assert abs(sum(map(pruned, masks.values())) - final * 2 * 24 * 96) <= slack


def test_a_broken_mask_is_named(pattern):
    with pytest.raises(ValueError, match="bool"):
        pattern.check(torch.ones(24, 96), 0.5)
    if pattern.name == "element_wise" or getattr(pattern, "element_overlay", 0.0):
        return  # any bool matrix is an element-wise mask, and one of tiles and single weights
    broken = torch.ones(24, 96, dtype=torch.bool)
    broken[1, 2] = False
    with pytest.raises(ValueError, match=pattern.name):
        pattern.check(broken, 0.5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_scores_that_are_not_finite_are_rejected(pattern, bad):
    importance = scores(24, 96)
    importance[3, 5] = bad
    with pytest.raises(ValueError, match="not finite"):
        pattern.mask(importance, 0.5)


@pytest.mark.parametrize("sparsity", [-0.1, 1.0, 1.5, float("nan")])
def test_a_sparsity_out_of_range_is_rejected(pattern, sparsity):
    with pytest.raises(InvalidSetting, match="sparsity"):
        pattern.mask(scores(24, 96), sparsity)


def test_storage_names_a_family_and_plain_parameters(pattern):
    family, parameters = pattern.storage((24, 96), expressible(pattern, (24, 96))[-1])
    expected = {"dense", "csr", "n_m", "gathered", "blocked", "ell", "gathered_overlay", "gathered_2_4", "blocked_2_4"}
    assert family in expected
    assert all(isinstance(value, bool | int | list) for value in parameters.values())


def test_the_canonical_format_holds_every_mask(pattern):
    for sparsity in expressible(pattern, (24, 96)):
        weight = scores(24, 96) + 0.5
        permutation = pattern.find_permutation(weight, sparsity) or Permutation()
        mask = pattern.mask(weight, sparsity)
        family, parameters = pattern.storage((24, 96), sparsity)
        stored = FORMATS[family].from_dense(weight * mask, mask, **parameters, **permutation.orders())
        assert torch.equal(stored.to_dense(), weight * mask)


def test_the_layer_whose_scores_are_not_finite_is_named(pattern):
    importance = {"body.0": scores(24, 96), "body.1": scores(24, 96)}
    importance["body.1"][3, 5] = float("nan")
    allocation = source_allocation(pattern)
    with pytest.raises(ValueError, match="body.1"):
        make_masks(importance, pattern, allocation, expressible(pattern, (24, 96))[-1])


def test_a_convolution_is_masked_through_its_weight_view(pattern):
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


def test_masks_that_have_arrived_lose_less_than_a_group_to_new_scores(pattern):
    for final in expressible(pattern, (24, 96)):
        for name in met(pattern):
            first = {layer: scores(24, 96, seed=i) for i, layer in enumerate("ab")}
            second = {layer: scores(24, 96, seed=9 + i) for i, layer in enumerate("ab")}
            layout = fix_layout(first, pattern, ALLOCATIONS[name], final)
            masks = make_masks(first, pattern, ALLOCATIONS[name], final, layout=layout)
            again = make_masks(second, pattern, ALLOCATIONS[name], final, layout=layout, previous=masks)
            for layer, mask in again.items():
                pattern.check(mask, final, layout.permutation(layer))
                assert not (mask & ~masks[layer]).any()
            lost = sum(pruned(again[layer]) - pruned(masks[layer]) for layer in masks)
            assert lost <= sum(pattern.rounding_unit((24, 96)) for _ in masks)


def test_no_exchange_of_a_kept_and_a_pruned_group_within_a_step_keeps_more(pattern):
    for sparsity in expressible(pattern, (24, 96)):
        importance = scores(24, 96, seed=5)
        permutation = pattern.find_permutation(importance, sparsity) or Permutation()
        permuted = permutation.apply(importance)
        mask = allowed = torch.ones_like(permuted, dtype=torch.bool)
        for step in pattern.steps(sparsity, (24, 96)):
            groups = step_groups(step, permuted, mask, allowed)
            kept = select_in_layer(groups, permuted.numel(), step.target)
            [ranked] = follow_guides([groups], permuted.numel(), step.target)
            values, survives = ranked.marked(), kept
            if groups.multiple > 1:  # then runs of them are exchanged
                runs = in_runs(ranked)
                values = runs.groups.scores
                survives = kept.gather(-1, runs.order)[..., :: groups.multiple]
            rivals = (-1, groups.scores.shape[-1]) if groups.keep_of_last else (1, values.numel())
            values, survives = values.reshape(rivals), survives.reshape(rivals)
            worst_kept = values.masked_fill(~survives, float("inf")).amin(dim=1)
            best_pruned = values.masked_fill(survives, float("-inf")).amax(dim=1)
            assert (worst_kept >= best_pruned).all()
            mask = new_mask(step, kept, permuted, mask, allowed)
        assert torch.equal(permutation.invert(mask), pattern.mask(importance, sparsity))


def interchangeable(pattern: Pattern) -> tuple[int, int]:
    """How many outputs, and how many inputs, may change places with as many others; 0 = not even so."""
    if getattr(pattern, "apriori_tuning", 0.0):
        return 0, 0  # densities tie, and ties go by index
    if pattern.name == "tile_wise":
        return 0, 1
    if pattern.name == "channel":
        return 1, 1
    if getattr(pattern, "transposable", False):
        return 4, 4  # tiles
    if not hasattr(pattern, "block"):
        return 0, 0
    return pattern.block[0], 0 if pattern.balanced else pattern.block[1]


def test_groups_that_change_places_keep_their_masks(pattern):
    outputs, inputs = interchangeable(pattern)
    for sparsity in expressible(pattern, (24, 96)):
        importance = scores(24, 96, seed=6)
        if pattern.find_permutation(importance, sparsity) is not None:
            continue
        mask = pattern.mask(importance, sparsity)
        for dim, unit in ((0, outputs), (1, inputs)):
            if unit:
                units = torch.randperm(mask.shape[dim] // unit, generator=torch.Generator().manual_seed(7))
                order = (units[:, None] * unit + torch.arange(unit)).flatten()
                moved = pattern.mask(importance.index_select(dim, order), sparsity)
                assert torch.equal(moved, mask.index_select(dim, order))
