"""An export takes no room for weights that are stored already, and needs nothing outside its folder."""

import json
import os

import pytest
import torch
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


def test_exports_of_the_first_version(tmp_path):
    net, masks = write(tmp_path / "export")
    directory = tmp_path / "export"
    save_file({"0": masks["0"], "1": masks["1"].reshape(16, 8, 2, 2)}, directory / "masks.safetensors")
    dense = {"1.values": net[1].weight.detach().flatten(1)}  # the order of that version; the layer's own weight is read
    save_file(load_file(directory / "compressed.safetensors") | dense, directory / "compressed.safetensors")
    manifest = json.loads((directory / "manifest.json").read_text()) | {"format_version": 1}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    check(directory, net, masks)
