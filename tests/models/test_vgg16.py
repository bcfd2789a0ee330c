"""torchvision's VGG-16: BatchNorm, sizes, checkpoints, errors."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torchvision.models import get_model

from sparsefront.errors import InvalidSetting
from sparsefront.models.vgg16 import Vgg16


@pytest.mark.parametrize("batch_norm", [True, False])
def test_convolutions_but_the_first_are_prunable(images: Callable, batch_norm: bool):
    model = Vgg16(batch_norm=batch_norm, small_images=True)
    net = model.skeleton(images())
    convolutions = [name for name, module in net.named_modules() if isinstance(module, torch.nn.Conv2d)]
    assert len(convolutions) == 13 and model.prunable(net) == convolutions[1:]
    assert any(isinstance(module, torch.nn.BatchNorm2d) for module in net.modules()) == batch_norm
    head = Vgg16(batch_norm=batch_norm, small_images=True, prune_head=True).prunable(net)
    assert head == [*convolutions[1:], "classifier"]


@pytest.mark.parametrize("batch_norm", [True, False])
def test_small_images_have_the_convolutions_of_a_checkpoint_at_any_size(
    images: Callable, tmp_path: Path, batch_norm: bool
):
    """One head takes images of 32 and of 64 pixels."""
    info, name = images(channels=1), "vgg16_bn" if batch_norm else "vgg16"
    net = Vgg16(batch_norm=batch_norm, small_images=True).build(info).eval()
    torch.save(net.state_dict(), tmp_path / "weights.pth")
    again = Vgg16(batch_norm=batch_norm, small_images=True, path=str(tmp_path / "weights.pth")).build(info).eval()
    for side in (32, 64):
        x = torch.randn(1, 1, side, side)
        with torch.no_grad():
            assert again(x=x).shape == (1, 10) and torch.equal(again(x=x), net(x=x))
    with torch.device("meta"):
        torchvisions = get_model(name, num_classes=10).features.state_dict()
    assert torchvisions.keys() == net.features.state_dict().keys()
    with pytest.raises(InvalidSetting, match="path=.*weights.pth"):
        Vgg16(batch_norm=not batch_norm, small_images=True, path=str(tmp_path / "weights.pth")).build(info)


def test_bad_settings_are_rejected(images: Callable):
    with pytest.raises(InvalidSetting, match="small_images=True: weights DEFAULT belong to three Linears"):
        Vgg16(weights="DEFAULT", small_images=True)
    with pytest.raises(InvalidSetting, match="weights=V3: vgg16 has IMAGENET1K_V1"):
        Vgg16(batch_norm=False, weights="V3").check()
    with pytest.raises(InvalidSetting, match="small_images=False: halves images five times: 32 pixels at least"):
        Vgg16().skeleton(images(size=28))
