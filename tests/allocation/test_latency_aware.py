"""latency_aware: the speedup is met, at the least importance, or rejected with what can be met."""

import itertools
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefront.allocation.latency_aware import LatencyAware, LayerTime, write_table
from sparsefront.errors import InvalidSetting
from sparsefront.patterns.block_wise import BlockWise
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.tile_wise import TileWise
from sparsefront.patterns.vector_wise import VectorWise
from sparsefront.pruning.make_masks import make_masks

LEVELS = (0.5, 0.75, 0.875)
TIMES = {
    "fc1": {0: 40.0, 0.5: 30.0, 0.75: 20.0, 0.875: 12.0},
    "fc2": {0: 40.0, 0.5: 44.0, 0.75: 24.0, 0.875: 12.0},
    "fc3": {0: 20.0, 0.5: 15.0, 0.75: 10.0, 0.875: 8.0},
}
SHAPES = {"fc1": (32, 64), "fc2": (64, 32), "fc3": (32, 32)}


def importance(scales: dict[str, float] | None = None) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        layer: (scales or {}).get(layer, 1.0) * torch.rand(shape, generator=generator)
        for layer, shape in SHAPES.items()
    }


def speedup_of(times: dict, chosen: dict[str, float]) -> Fraction:
    """Exact, from the decimal numbers of the table."""
    dense = sum(Fraction(str(levels[0])) for levels in times.values())
    return dense / sum(Fraction(str(times[layer][level])) for layer, level in chosen.items())


times_of_layer = st.lists(st.integers(1, 4000).map(lambda hundredth: hundredth / 100), min_size=2, max_size=4)


@settings(max_examples=100, derandomize=True)
@given(
    times=st.lists(times_of_layer, min_size=1, max_size=4),
    speedup=st.sampled_from([1.01, 1.1, 1.5, 2.0, 3.0]),
    seed=st.integers(0, 100),
)
def test_assignment_equals_brute_force(tmp_path_factory, times, speedup, seed):
    table = {str(i): dict(zip((0.0, *LEVELS), layer, strict=False)) for i, layer in enumerate(times)}
    path = tmp_path_factory.mktemp("table") / "table.csv"
    write_table(path, [LayerTime(layer, s, t) for layer, levels in table.items() for s, t in levels.items()])
    generator = torch.Generator().manual_seed(seed)
    losses = {layer: {s: float(torch.randint(0, 9, (), generator=generator)) for s in table[layer]} for layer in table}
    combinations = [dict(zip(table, levels, strict=True)) for levels in itertools.product(*table.values())]
    feasible = [one for one in combinations if speedup_of(table, one) >= Fraction(str(speedup))]
    allocation = LatencyAware(str(path), speedup)

    def run() -> dict[str, float]:
        return allocation.layer_sparsities(dict.fromkeys(table, (8, 8)), 0.9, lambda layer, s: losses[layer][s])

    if not feasible:
        with pytest.raises(InvalidSetting, match="allocation.speedup"):
            run()
        return
    chosen = run()
    assert chosen in feasible
    assert sum(losses[layer][s] for layer, s in chosen.items()) == min(
        sum(losses[layer][s] for layer, s in one.items()) for one in feasible
    )


@pytest.mark.parametrize(
    "pattern",
    [
        ElementWise(),
        NM(),
        VectorWise(granularity=8),
        VectorWise(granularity=8, distribution="balanced"),
        BlockWise(granularity=4),
        TileWise(granularity=8),
    ],
    ids=lambda pattern: f"{pattern.name}-{getattr(pattern, 'distribution', '')}",
)
def test_masks_have_the_chosen_sparsities(table_of, pattern):
    """From table to masks: every layer is at one of its levels within a rounding unit, and together they are fast enough."""
    allocation = LatencyAware(table_of(TIMES), speedup=1.7)
    allocation.check_layers(pattern, SHAPES, 0.9)
    scores = importance({"fc3": 5.0})
    masks = make_masks(scores, pattern, allocation, 0.9)
    chosen = {}
    for layer, mask in masks.items():
        gone = int((~mask).sum())
        levels = [s for s in TIMES[layer] if abs(s * mask.numel() - gone) <= pattern.rounding_unit(SHAPES[layer])]
        assert len(levels) == 1, f"{layer} is at {gone / mask.numel()}"
        chosen[layer] = levels[0]
    assert speedup_of(TIMES, chosen) >= Fraction("1.7")
    assert chosen["fc3"] < max(chosen.values())  # what matters five times as much is pruned least


