"""Patch convolutions as products: the same numbers, as tokens in memory, for every variant of a ViT."""

import pytest
import torch
from torch import nn

from sparsefront.data.base import DataInfo
from sparsefront.measure.variants import CutsNoPatches, DoesNotApply, PatchProduct, make_variant, patch_products
from sparsefront.models.vit import Vit


@pytest.mark.parametrize(("size", "bias"), [((12, 12), True), ((14, 9), False)])
@pytest.mark.parametrize("kernel", [(4, 4), (2, 3), (4, 1)])
def test_it_gives_what_the_convolution_gives(kernel, size, bias):
    """Also where the image has more pixels than its patches."""
    convolution = nn.Conv2d(3, 5, kernel, stride=kernel, bias=bias)
    x = torch.randn(2, 3, *size)
    y = PatchProduct(convolution)(x)
    torch.testing.assert_close(y, convolution(x))
    assert torch.equal(PatchProduct(convolution)(input=x), y)
    assert y.flatten(2).transpose(1, 2).is_contiguous(), "tokens are read without a copy"


@pytest.mark.parametrize(
    "options",
    [{"stride": 2}, {"stride": 4, "padding": 1}, {"stride": 4, "dilation": 2}, {"stride": 4, "groups": 3}],
    ids=str,
)
def test_other_convolutions_stay(options):
    with pytest.raises(CutsNoPatches):
        patch_products(nn.Sequential(nn.Conv2d(3, 6, 4, **options), nn.Conv2d(6, 6, 1)))


def test_a_vit_gives_the_same_and_stays_as_it_is():
    info = DataInfo("image_classification", 10, 32, 3)
    net = Vit().build(info).eval()
    x = torch.randn(2, 3, 32, 32)
    varied = make_variant("patch_product", net, {"x": x})
    assert isinstance(varied.conv_proj, PatchProduct) and isinstance(net.conv_proj, nn.Conv2d)
    assert not any(isinstance(module, nn.Conv2d) for module in varied.modules())
    with torch.inference_mode():
        torch.testing.assert_close(varied(x), net(x), rtol=1e-4, atol=1e-4)


def test_a_network_without_patches_says_so():
    with pytest.raises(DoesNotApply, match="cuts its image into patches"):
        make_variant("patch_product", nn.Conv2d(3, 3, 3), {"x": torch.randn(1, 3, 8, 8)})
