"""Any classifier of torchvision by its name.

torchvision's VGG-16: BatchNorm, sizes, checkpoints, errors.

torchvision's ResNet-50: stems, checkpoints, errors.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torchvision.models import WeightsEnum, get_model, resnet50

from sparsefront.errors import InvalidSetting
from sparsefront.models.resnet50 import ResNet50
from sparsefront.models.torchvision_classifier import TorchvisionClassifier
from sparsefront.models.vgg16 import Vgg16


def test_a_checkpoint_gives_torchvisions_outputs_and_another_head_is_new(images: Callable, tmp_path: Path):
    original = get_model("resnet18", num_classes=10).eval()
    torch.save(original.state_dict(), tmp_path / "weights.pth")
    model = TorchvisionClassifier("resnet18", path=str(tmp_path / "weights.pth"))
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(model.build(images()).eval()(x=x), original(x))
    assert model.build(images(classes=4)).fc.out_features == 4


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_torchvisions_weights_get_the_input_that_they_were_trained_on(
    images: Callable, monkeypatch: pytest.MonkeyPatch, name: str
):
    weights = get_model(name, aux_logits=True, init_weights=False).state_dict()
    monkeypatch.setattr(WeightsEnum, "get_state_dict", lambda self, *args, **kwargs: dict(weights))
    theirs = get_model(name, weights="DEFAULT").eval()
    ours = TorchvisionClassifier(name, weights="DEFAULT").build(images(size=96, classes=1000)).eval()
    x = torch.randn(2, 3, 96, 96)
    with torch.no_grad():
        assert torch.equal(ours(x=x), theirs(x))
    assert ours.transform_input and theirs.transform_input
    assert not TorchvisionClassifier(name).skeleton(images(size=96)).transform_input


def test_what_cannot_work_is_told_before_training(images: Callable):
    with pytest.raises(InvalidSetting, match="name=resnet19: is no classifier of torchvision; there are alexnet, "):
        TorchvisionClassifier("resnet19").check()
    with pytest.raises(InvalidSetting, match="name=alexnet: cannot take images of 8 pixels"):
        TorchvisionClassifier("alexnet").skeleton(images(size=8))
    with pytest.raises(InvalidSetting, match="weights=DEFAULT: are for 3 channels and the dataset has 1"):
        TorchvisionClassifier("googlenet", weights="DEFAULT").skeleton(images(channels=1))
    with pytest.raises(InvalidSetting, match="name=vit_b_32: cannot be built for this data"):
        TorchvisionClassifier("vit_b_32").skeleton(images(size=40))


def test_a_run(run):
    row = run("model=torchvision", "model.name=resnet18", "recipe=default", "trainer=cpu", "measure.device=cpu")
    assert row.choice.model_variant == "resnet18"
    assert row.sparsity.sparsity_achieved == pytest.approx(0.75, abs=1e-3)


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


def test_bad_settings_are_rejected():
    with pytest.raises(InvalidSetting, match="small_images=True: weights DEFAULT belong to the 7x7 stem"):
        ResNet50(weights="DEFAULT", small_images=True)
    with pytest.raises(InvalidSetting, match="weights=V3: resnet50 has IMAGENET1K_V1, IMAGENET1K_V2, DEFAULT"):
        ResNet50(weights="V3").check()
