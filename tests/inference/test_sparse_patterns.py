"""Every way to store a pattern, end to end: prune, export, read back, swap on a CPU; outputs are the masked network's."""

import copy
from dataclasses import dataclass

import pytest
import torch
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import nn

from sparsefront.allocation.base import PerLayerAllocation
from sparsefront.allocation.per_layer import PerLayer
from sparsefront.export.checkpoint import read_export, write_export
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.swap import swap_layers
from sparsefront.masks.weight_view import as_matrix, like_weight
from sparsefront.measure.correctness import output_error
from sparsefront.measure.problems import observe_problems
from sparsefront.patterns.block_2_4 import Block24
from sparsefront.patterns.block_wise import BlockWise
from sparsefront.patterns.channel import Channel
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.shuffled_block import ShuffledBlock
from sparsefront.patterns.tile_2_4 import Tile24
from sparsefront.patterns.tile_wise import TileWise
from sparsefront.patterns.uniform import Uniform
from sparsefront.patterns.vector_wise import VectorWise
from sparsefront.pruning.make_masks import make_masks
from sparsefront.pruning.mask_spec import MaskSpec, fix_spec

PATTERNS = {
    "element_wise": (ElementWise(), "csr_reference"),
    "n_m": (NM(), "n_m_reference"),
    "n_m-12": (NM(m=12), "n_m_reference"),
    "vector_wise": (VectorWise(8), "gathered_reference"),
    "vector_wise-balanced": (VectorWise(8, "balanced"), "gathered_reference"),
    "block_wise": (BlockWise(4), "blocked_reference"),
    "block_wise-balanced": (BlockWise("8x2", "balanced"), "blocked_reference"),
    "tile_wise": (TileWise(16), "gathered_reference"),
    "tile_wise-apriori": (TileWise(16, apriori_tuning=0.5), "gathered_reference"),
    "channel": (Channel(), "gathered_reference"),
    "channel-inputs": (Channel("inputs"), "gathered_reference"),
    "shuffled_block": (ShuffledBlock(8), "gathered_reference"),
    "n_m-permuted": (NM(2, 4, permutation="search", permutation_rounds=3), "n_m_reference"),
    "n_m-transposable": (NM(transposable=True), "n_m_reference"),
    "uniform": (Uniform(1), "ell_reference"),
    "uniform-4": (Uniform(4), "ell_reference"),
    "tew": (TileWise(16, element_overlay=0.05), "gathered_overlay_reference"),
    "tile_2_4": (Tile24(16), "gathered_2_4_reference"),
    "block_2_4": (Block24(4), "blocked_2_4_reference"),
}


class Net(nn.Module):
    """Two convolutions and two Linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 48, 3, padding=1)
        self.narrowing = nn.Conv2d(48, 48, (1, 3), stride=2, padding=(0, 1), bias=False)
        self.first, self.second = nn.Linear(48, 96), nn.Linear(96, 48, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.narrowing(self.conv(x).relu()).relu()
        return self.second(self.first(features.mean(dim=(2, 3))).relu())


LAYERS = ("conv", "narrowing", "first", "second")


@dataclass(frozen=True)
class FirstStaysDense(PerLayerAllocation):
    """As erk and latency_aware may have it."""

    def layer_sparsities(self, weight_shapes, sparsity, lost):
        return {layer: 0.0 if layer == "first" else sparsity for layer in weight_shapes}


def pruned(pattern, allocation: PerLayerAllocation) -> tuple[Net, dict[str, torch.Tensor], MaskSpec]:
    torch.manual_seed(0)
    net = Net().eval().requires_grad_(False)
    weights = {name: as_matrix(net.get_submodule(name).weight) for name in LAYERS}
    scores = {name: weight.abs() for name, weight in weights.items()}
    spec = fix_spec(scores, pattern, allocation, 0.5)
    masks = make_masks(scores, pattern, allocation, 0.5, spec=spec)
    for name, mask in masks.items():
        weight = net.get_submodule(name).weight
        weight.mul_(like_weight(mask, weight))
    return net, masks, spec


@pytest.fixture(params=PATTERNS)
def case(request, tmp_path):
    """(masked net, its export, name of the reference)."""
    pattern, kernel = PATTERNS[request.param]
    net, masks, spec = pruned(pattern, PerLayer())
    write_export(
        tmp_path,
        net,
        masks,
        pattern=pattern,
        sparsity=0.5,
        permutations=spec.permutations,
        sparsities=spec.sparsities,
    )
    return net, read_export(tmp_path), kernel


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_sparse_network_computes_the_masked_one(case, dtype):
    masked, export, kernel = case
    x = torch.randn(3, 4, 6, 6, generator=torch.Generator().manual_seed(1))
    net, chosen = Net().eval(), KernelChoice()
    report = swap_layers(
        net, export, observe_problems(masked, {"x": x}, LAYERS), chosen, device=torch.device("cpu"), dtype=dtype
    )
    assert report.kernels == {kernel: len(LAYERS)} and report.sparse_flops_share == 1.0
    with torch.inference_mode():
        limit = 1e-5 if dtype == torch.float32 else 3e-2
        assert output_error(net(x.to(dtype)), masked(x)) < limit
        copied = copy.deepcopy(net)
        torch.testing.assert_close(copied(x.to(dtype)), net(x.to(dtype)), rtol=0, atol=0)
    for name in LAYERS:
        layer = net.get_submodule(name)
        assert isinstance(layer, SparseLayer)
        assert torch.equal(layer.weight, masked.get_submodule(name).weight.to(dtype))


def test_a_permuted_2_4_layer_is_offered_to_sparse_tensor_cores(tmp_path):
    """On a CPU their reference stands in: 2:4 is found in the order that the export holds, and only there."""
    pattern = PATTERNS["n_m-permuted"][0]
    masked, masks, spec = pruned(pattern, PerLayer())
    assert spec.permutations
    write_export(tmp_path, masked, masks, pattern=pattern, sparsity=0.5, permutations=spec.permutations)
    x, net = torch.randn(3, 4, 6, 6), Net().eval()
    report = swap_layers(
        net,
        read_export(tmp_path),
        observe_problems(masked, {"x": x}, LAYERS),
        KernelChoice(family="semi_structured"),
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    assert report.kernels == {"semi_structured_reference": len(LAYERS)}
    assert net.first.format.input_order is not None
    with torch.inference_mode():
        assert output_error(net(x), masked(x)) < 1e-5


@pytest.mark.parametrize("name", ["shuffled_block", "n_m-permuted", "uniform", "tew"])
def test_a_layer_whose_own_sparsity_is_0_is_stored_dense(tmp_path, name):
    pattern, _ = PATTERNS[name]
    masked, masks, spec = pruned(pattern, FirstStaysDense())
    fixed = {"permutations": spec.permutations, "sparsities": spec.sparsities}
    write_export(tmp_path, masked, masks, pattern=pattern, sparsity=0.5, **fixed)
    export = read_export(tmp_path)
    assert export.manifest.layers["first"].family == "dense" != export.manifest.layers["second"].family
    for layer in LAYERS:
        assert torch.equal(export.format(layer).to_dense(), as_matrix(masked.get_submodule(layer).weight))
