"""Classifiers of images: torchvision's and timm's by name, ResNet-50, VGG-16, ViT, and the small ViT of the default run."""

from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn
from torchvision.models import get_model, resnet50
from torchvision.models.vision_transformer import VisionTransformer, interpolate_embeddings

timm = pytest.importorskip("timm")

from sparsefront.errors import InvalidSetting
from sparsefront.models.resnet50 import ResNet50
from sparsefront.models.timm_classifier import TimmClassifier
from sparsefront.models.torchvision_classifier import TorchvisionClassifier
from sparsefront.models.vgg16 import Vgg16
from sparsefront.models.vit import Vit
from sparsefront.models.vit_small import VitSmall

ORIGINALS = {  # a network of ten classes, and the model that is given its weights
    "torchvision": (
        lambda: get_model("resnet18", num_classes=10),
        lambda path: TorchvisionClassifier("resnet18", path=path),
    ),
    "timm": (lambda: timm.create_model("resnet18", num_classes=10), lambda path: TimmClassifier("resnet18", path=path)),
    "resnet50": (lambda: resnet50(num_classes=10), lambda path: ResNet50(path=path)),
}


@pytest.mark.parametrize("name", ORIGINALS)
def test_checkpoint_and_new_head(images: Callable, tmp_path: Path, name: str):
    make, model_of = ORIGINALS[name]
    original, x = make().eval(), torch.randn(2, 3, 32, 32)
    torch.save(original.state_dict(), tmp_path / "weights.pth")
    model = model_of(str(tmp_path / "weights.pth"))
    with torch.no_grad():
        assert torch.equal(model.build(images()).eval()(x=x), original(x))
    assert model.build(images(classes=4)).fc.out_features == 4
    assert model.fingerprint() != model_of(None).fingerprint()
    for other, misfit in (
        (ResNet50(path=model.path, small_images=True), "3, 3, 3"),
        (ResNet50(path=model.path), "1, 7, 7"),
    ):
        if name == "resnet50":
            with pytest.raises(InvalidSetting, match=rf"conv1.weight \[64, 3, 7, 7\] for \[64, {misfit}\]"):
                other.build(images(channels=3 if other.small_images else 1))


@pytest.mark.parametrize("batch_norm", [True, False])
def test_vgg_of_small_images(images: Callable, tmp_path: Path, batch_norm: bool):
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


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[..., VisionTransformer]:
    """torchvision's class with two narrow layers, also where the builder asks for vit_b_16."""

    def make(variant: str = "", *, weights: None = None, image_size: int, num_classes: int) -> VisionTransformer:
        net = VisionTransformer(
            image_size=image_size,
            patch_size=16,
            num_layers=2,
            num_heads=4,
            hidden_dim=64,
            mlp_dim=128,
            num_classes=num_classes,
        )
        nn.init.normal_(net.heads.head.weight)  # zero in torchvision; zeros agree with everything
        return net

    monkeypatch.setattr(torchvision.models, "get_model", make)
    return make


def test_checkpoint_gives_torchvisions_outputs(images: Callable, small: Callable, tmp_path: Path):
    torch.manual_seed(0)
    original = small(image_size=32, num_classes=10).eval()
    torch.save(original.state_dict(), tmp_path / "packed.pth")
    net = Vit(path=str(tmp_path / "packed.pth")).build(images()).eval()
    x = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        expected = original(x)
        assert (net(x=x) - expected).norm() < 1e-6 * expected.norm()

    torch.save(net.state_dict(), tmp_path / "split.pth")
    again = Vit(path=str(tmp_path / "split.pth")).build(images())
    assert all(torch.equal(again.state_dict()[key], tensor) for key, tensor in net.state_dict().items())


def test_position_embeddings_follow_image_size(images: Callable, small: Callable, tmp_path: Path):
    weights = small(image_size=64, num_classes=10).state_dict()
    torch.save(weights, tmp_path / "64.pth")
    net = Vit(path=str(tmp_path / "64.pth")).build(images(size=32))
    expected = interpolate_embeddings(32, 16, dict(weights))["encoder.pos_embedding"]
    assert torch.equal(net.encoder.pos_embedding, expected)
    assert net(x=torch.randn(2, 3, 32, 32)).shape == (2, 10)

    weights["encoder.pos_embedding"] = torch.zeros(1, 7, 64)
    torch.save(weights, tmp_path / "odd.pth")
    with pytest.raises(InvalidSetting, match=r"path=.*\[1, 7, 64\] are no square grid"):
        Vit(path=str(tmp_path / "odd.pth")).build(images(size=32))


