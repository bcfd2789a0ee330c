"""The default model."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from sparsefront.errors import InvalidSetting
from sparsefront.models.vit_small import VitSmall


@pytest.mark.parametrize(("size", "channels", "patch"), [(8, 1, 4), (8, 1, 2), (32, 3, 4)])
def test_images_become_classes(images: Callable, size: int, channels: int, patch: int):
    net = VitSmall(patch_size=patch, depth=2).build(images(size=size, channels=channels, classes=6))
    assert net(x=torch.randn(3, channels, size, size)).shape == (3, 6)


def test_prunable_layers_are_wide_enough_for_granularity_128(images: Callable):
    model = VitSmall()
    net = model.skeleton(images(size=8, channels=1))
    names = model.prunable(net)
    in_block = ("attn.q", "attn.k", "attn.v", "attn.out", "mlp.fc1", "mlp.fc2")
    assert names[:6] == [f"blocks.0.{name}" for name in in_block]
    widths = {width for name in names for width in net.get_submodule(name).weight.shape}
    assert widths == {256, 1024}
    assert VitSmall(prune_head=True).prunable(net) == [*names, "head"]


def test_it_learns(images: Callable):
    torch.manual_seed(0)
    net = VitSmall(dim=32, depth=2).build(images(size=8, channels=1, classes=2))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    x = torch.randn(64, 1, 8, 8)
    labels = (x[:, 0, :4].mean((1, 2)) > x[:, 0, 4:].mean((1, 2))).long()  # brighter above than below: positions matter
    for _ in range(100):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x=x), labels)
        loss.backward()
        optimizer.step()
    assert loss < 0.1


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


def test_fingerprint_follows_content_not_place(images: Callable, tmp_path: Path):
    net = VitSmall(depth=1).build(images(size=8, channels=1))
    for name in ("a.safetensors", "b.safetensors"):
        save_file(net.state_dict(), tmp_path / name)
    a, b = (VitSmall(depth=1, path=str(tmp_path / name)).fingerprint() for name in ("a.safetensors", "b.safetensors"))
    assert a == b != VitSmall(depth=1).fingerprint()
    save_file({key: tensor + 1 for key, tensor in net.state_dict().items()}, tmp_path / "b.safetensors")
    assert VitSmall(depth=1, path=str(tmp_path / "b.safetensors")).fingerprint() != a


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": 0}, "depth=0: must be a whole number of at least 1"),
        ({"patch_size": -1}, "patch_size=-1"),
        ({"heads": 3}, "heads=3: must divide dim=256"),
    ],
)
def test_bad_settings_are_rejected_at_once(changes: dict, message: str):
    with pytest.raises(InvalidSetting, match=message):
        VitSmall(**changes)


def test_patches_must_tile_the_image(images: Callable):
    with pytest.raises(InvalidSetting, match="patch_size=3: must divide the dataset's image size 8"):
        VitSmall(patch_size=3).skeleton(images(size=8, channels=1))


def test_missing_checkpoint_is_found_by_check():
    with pytest.raises(InvalidSetting, match="path=/no/such.pth: does not exist"):
        VitSmall(path="/no/such.pth").check()
