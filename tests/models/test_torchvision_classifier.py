"""Any classifier of torchvision by its name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torchvision.models import WeightsEnum, get_model

from sparsefront.errors import InvalidSetting
from sparsefront.models.torchvision_classifier import TorchvisionClassifier
from sparsefront.pruning.layers import called_layers

LEFT_OUT = {
    "resnet18": ["conv1", "fc"],
    "mobilenet_v3_small": ["features.0.0", "classifier.3"],
    "squeezenet1_1": ["features.0", "classifier.1"],  # its head is a convolution
    "vit_b_32": ["conv_proj", "heads.head"],
    "regnet_x_400mf": ["stem.0", "fc"],  # cannot be built on the meta device
    "googlenet": ["conv1.conv", "fc"],  # whose auxiliary heads are left out
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_all_but_the_first_convolution_and_the_head_are_prunable(images: Callable, name: str):
    model = TorchvisionClassifier(name)
    model.check()
    net = model.skeleton(images(size=64))
    weighted = [layer for layer, module in net.named_modules() if isinstance(module, torch.nn.Linear | torch.nn.Conv2d)]
    assert [layer for layer in weighted if layer not in model.prunable(net)] == LEFT_OUT[name]
    with_head = TorchvisionClassifier(name, prune_head=True).prunable(net)
    assert [layer for layer in weighted if layer not in with_head] == LEFT_OUT[name][:1]
    assert all(parameter.device.type == "meta" for parameter in net.parameters())


@pytest.mark.parametrize("name", ["swin_t", "swin_v2_t"])
def test_layers_whose_weight_is_read_without_a_call_stay_dense(images: Callable, name: str):
    model = TorchvisionClassifier(name)
    net = model.skeleton(images(size=32))
    called = called_layers(net, {"x": torch.empty(1, 3, 32, 32, device="meta")})
    prunable = model.prunable(net)
    assert set(prunable) == set(called) - {"features.0.0", "head"}
    assert "features.1.0.mlp.0" in prunable and ("features.1.0.attn.qkv" in prunable) == (name == "swin_t")


def test_a_checkpoint_gives_torchvisions_outputs_and_another_head_is_new(images: Callable, tmp_path: Path):
    original = get_model("resnet18", num_classes=10).eval()
    torch.save(original.state_dict(), tmp_path / "weights.pth")
    model = TorchvisionClassifier("resnet18", path=str(tmp_path / "weights.pth"))
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(model.build(images()).eval()(x=x), original(x))
    assert model.build(images(classes=4)).fc.out_features == 4


def test_as_many_classes_under_other_names_are_told(images: Callable, monkeypatch: pytest.MonkeyPatch, caplog):
    weights = get_model("squeezenet1_1").state_dict()
    monkeypatch.setattr(WeightsEnum, "get_state_dict", lambda self, *args, **kwargs: dict(weights))
    model, info = TorchvisionClassifier("squeezenet1_1", weights="DEFAULT"), images(size=96, classes=1000)
    for names in ((), tuple(f"n{number:08}" for number in range(1000))):
        model.build(replace(info, class_names=names))
    assert not caplog.records
    model.build(replace(info, class_names=tuple(f"bird {number:04}" for number in range(1000))))
    (told,) = (record.getMessage() for record in caplog.records)
    assert told.startswith("torchvision's DEFAULT: its classes are ImageNet's, numbered in the order of n01440764 ...")
    assert told.endswith("not named so (bird 0000, bird 0001, bird 0002 ...): joined by number")


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


def test_the_first_convolution_follows_the_channels(images: Callable):
    first = TorchvisionClassifier("resnet18").build(images(channels=1)).conv1
    assert first.weight.shape == (64, 1, 7, 7) and first.stride == (2, 2) and first.bias is None


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
