"""An export is plain safetensors and JSON, reads back as it was, and rejects what is not pruned."""

import json
from dataclasses import asdict

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from sparsefront.errors import InvalidSetting
from sparsefront.export.checkpoint import plain_state_dict, read_export, write_export
from sparsefront.export.packed_layers import Manifest
from sparsefront.masks.weight_view import as_matrix, like_weight
from sparsefront.patterns.block_wise import BlockWise
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.shuffled_block import ShuffledBlock
from sparsefront.patterns.tile_wise import SOURCES, TileWise
from sparsefront.patterns.uniform import Uniform
from sparsefront.patterns.vector_wise import VectorWise

TILE_WISE = TileWise(16, **SOURCES)
PATTERNS = [ElementWise(), NM(2, 4), VectorWise(8), BlockWise(8), TILE_WISE]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(4, 16, 2), nn.BatchNorm2d(16), nn.Flatten(), nn.Linear(16, 32), nn.Linear(32, 3))


def pruned(pattern, layers=("0", "3")):
    net, masks = network(), {}
    for name in layers:
        weight = net.get_submodule(name).weight.data
        masks[name] = pattern.mask(as_matrix(weight).abs(), 0.5)
        weight.mul_(like_weight(masks[name], weight))
    return net, masks


def write(directory, pattern=TILE_WISE, **extra):
    net, masks = pruned(pattern)
    write_export(directory, net, masks, pattern=pattern, sparsity=0.5, dense_reasons={"4": "head"}, **extra)
    return net, masks


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_everything_reads_back(pattern, tmp_path):
    net, masks = write(tmp_path, pattern)
    export = read_export(tmp_path)
    assert all(torch.equal(export.masks[name], mask) for name, mask in masks.items())
    for name in masks:
        assert torch.equal(export.format(name).to_dense(), as_matrix(net.get_submodule(name).weight))
    copied = network()
    copied.load_state_dict(export.state_dict())
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in copied.state_dict().items())


PERMUTED = [(ShuffledBlock(8), "0.output_index"), (NM(2, 4, permutation="search"), "0.input_order")]


@pytest.mark.parametrize(("pattern", "order"), PERMUTED, ids=lambda part: getattr(part, "name", part))
def test_order_is_stored_with_its_layer(pattern, order, tmp_path):
    net, masks = pruned(pattern)
    weights = {name: as_matrix(network().get_submodule(name).weight).abs().detach() for name in masks}
    permutations = {name: pattern.find_permutation(weight, 0.5) for name, weight in weights.items()}
    manifest = write_export(tmp_path, net, masks, pattern=pattern, sparsity=0.5, permutations=permutations)
    export = read_export(tmp_path)
    for name, mask in masks.items():
        assert torch.equal(export.masks[name], mask)
        assert torch.equal(export.format(name).to_dense(), as_matrix(net.get_submodule(name).weight))
    chosen = permutations["0"].outputs if pattern.name == "shuffled_block" else permutations["0"].inputs
    assert torch.equal(load_file(tmp_path / "compressed.safetensors")[order].long(), chosen)
    assert json.loads((tmp_path / "manifest.json").read_text())["layers"] == json.loads(
        json.dumps(manifest.to_json()["layers"])
    )
    with pytest.raises(ValueError, match="0: "):
        write_export(tmp_path, net, masks, pattern=pattern, sparsity=0.5)


def test_each_layers_own_sparsity(tmp_path):
    net, masks, pattern = network(), {}, NM()
    sparsities = {"0": 0.75, "3": 0.0}
    for name, sparsity in sparsities.items():
        weight = net.get_submodule(name).weight.data
        masks[name] = pattern.mask(as_matrix(weight).abs(), sparsity)
        weight.mul_(like_weight(masks[name], weight))
    write_export(tmp_path, net, masks, pattern=pattern, sparsity=0.5, sparsities=sparsities)
    export = read_export(tmp_path)
    layers = export.manifest.layers
    assert (layers["0"].family, layers["0"].parameters) == ("n_m", {"n": 1, "m": 4})
    assert (layers["3"].family, layers["3"].density) == ("dense", 1.0)
    assert export.manifest.sparsity == 0.5
    for name in masks:
        assert torch.equal(export.format(name).to_dense(), as_matrix(net.get_submodule(name).weight))


def test_manifest_tells_pattern_and_storage(tmp_path):
    write(tmp_path)
    content = json.loads((tmp_path / "manifest.json").read_text())
    assert (content["format_version"], content["pattern"], content["sparsity"]) == (3, "tile_wise", 0.5)
    assert content["pattern_parameters"] == asdict(TILE_WISE) and content["pattern_parameters"]["granularity"] == 16
    assert content["dense_layers"] == {"4": "head"}
    layer = content["layers"]["0"]
    assert (layer["family"], layer["shape"]) == ("gathered", [16, 16])
    assert layer["parameters"] == {"tile": 16, "drop_empty_outputs": True}
    assert layer["density"] == layer["nnz"] / 256 and abs(layer["density"] - 0.5) < 0.07
    assert read_export(tmp_path).manifest == Manifest.from_json(content)


def test_pruned_weight_that_is_not_zero(tmp_path):
    net, masks = pruned(TILE_WISE)
    dropped = (~masks["3"]).nonzero()[0]
    net[3].weight.data[tuple(dropped)] = 1e-30
    with pytest.raises(ValueError, match="3: 1 pruned weights are not zero"):
        write_export(tmp_path, net, masks, pattern=TILE_WISE, sparsity=0.5)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("pattern", [TILE_WISE, Uniform(1)], ids=lambda pattern: pattern.name)
def test_mask_of_another_structure(pattern, tmp_path):
    net, masks = pruned(ElementWise())
    with pytest.raises(ValueError, match=f"0: {pattern.name}: "):  # the format of uniform would take any mask
        write_export(tmp_path, net, masks, pattern=pattern, sparsity=0.5)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)
        self.outer.weight = self.inner.weight
        self.alias = self.inner


def test_tied_weights_under_every_name(tmp_path):
    net = Tied()
    write_export(tmp_path, net, {}, pattern=TileWise(4), sparsity=0.5)
    state = read_export(tmp_path).state_dict()
    assert state.keys() == net.state_dict().keys()
    assert torch.equal(state["outer.weight"], net.inner.weight) and torch.equal(state["alias.weight"], net.inner.weight)
    Tied().load_state_dict(state)


def test_state_that_is_no_tensor():
    class WithState(nn.Linear):
        def get_extra_state(self):
            return {"steps": 3}

    with pytest.raises(InvalidSetting, match="net=WithState: has '_extra_state' in its state dict, a dict"):
        plain_state_dict(WithState(4, 4))


def test_another_version_is_rejected(tmp_path):
    write(tmp_path)
    set_version(tmp_path, 4)
    with pytest.raises(ValueError, match="format version 4, while this program reads up to 3"):
        read_export(tmp_path)


@pytest.mark.parametrize("version", [1, 2])
def test_convolutions_of_earlier_versions(version, tmp_path):
    """Their columns lay channel by channel, so that blocks and windows spanned the taps of one channel."""
    write(tmp_path)
    set_version(tmp_path, version)
    with pytest.raises(InvalidSetting, match=rf"path=.*format version {version}, which orders .* \(0\): export"):
        read_export(tmp_path)


def set_version(directory, version):
    manifest = directory / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format_version": version}))
