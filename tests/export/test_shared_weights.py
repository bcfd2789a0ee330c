"""An export takes no room for weights that are stored already, and needs nothing outside its folder."""

import json
import os
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from sparsefront.export.checkpoint import read_export, write_export
from sparsefront.masks.weight_view import as_matrix
from sparsefront.patterns.n_m import NM

PATTERN = NM()


def pruned():
    """Two layers, the second left at sparsity 0."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 96), nn.Conv2d(8, 16, 2))
    masks = {"0": PATTERN.mask(net[0].weight.abs(), 0.75), "1": torch.ones(16, 32, dtype=torch.bool)}
    net[0].weight.data.mul_(masks["0"])
    return net, masks


def write(directory, weights=None):
    net, masks = pruned()
    directory.mkdir()
    sparsities = {"0": 0.75, "1": 0.0}
    write_export(directory, net, masks, pattern=PATTERN, sparsity=0.5, sparsities=sparsities, weights=weights)
    return net, masks


@pytest.fixture
def recovered(tmp_path):
    file = tmp_path / "recovered" / "weights.safetensors"
    file.parent.mkdir()
    save_file(pruned()[0].state_dict(), file, metadata={"format": "pt"})
    return file


def check(directory, net, masks):
    export = read_export(directory)
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in export.state_dict().items())
    assert all(torch.equal(export.masks[name], mask) for name, mask in masks.items())
    for name in masks:
        assert torch.equal(export.format(name).to_dense(), as_matrix(net.get_submodule(name).weight))


def test_the_weights_are_stored_once(tmp_path, recovered):
    net, masks = write(tmp_path / "export", recovered)
    assert os.path.samefile(tmp_path / "export" / "model.safetensors", recovered)
    check(tmp_path / "export", net, masks)


def test_a_copy_of_the_export_stands_alone(tmp_path, recovered):
    net, masks = write(tmp_path / "export", recovered)
    shutil.copytree(tmp_path / "export", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "export")
    shutil.rmtree(recovered.parent)
    check(tmp_path / "elsewhere", net, masks)


def test_where_there_are_no_hard_links_the_weights_are_copied(tmp_path, recovered, monkeypatch):
    def reject(*_):
        raise OSError("Operation not supported")

    monkeypatch.setattr(os, "link", reject)
    net, masks = write(tmp_path / "export", recovered)
    assert (tmp_path / "export" / "model.safetensors").read_bytes() == recovered.read_bytes()
    assert not os.path.samefile(tmp_path / "export" / "model.safetensors", recovered)
    check(tmp_path / "export", net, masks)


def test_shared_weights_are_what_would_be_written(tmp_path, recovered):
    write(tmp_path / "shared", recovered)
    write(tmp_path / "own")
    files = [tmp_path / name / "model.safetensors" for name in ("shared", "own")]
    first, second = map(load_file, files)
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    for file in files:
        with safe_open(file, framework="pt") as stored:
            assert stored.metadata() == {"format": "pt"}, "from_pretrained asks for it"


def test_beside_the_weights_little_is_stored(tmp_path):
    write(tmp_path / "export")
    assert {name.split(".")[0] for name in load_file(tmp_path / "export" / "compressed.safetensors")} == {"0"}
    assert (tmp_path / "export" / "masks.safetensors").stat().st_size < (64 * 96 + 16 * 32) / 8 + 300


def test_exports_of_the_first_version_are_read(tmp_path):
    net, masks = write(tmp_path / "export")
    directory = tmp_path / "export"
    save_file({"0": masks["0"], "1": masks["1"].reshape(16, 8, 2, 2)}, directory / "masks.safetensors")
    dense = {"1.values": net[1].weight.detach().flatten(1)}  # the order of that version; the layer's own weight is read
    save_file(load_file(directory / "compressed.safetensors") | dense, directory / "compressed.safetensors")
    manifest = json.loads((directory / "manifest.json").read_text()) | {"format_version": 1}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    check(directory, net, masks)
