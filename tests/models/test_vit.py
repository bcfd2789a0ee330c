"""torchvision's ViT: sizes, checkpoints, errors.

The default model.
"""

from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn
from torchvision.models.vision_transformer import VisionTransformer, interpolate_embeddings

from sparsefront.errors import InvalidSetting
from sparsefront.models.vit import Vit
from sparsefront.models.vit_small import VitSmall


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


def test_torchvision_checkpoint_gives_torchvisions_outputs(images: Callable, small: Callable, tmp_path: Path):
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


def test_position_embeddings_follow_the_image_size(images: Callable, small: Callable, tmp_path: Path):
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


def test_other_checkpoints_are_rejected_with_their_keys(images: Callable, small: Callable, tmp_path: Path):
    torch.save({"conv1.weight": torch.zeros(2)}, tmp_path / "other.pth")
    with pytest.raises(InvalidSetting, match="missing keys: class_token, conv_proj.*; unexpected keys: conv1.weight"):
        Vit(path=str(tmp_path / "other.pth")).build(images())


def test_names_are_checked_and_listed():
    with pytest.raises(InvalidSetting, match="variant=vit_h_14: must be 'vit_b_16' or 'vit_l_16'"):
        Vit(variant="vit_h_14")
    with pytest.raises(InvalidSetting, match="weights=IMAGENET22K: vit_b_16 has IMAGENET1K_V1"):
        Vit(weights="IMAGENET22K").check()
    with pytest.raises(InvalidSetting, match="exclude each other"):
        Vit(weights="DEFAULT", path="weights.pth").check()
    with pytest.raises(InvalidSetting, match="path=/no/such.pth: does not exist"):
        Vit(path="/no/such.pth").check()
    Vit(weights="DEFAULT").check()


def test_no_network_is_one_message_that_names_the_key(
    images: Callable, small: Callable, monkeypatch: pytest.MonkeyPatch
):
    def unreachable(*_: object, weights_only: bool, **__: object) -> None:
        assert weights_only
        raise URLError("no route to host")

    monkeypatch.setattr(torchvision.models._api, "load_state_dict_from_url", unreachable)
    with pytest.raises(InvalidSetting, match="weights=DEFAULT: could not be downloaded .*no route.*set model.path"):
        Vit(weights="DEFAULT").build(images())


def test_checkpoint_round_trip_and_misfits(images: Callable, tmp_path: Path):
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": 0}, "depth=0: must be greater than"),
        ({"patch_size": -1}, "patch_size=-1"),
        ({"heads": 3}, "heads=3: must divide dim=256"),
    ],
)
def test_bad_settings_are_rejected_at_once(changes: dict, message: str):
    with pytest.raises(InvalidSetting, match=message):
        VitSmall(**changes)


def test_grey_images_with_random_weights_only(images: Callable, small: Callable):
    net = Vit().build(images(channels=1))
    assert net(x=torch.randn(2, 1, 32, 32)).shape == (2, 10)
    with pytest.raises(InvalidSetting, match="weights=DEFAULT: are for 3 channels and the dataset has 1"):
        Vit(weights="DEFAULT").build(images(channels=1))


def test_image_size_must_be_a_multiple_of_the_patch(images: Callable):
    with pytest.raises(InvalidSetting, match="variant=vit_b_16: cuts images into patches of 16 pixels.*image size 8"):
        Vit().skeleton(images(size=8))