def test_ceiling_and_speedup_out_of_reach(table_of):
    table = table_of(TIMES)
    chosen = LatencyAware(table, 1.7).layer_sparsities(SHAPES, 0.75, lambda layer, s: s)
    assert max(chosen.values()) <= 0.75
    message = r"^speedup=3\.0: out of reach: .*sparsity=0\.75, the ceiling, allow 1\.851 at most"
    with pytest.raises(InvalidSetting, match=message):  # 100 / (20 + 24 + 10) = 1.85185...
        LatencyAware(table, 3.0).check_layers(ElementWise(), SHAPES, 0.75)
    LatencyAware(table, 1.851).check_layers(ElementWise(), SHAPES, 0.75)
    with pytest.raises(InvalidSetting, match=r"^allocation\.speedup=3\.0: out of reach"):
        make_masks(importance(), ElementWise(), LatencyAware(table, 3.0), 0.75)


def test_levels_that_no_layer_can_have(table_of):
    """What a pattern rejects by its settings alone, whatever the shape."""
    allocation = LatencyAware(table_of({"fc1": {0: 4.0, 0.5: 3.0, 0.75: 2.0}}), 1.1)
    with pytest.raises(InvalidSetting, match=r"^table=.*times fc1 at sparsity 0\.75, which n_m cannot express: n=2: "):
        allocation.check_layers(NM(n=2, m=4), {"fc1": (8, 64)}, 0.75)
    allocation.check_layers(NM(n=2, m=4), {"fc1": (8, 64)}, 0.5)


def test_a_table_of_another_pattern(table_of):
    allocation = LatencyAware(table_of(TIMES, pattern="block_wise", granularity="32"), 1.5)
    allocation.check_layers(BlockWise(granularity=32), SHAPES, 0.9)
    for pattern, runs in ((BlockWise(granularity=16), "block_wise 16"), (NM(), "n_m")):
        with pytest.raises(InvalidSetting, match=f"^table=.*times of block_wise 32, while this run prunes {runs}$"):
            allocation.check_layers(pattern, SHAPES, 0.9)
    LatencyAware(table_of(TIMES, pattern="block_wise"), 1.5).check_layers(BlockWise(granularity=16), SHAPES, 0.9)


def test_layer_that_the_table_lacks(table_of):
    allocation = LatencyAware(table_of(TIMES), 1.5)
    with pytest.raises(InvalidSetting, match="no times of layer head"):
        allocation.check_layers(ElementWise(), SHAPES | {"head": (10, 32)}, 0.9)
    allocation.check_layers(ElementWise(), {"fc1": (32, 64)}, 0.9)  # one that is not pruned may be in it


def test_layers_on_the_way(table_of):
    allocation, scores = LatencyAware(table_of(TIMES), 1.7), importance()
    final = make_masks(scores, ElementWise(), allocation, 0.9)
    halfway = make_masks(scores, ElementWise(), allocation, 0.45, final_sparsity=0.9)
    for layer, mask in final.items():
        assert abs(int((~halfway[layer]).sum()) - int((~mask).sum()) / 2) <= 1
        assert not (mask & ~halfway[layer]).any()


def test_run_ends_at_the_levels(run, table_of):
    """All stages, the export included, with a sparsity of its own in every layer."""
    layers = [f"blocks.{i}.{name}" for i in range(4) for name in ("attn.q", "attn.k", "attn.v", "attn.out")]
    layers += [f"blocks.{i}.mlp.{name}" for i in range(4) for name in ("fc1", "fc2")]
    table = table_of({layer: {0: 8.0, 0.5: 5.0, 0.75: 2.0} for layer in layers})
    row = run("pattern=n_m", "allocation=latency_aware", f"allocation.table={table}", "allocation.speedup=2")
    assert set(row.sparsity.sparsity_per_layer) == set(layers)
    assert set(row.sparsity.sparsity_per_layer.values()) <= {0.0, 0.5, 0.75}
    dense = 8.0 * len(layers)
    chosen = sum({0.0: 8.0, 0.5: 5.0, 0.75: 2.0}[s] for s in row.sparsity.sparsity_per_layer.values())
    assert dense / chosen >= 2 and row.choice.allocation == "latency_aware"