def test_missing_network_names_its_key(images: Callable, small: Callable, monkeypatch: pytest.MonkeyPatch):
    def unreachable(*_: object, weights_only: bool, **__: object) -> None:
        assert weights_only
        raise URLError("no route to host")

    monkeypatch.setattr(torchvision.models._api, "load_state_dict_from_url", unreachable)
    with pytest.raises(InvalidSetting, match="weights=DEFAULT: could not be downloaded .*no route.*set model.path"):
        Vit(weights="DEFAULT").build(images())


def test_checkpoint_round_trip(images: Callable, tmp_path: Path):
    info = images(size=8, channels=1)
    net = VitSmall(depth=1).build(info)
    path = str(tmp_path / "weights.safetensors")
    save_file(net.state_dict(), path)
    loaded = VitSmall(depth=1, path=path)
    loaded.check()
    assert torch.equal(loaded.build(info).blocks[0].attn.q.weight, net.blocks[0].attn.q.weight)
    with pytest.raises(InvalidSetting, match="missing keys: blocks.1.attn.k.bias"):
        VitSmall(depth=2, path=path).build(info)
    with pytest.raises(InvalidSetting, match=r"patch_embed.proj.weight \[256, 1, 4, 4\] for \[256, 3, 4, 4\]"):
        VitSmall(depth=1, path=path).build(images(size=8, channels=3))


SETTINGS: dict[str, Callable] = {
    "variant=vit_h_14: must be 'vit_b_16' or 'vit_l_16'": lambda images: Vit(variant="vit_h_14"),
    "weights=IMAGENET22K: vit_b_16 has IMAGENET1K_V1": lambda images: Vit(weights="IMAGENET22K").check(),
    "exclude each other": lambda images: Vit(weights="DEFAULT", path="weights.pth").check(),
    "path=/no/such.pth: does not exist": lambda images: Vit(path="/no/such.pth").check(),
    "variant=vit_b_16: cuts images into patches of 16 pixels.*image size 8": lambda images: Vit().skeleton(
        images(size=8)
    ),
    "depth=0: must be greater than 0": lambda images: VitSmall(depth=0),
    "patch_size=-1": lambda images: VitSmall(patch_size=-1),
    "heads=3: must divide dim=256": lambda images: VitSmall(heads=3),
    "small_images=True: weights DEFAULT belong to the 7x7": lambda images: ResNet50(
        weights="DEFAULT", small_images=True
    ),
    "weights=V3: resnet50 has IMAGENET1K_V1, IMAGENET1K_V2, DEFAULT": lambda images: ResNet50(weights="V3").check(),
    "name=resnet19: is no classifier of torchvision; there are alexnet, ": lambda images: TorchvisionClassifier(
        "resnet19"
    ).check(),
    "name=alexnet: cannot take images of 8 pixels": lambda images: TorchvisionClassifier("alexnet").skeleton(
        images(size=8)
    ),
    "weights=DEFAULT: are for 3 channels and the dataset has 1": lambda images: TorchvisionClassifier(
        "googlenet", weights="DEFAULT"
    ).skeleton(images(channels=1)),
    "name=vit_b_32: cannot be built for this data": lambda images: TorchvisionClassifier("vit_b_32").skeleton(
        images(size=40)
    ),
    "name=resnet_18: is no model of timm; .* for example ": lambda images: TimmClassifier("resnet_18").check(),
    "timm has no weights of this name; of resnet18 there are resnet18.a1": lambda images: TimmClassifier(
        "resnet18.none"
    ).check(),
    "path=x.pth: pretrained=true excludes it": lambda images: TimmClassifier(
        "resnet18", pretrained=True, path="x.pth"
    ).check(),
    "path=/nowhere/x.pth: does not exist": lambda images: TimmClassifier("resnet18", path="/nowhere/x.pth").check(),
}


@pytest.mark.parametrize("message", SETTINGS)
def test_bad_settings_are_rejected(images: Callable, message: str):
    with pytest.raises(InvalidSetting, match=message):
        SETTINGS[message](images)
