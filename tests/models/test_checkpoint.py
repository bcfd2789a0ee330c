"""Checkpoints are read as plain tensors and fit exactly, apart from the head."""

import logging
import os
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from sparsefront.errors import InvalidSetting
from sparsefront.models.checkpoint import load_weights, read_weights, weights_fingerprint


class Body(nn.Module):
    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 5)
        self.norm = nn.BatchNorm1d(5)
        self.head = nn.Linear(5, classes)


def test_checkpoints_of_training_tools(tmp_path: Path):
    """Prefixes in any nesting, what AveragedModel adds, and each usual entry."""
    from torch.optim.swa_utils import AveragedModel

    net = Body()
    own = net.state_dict()
    written = {
        "ddp": {f"module.{key}": value for key, value in own.items()},
        "compiled": torch.compile(net).state_dict(),
        "ddp of compiled": {f"module._orig_mod.{key}": value for key, value in own.items()},
        "compiled of ddp": {f"_orig_mod.module.{key}": value for key, value in own.items()},
        "ema": AveragedModel(net).state_dict(),
        "tutorial": {"epoch": 3, "model_state_dict": own, "optimizer_state_dict": {}, "loss": 0.1},
        "lightning of compiled": {
            "state_dict": {f"net._orig_mod.{key}": value for key, value in own.items()},
            "epoch": 1,
        },
        "nested": {"model": {"state_dict": own}},
        "timm": {"state_dict": own, "state_dict_ema": own, "arch": "body"},
    }
    for name, content in written.items():
        torch.save(content, tmp_path / f"{name}.pt")
        found = read_weights(str(tmp_path / f"{name}.pt"))
        assert found.keys() == own.keys() and all(torch.equal(found[key], own[key]) for key in own), name


def test_an_entry_is_chosen_by_name(tmp_path: Path):
    plain, averaged = Body().state_dict(), Body().state_dict()
    file = tmp_path / "last.pth"
    torch.save(
        {"state_dict": plain, "state_dict_ema": {f"module.{key}": value for key, value in averaged.items()}}, file
    )
    found = read_weights(f"{file}::state_dict_ema")
    assert torch.equal(found["layer.weight"], averaged["layer.weight"])
    assert torch.equal(read_weights(str(file))["layer.weight"], plain["layer.weight"])
    assert weights_fingerprint(str(file)) != weights_fingerprint(f"{file}::state_dict_ema")
    with pytest.raises(InvalidSetting, match="has no state dict 'ema'; there are state_dict, state_dict_ema"):
        read_weights(f"{file}::ema")


class Payload:
    """Runs when unpickled."""

    def __init__(self, function, *given):
        self.reduced = (function, given)

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        (Payload(Path("/nonexistent").joinpath, "ran"), "run getattr"),
        (Payload(os.system, "true"), "run posix.system"),
        (Payload(eval, "1"), "run eval"),
    ],
    ids=["method", "module", "builtin"],
)
def test_pickle_that_runs_code(tmp_path: Path, payload: Payload, named: str):
    """Without torch's advice to read it nevertheless."""
    torch.save({"layer": payload}, tmp_path / "evil.pth")
    with pytest.raises(
        InvalidSetting, match=f"^path=.*cannot be read as plain tensors: it wants to {named}"
    ) as refused:
        read_weights(str(tmp_path / "evil.pth"))
    assert "weights_only" not in str(refused.value)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_checkpoint_that_was_cut_short(tmp_path: Path, suffix: str):
    file = tmp_path / f"whole{suffix}"
    save_file(Body().state_dict(), file) if suffix == ".safetensors" else torch.save(Body().state_dict(), file)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(InvalidSetting, match="cannot be read as plain tensors: .") as rejected:
        read_weights(str(file))
    assert "\n" not in str(rejected.value) and len(str(rejected.value)) < 250 + len(str(tmp_path))


def test_head_for_other_classes(caplog: pytest.LogCaptureFixture):
    source, net = Body(classes=9), Body(classes=3)
    head = net.head.weight.detach().clone()
    with caplog.at_level(logging.INFO):
        load_weights(net, source.state_dict(), head="head", path="p")
    assert torch.equal(net.layer.weight, source.layer.weight)
    assert torch.equal(net.head.weight, head)
    assert len(caplog.records) == 1 and "head" in caplog.text

    without_head = {key: tensor for key, tensor in source.state_dict().items() if not key.startswith("head")}
    load_weights(net, without_head, head="head", path="p")
    assert torch.equal(net.head.weight, head)


def test_misfits_are_named():
    weights = Body().state_dict()
    weights["layer.weight"] = torch.zeros(5, 6)
    weights["extra.weight"] = torch.zeros(1)
    del weights["norm.bias"]
    expected = (
        "path=p: does not fit the model; missing keys: norm.bias; unexpected keys: extra.weight; "
        "other shapes: layer.weight [5, 6] for [5, 4]"
    )
    with pytest.raises(InvalidSetting, match=f"^{re.escape(expected)}$"):
        load_weights(Body(), weights, head="head", path="p")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["model.safetensors", "weights.pt"])
def test_tensor_that_is_not_finite(tmp_path: Path, name: str, value: float):
    weights = Body().half().state_dict()
    weights["norm.running_var"] = weights["norm.running_var"].clone().index_fill(0, torch.tensor(2), value)
    (save_file if name.endswith("safetensors") else torch.save)(weights, tmp_path / name)
    counts = "1 NaN and 0" if value != value else "0 NaN and 1"
    expected = f"{name} cannot be used: norm.running_var holds {counts} infinite of 5 values"
    path = tmp_path if name == "model.safetensors" else tmp_path / name
    with pytest.raises(InvalidSetting, match=f"^{re.escape(f'path={path}: {expected}')}$"):
        read_weights(str(path))
