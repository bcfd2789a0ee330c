"""Any classifier of timm by its name."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

timm = pytest.importorskip("timm")

from sparsefront.errors import InvalidSetting
from sparsefront.models.timm_classifier import TimmClassifier


def test_a_checkpoint_gives_timms_outputs_and_another_head_is_new(images: Callable, tmp_path: Path):
    original = timm.create_model("resnet18", num_classes=10).eval()
    torch.save(original.state_dict(), tmp_path / "weights.pth")
    model = TimmClassifier("resnet18", path=str(tmp_path / "weights.pth"))
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(model.build(images()).eval()(x=x), original(x))
    assert model.build(images(classes=4)).fc.out_features == 4
    assert model.fingerprint() != TimmClassifier("resnet18").fingerprint()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "resnet_18"}, "name=resnet_18: is no model of timm; .* for example "),
        ({"name": "resnet18.none"}, "timm has no weights of this name; of resnet18 there are resnet18.a1_in1k"),
        ({"name": "resnet18", "pretrained": True, "path": "x.pth"}, "path=x.pth: pretrained=true excludes it"),
        ({"name": "resnet18", "path": "/nowhere/x.pth"}, "path=/nowhere/x.pth: does not exist"),
    ],
)
def test_settings_that_name_nothing(settings, message):
    with pytest.raises(InvalidSetting, match=message):
        TimmClassifier(**settings).check()
