"""per_layer and global_threshold over layers."""

import pytest
import torch

from sparsefront.allocation.global_threshold import GlobalThreshold
from sparsefront.allocation.per_layer import PerLayer
from sparsefront.errors import InvalidSetting
from sparsefront.patterns.block_wise import BlockWise
from sparsefront.patterns.channel import Channel
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.pruning.make_masks import make_masks


def layers(*scales: float) -> dict[str, torch.Tensor]:
    """Layers of 8x12, 16x12 ... whose scores have these scales and no ties."""
    generator = torch.Generator().manual_seed(0)
    return {
        f"layer{i}": scale * torch.rand(8 * (i + 1), 12, generator=generator, dtype=torch.float32)
        for i, scale in enumerate(scales)
    }


def test_global_threshold_sorts_everything():
    importance = layers(1.0, 2.0, 0.3)
    masks = make_masks(importance, ElementWise(), GlobalThreshold(), 0.7)
    everything = torch.cat([values.flatten() for values in importance.values()]).sort().values
    threshold = everything[int(0.7 * len(everything) + 1e-6) - 1]  # the largest score that goes
    for layer, values in importance.items():
        assert torch.equal(masks[layer], values > threshold)


def test_layer_groups_have_a_threshold_each():
    importance = layers(1.0, 3.0, 0.2, 5.0)  # ranked together, layers 0 and 2 would be empty
    allocation = GlobalThreshold(layer_groups=["r[01]$", "r2$"])
    masks = make_masks(importance, BlockWise(granularity=4), allocation, 0.5)
    for names in (["layer0", "layer1"], ["layer2"], ["layer3"]):
        alone = make_masks({name: importance[name] for name in names}, BlockWise(granularity=4), GlobalThreshold(), 0.5)
        assert all(torch.equal(masks[name], alone[name]) for name in names)


def test_bad_layer_groups_are_rejected():
    shapes = {"conv1": (8, 9), "conv2": (8, 72)}
    for groups, message in (
        (["fc"], "fc finds no layer .* conv1, conv2"),
        (["1", "conv"], "1 and conv both find .*conv1"),
    ):
        with pytest.raises(InvalidSetting, match=f"layer_groups=.*{message}"):
            GlobalThreshold(layer_groups=groups).check_layers(ElementWise(), shapes, 0.5)
    with pytest.raises(InvalidSetting, match="ranks them apart, and the pattern ties layers"):
        GlobalThreshold(layer_groups=["conv"]).check_pattern(Channel(axis="width"))


def test_global_blocks_rank_by_norm():
    importance = layers(1.0, 1.5)
    masks = make_masks(importance, BlockWise(granularity=4), GlobalThreshold(), 0.5)
    norms = {layer: values.view(-1, 4, 3, 4).norm(dim=(1, 3)).flatten() for layer, values in importance.items()}
    threshold = torch.cat(list(norms.values())).sort().values[9 - 1]  # 18 blocks in all
    for layer, norm in norms.items():
        blocks = masks[layer].view(-1, 4, 3, 4)[:, 0, :, 0].flatten()
        assert torch.equal(blocks, norm > threshold)


def test_layer_may_vanish():
    importance = layers(1.0, 0.001)
    assert not make_masks(importance, ElementWise(), GlobalThreshold(), 0.9)["layer1"].any()
    masks = make_masks(importance, ElementWise(), GlobalThreshold(min_density_share=0.625), 0.9)
    assert masks["layer1"].sum() == 12  # of 192, and they are its best
    assert importance["layer1"][masks["layer1"]].min() > importance["layer1"][~masks["layer1"]].max()
    total = sum(mask.numel() for mask in masks.values())
    assert abs(sum(int((~mask).sum()) for mask in masks.values()) - 0.9 * total) <= 1


@pytest.mark.parametrize("sparsity", [0.5, 0.75, 0.9])
@pytest.mark.parametrize("share", [0.2, 1.0])
def test_minimum_share_of_the_density(sparsity, share):
    importance = layers(1.0, 0.001, 1.0)
    masks = make_masks(importance, ElementWise(), GlobalThreshold(min_density_share=share), sparsity)
    least = share * (1 - sparsity)
    kept = {layer: int(mask.sum()) for layer, mask in masks.items()}
    assert all(kept[layer] >= least * masks[layer].numel() - 1e-9 for layer in masks)
    assert kept["layer1"] - least * masks["layer1"].numel() < 1, "the weakest layer keeps no more than that"
    if share == 1.0:
        alike = make_masks(importance, ElementWise(), PerLayer(), sparsity)
        assert all(abs(kept[layer] - int(alike[layer].sum())) <= 1 for layer in masks)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_out_of_range(share):
    with pytest.raises(InvalidSetting, match="min_density_share=.*: must be "):
        GlobalThreshold(min_density_share=share)
