"""From a network to its masks: every choice timed and evaluated, the latency kept, each layer in its own pattern."""

import copy
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sparsefront as sf
from sparsefront.allocation.assignment import Assignment
from sparsefront.allocation.base import Found, MeasuringAllocation
from sparsefront.data.base import DataInfo
from sparsefront.inference.choice import KernelChoice
from sparsefront.latency_search.search import Search
from sparsefront.latency_search.table import Timing
from sparsefront.measure.settings import Measure
from sparsefront.models.vit_small import VitSmall
from sparsefront.tasks.plain_task import NamedBatches

MIXED = sf.patterns.Mixed(["n_m", "vector_wise:8", {"name": "n_m", "m": 4}], sparsities=[0.5, 0.75])


@pytest.fixture(scope="module")
def vit() -> nn.Module:
    torch.manual_seed(0)
    info = DataInfo(kind="image_classification", num_classes=10, image_size=8, channels=1)
    return VitSmall(dim=32, depth=2, heads=2).build(info).eval()


@pytest.fixture(scope="module")
def batches(vit) -> list:
    x = torch.randn(96, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        labels = vit(x).argmax(1)
    return list(zip(x.split(16), labels.split(16), strict=True))


def searched(
    vit, batches, *, fuse=True, pattern=MIXED, ceiling=0.9, loss=F.cross_entropy, **settings
) -> tuple[nn.Module, sf.Masks]:
    net = copy.deepcopy(vit)
    x = batches[0][0]
    timing = Timing({"x": x}, torch.float32, Measure(device="cpu"), KernelChoice(fuse=fuse))
    masks = sf.prune(
        net,
        pattern,
        ceiling,
        allocation=sf.allocation.LatencySearch(**{"generations": 4} | settings),
        calibration=batches,
        loss=loss,
        example_inputs=(x,),
        search=Search(timing, NamedBatches(batches, net, argument="held_out").train_dataloader),
        tell=lambda line: None,
    )
    return net, masks


@pytest.mark.parametrize("fuse", [True, False])
def test_layers_obey_their_patterns_in_time(vit, batches, clock, fuse):
    net, masks = searched(vit, batches, fuse=fuse, speedup=1.6)
    found = masks.search.found
    assert found.predicted_ms <= found.budget_ms == pytest.approx(masks.search.table.dense_us / 1.6e3)
    predicted, measured = found.rounds[-1]
    assert predicted == pytest.approx(measured, rel=0.05)
    layout = masks.spec
    assert len({type(pattern) for pattern in layout.patterns.values()}) > 1  # or this looks at nothing
    for layer, mask in masks.items():
        sparsity = layout.sparsities[layer]
        if layer not in layout.patterns:
            assert sparsity == 0 and mask.all()
            continue
        pattern = layout.patterns[layer]
        pattern.check(mask, sparsity)
        assert abs(1 - float(mask.float().mean()) - sparsity) * mask.numel() <= pattern.rounding_unit(mask.shape)
        assert not net.get_submodule(layer).weight[~mask].any()
    products = {tuple(choice["product"]) for choice in masks.search.layers.values()}
    assert (("blocks.0.attn.q", "blocks.0.attn.k", "blocks.0.attn.v") in products) == fuse
    for product in products:  # one activation has one pattern
        assert len({(layout.patterns.get(layer), layout.sparsities[layer]) for layer in product}) == 1


def test_root_sparsity_is_a_ceiling(vit, batches, clock):
    _, masks = searched(vit, batches, ceiling=0.6, speedup=1.3)
    assert max(masks.spec.sparsities.values()) == 0.5
    with pytest.raises(sf.InvalidSetting, match=r"^allocation\.latency_ms=0\.05: out of reach: .* ms at least"):
        searched(vit, batches, ceiling=0.6, latency_ms=0.05)


def test_candidate_that_breaks_its_masks(vit, batches, clock):
    own = sf.patterns.Mixed([{"_target_": "torn_blocks.TornBlocks", "granularity": 8}], sparsities=[0.5])
    told = r"^pattern=block_wise: has made a mask of blocks\.\S+ that breaks it: .*block"
    with pytest.raises(sf.InvalidSetting, match=told):
        searched(vit, batches, pattern=own, speedup=1.1)


@dataclass(frozen=True)
class AllSparse(MeasuringAllocation):
    """The last option of every item, measured."""

    calibration_batches: int = 2
    name: ClassVar[str] = "all_sparse"

    def assign(self, table, network, tell=lambda line: None):
        layouts = {chain: next(iter(layouts)) for chain, layouts in table.layouts_us.items()}
        assignment = Assignment(tuple(len(item.options) - 1 for item in table.items), layouts)
        measured = network.measure(assignment)
        assert measured.dense_us > 0
        measured_ms, dense_ms = measured.network_us / 1e3, measured.dense_us / 1e3
        return Found(assignment, table.time_us(assignment) / 1e3, measured_ms, dense_ms, [(0.0, measured_ms)])


@pytest.mark.parametrize("fuse", [True, False])
def test_clock_of_this_processor(vit, batches, fuse):
    """Nothing stands in for the times: those of the references, whatever they are."""
    x = batches[0][0]
    timing = Timing({"x": x}, torch.float32, Measure(device="cpu", samples=5, repeats=1), KernelChoice(fuse=fuse))
    net = copy.deepcopy(vit)
    search = Search(timing, NamedBatches(batches, net, argument="held_out").train_dataloader)
    masks = sf.prune(
        net,
        MIXED,
        0.75,
        allocation=AllSparse(),
        calibration=batches,
        loss=F.cross_entropy,
        example_inputs=(x,),
        search=search,
        tell=lambda line: None,
    )
    table, (_, measured_ms) = masks.search.table, masks.search.found.rounds[0]
    assert table.dense_us > 0 and measured_ms > 0
    told = masks.search.to_json()
    parts = told["search_seconds_of"]
    assert parts["swap"] > 0 and parts["timing"] > 0 and parts["held_out_loss"] == 0
    assert sum(parts.values()) <= told["search_seconds"]
    assert all(time > 0 for item in table.items for option in item.options for time in option.times_us.values())
    assert {len(item.options) for item in table.items} == {7}  # dense, and three candidates at two sparsities
    assert {
        option.kernels[layout] for item in table.items for option in item.options for layout in option.times_us
    } == {"dense_linear", "n_m_reference", "gathered_reference"}
