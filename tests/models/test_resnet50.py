"""torchvision's ResNet-50: stems, checkpoints, errors."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torchvision.models import resnet50

from sparsefront.errors import InvalidSetting
from sparsefront.models.resnet50 import ResNet50


def test_all_convolutions_but_the_stem_are_prunable(images: Callable):
    model = ResNet50()
    net = model.skeleton(images())
    convolutions = [name for name, module in net.named_modules() if isinstance(module, torch.nn.Conv2d)]
    assert model.prunable(net) == [name for name in convolutions if name != "conv1"]
    assert len(model.prunable(net)) == 52
    assert ResNet50(prune_head=True).prunable(net) == [*model.prunable(net), "fc"]


def test_torchvision_checkpoint_gives_torchvisions_outputs(images: Callable, tmp_path: Path):
    torch.manual_seed(0)
    original = resnet50(num_classes=10).eval()
    torch.save(original.state_dict(), tmp_path / "weights.pth")
    net = ResNet50(path=str(tmp_path / "weights.pth")).build(images()).eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(net(x=x), original(x))

    with pytest.raises(InvalidSetting, match=r"conv1.weight \[64, 3, 7, 7\] for \[64, 3, 3, 3\]"):
        ResNet50(path=str(tmp_path / "weights.pth"), small_images=True).build(images())
    with pytest.raises(InvalidSetting, match=r"conv1.weight \[64, 3, 7, 7\] for \[64, 1, 7, 7\]"):
        ResNet50(path=str(tmp_path / "weights.pth")).build(images(channels=1))


@pytest.mark.parametrize("channels", [1, 3])
def test_small_images_keep_their_resolution_into_the_first_stage(images: Callable, channels: int):
    net = ResNet50(small_images=True).build(images(channels=channels)).eval()
    sizes = []
    net.layer1.register_forward_hook(lambda _module, inputs, _output: sizes.append(inputs[0].shape[-1]))
    with torch.no_grad():
        assert net(x=torch.randn(1, channels, 32, 32)).shape == (1, 10)
    assert sizes == [32]


def test_stem_follows_the_channels(images: Callable):
    net = ResNet50().build(images(channels=1)).eval()
    assert net.conv1.weight.shape == (64, 1, 7, 7)
    assert net.conv1.stride == (2, 2)


def test_bad_settings_are_rejected():
    with pytest.raises(InvalidSetting, match="small_images=True: weights DEFAULT belong to the 7x7 stem"):
        ResNet50(weights="DEFAULT", small_images=True)
    with pytest.raises(InvalidSetting, match="weights=V3: resnet50 has IMAGENET1K_V1, IMAGENET1K_V2, DEFAULT"):
        ResNet50(weights="V3").check()
