"""The two options of tile_wise: the element-wise overlay and apriori tuning."""

import pytest
import torch
from sparsefront_kernels.gathered_overlay.format import split_mask
from torch import Tensor

from sparsefront.allocation.global_threshold import GlobalThreshold
from sparsefront.allocation.per_layer import PerLayer
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.patterns.tile_wise import SOURCES, TileWise
from sparsefront.pruning.make_masks import make_masks

ALLOCATIONS = [PerLayer(), GlobalThreshold(), GlobalThreshold(min_density_share=0.2)]
by_allocation = pytest.mark.parametrize("allocation", ALLOCATIONS, ids=lambda allocation: repr(allocation))


def layers(seed: int = 0) -> dict[str, Tensor]:
    """Scores of layers that differ in shape, in scale and, within a layer, from output to output."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"square": (48, 64), "wide": (96, 32), "long": (32, 160)}
    return {
        name: scale * torch.rand(shape[0], 1, generator=generator) * torch.rand(*shape, generator=generator)
        for scale, (name, shape) in zip((1.0, 0.7, 1.4), shapes.items(), strict=True)
    }


def total(tensors: dict[str, Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors.values())


@by_allocation
def test_storage_finds_tiles_beside_overlay(allocation):
    """Delta of all weights are beside the tiles, and one layer may hold more of its own: only the network shows it."""
    importance, delta = layers(), 0.05
    masks = make_masks(importance, TileWise(8, element_overlay=delta), allocation, 0.75)
    tiles = {layer: split_mask(mask, 8) for layer, mask in masks.items()}
    for tiled in tiles.values():  # an input that the overlay brought back for a whole tile counts as one of its inputs
        TileWise(8, input_multiple=1).check(tiled, 0.75)
    beside = sum(int((masks[layer] & ~tiles[layer]).sum()) for layer in masks)
    assert 0 < beside <= 1.1 * delta * total(importance)


def test_layer_of_overlay_alone():
    """Another layer's density leaves this one with less than delta."""
    importance = layers()["square"]
    allowed = torch.ones_like(importance, dtype=torch.bool)
    mask = TileWise(8, element_overlay=0.1).layer_mask(importance, allowed, 0.95)
    assert torch.equal(mask, ElementWise().mask(importance, 0.95))


def test_outputs_stay_once_inputs_went():
    """The root split would allow two more weights than are gone, and output 0 has just one left; but without it output 1
    would share a tile with output 2, which keeps other inputs.
    """
    previous = torch.ones(4, 8, dtype=torch.bool)
    previous[:2, 1:] = False
    importance = torch.tensor([0.1, 1.0, 1.0, 0.3])[:, None].expand(4, 8)
    mask = make_masks({"a": importance}, TileWise(2, **SOURCES), PerLayer(), 0.75, previous={"a": previous})["a"]
    TileWise(2, **SOURCES).check(mask, 0.75)
    assert not (mask & ~previous).any() and int(mask.sum()) == 8


def test_mask_of_the_end_guides():
    """Of the four best weights, which pruning to 0.75 keeps, output 1 holds none; of the twelve best it holds the most."""
    importance = torch.tensor([[9, 1, 0, 0], [3, 3, 3, 3], [9, 9, 0, 0], [9, 1, 0, 0]]).float()
    pattern = TileWise(4, apriori_tuning=1.0, **SOURCES)
    mask = make_masks({"a": importance}, pattern, PerLayer(), 0.25, final_sparsity=0.75)["a"]
    assert mask.any(dim=1).tolist() == [True, False, True, True]
