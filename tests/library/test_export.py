"""save and load: a pruned network in a folder, and back."""

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import sparsefront as sf
from sparsefront.library.masks import Masks
from sparsefront.patterns.mixed import Mixed
from sparsefront.pruning.mask_layout import MaskLayout
from sparsefront.pruning.settings import PruningSettings
from sparsefront.training.epoch_weights import save_weights

IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "pattern",
    [sf.patterns.TileWise(4), sf.patterns.NM(2, 4, permutation="search"), sf.patterns.ShuffledBlock(4)],
    ids=lambda pattern: pattern.name,
)
def test_a_network_comes_back_with_its_masks_and_pattern(cnn, tmp_path, pattern):
    masks = sf.prune(cnn, pattern, 0.5, example_inputs=(IMAGES,), tell=len)
    sf.save(tmp_path / "pruned", cnn, masks)
    other = copy.deepcopy(cnn)
    for parameter in other.parameters():
        nn.init.ones_(parameter)
    loaded = sf.load(tmp_path / "pruned", other)
    assert all(torch.equal(value, cnn.state_dict()[name]) for name, value in other.state_dict().items())
    assert loaded.keys() == masks.keys() and all(torch.equal(loaded[name], masks[name]) for name in masks)
    assert loaded.pruning.pattern == pattern and loaded.pruning.sparsity == 0.5 and loaded.ignored == masks.ignored
    report, again = sf.swap(cnn, masks, (IMAGES,)), sf.swap(other, loaded, (IMAGES,))
    assert report.to_json() == again.to_json()
    assert torch.equal(cnn(IMAGES), other(IMAGES))


def test_another_network_takes_the_place_of_a_saved_one(cnn, tmp_path):
    """Nothing of the first is left, and the file that it shared its weights with stays as it is."""
    first, second = copy.deepcopy(cnn), cnn
    mixed = Mixed(candidates=["n_m", "element_wise"])
    masks = sf.prune(first, "n_m", 0.5, layers="mlp", tell=len)
    layout = MaskLayout(patterns={"mlp": sf.patterns.ElementWise()}, sparsities={"mlp": 0.5})
    masks = Masks(dict(masks), pruning=PruningSettings(mixed, 0.5), layout=layout)
    shared = [tmp_path / "first.safetensors", tmp_path / "second.safetensors"]
    sf.save(tmp_path / "pruned", first, masks, weights=weights_file(first, shared[0]))
    assert sf.load(tmp_path / "pruned", first).layout.patterns is not None
    before = shared[0].read_bytes()

    others = sf.prune(second, sf.patterns.NM(2, 4), 0.5, tell=len, layers="mlp")
    with torch.no_grad():
        second.mlp.weight.mul_(2.0)
    for weights in (weights_file(second, shared[1]), shared[1], tmp_path / "pruned" / "model.safetensors", None):
        sf.save(tmp_path / "pruned", second, others, **({} if weights is None else {"weights": weights}))
        loaded = sf.load(tmp_path / "pruned", copy.deepcopy(first))
        assert loaded.layout.patterns is None and loaded.pruning.pattern == sf.patterns.NM(2, 4)
        assert torch.equal(load_file(tmp_path / "pruned" / "model.safetensors")["mlp.weight"], second.mlp.weight)
        assert shared[0].read_bytes() == before
    with torch.no_grad():
        second.mlp.weight.mul_(2.0)
    sf.save(tmp_path / "pruned", second, others)
    assert torch.equal(2 * load_file(shared[1])["mlp.weight"], second.mlp.weight), "the shared file is not written into"


def weights_file(net: nn.Module, file: Path) -> Path:
    save_weights(net, file)
    return file


def test_plain_masks_are_saved_too(cnn, tmp_path):
    mask = torch.rand(16, 16) < 0.5
    with torch.no_grad():
        cnn.mlp.weight.masked_fill_(~mask, 0.0)
    sf.save(tmp_path, cnn, {"mlp": mask})
    loaded = sf.load(tmp_path, cnn)
    assert loaded.pruning is None and torch.equal(loaded["mlp"], mask)
    assert load_file(tmp_path / "model.safetensors").keys() == cnn.state_dict().keys()
    assert json.loads((tmp_path / "manifest.json").read_text())["pattern"] is None


def test_a_pattern_of_ones_own_is_found_again(own_modules, cnn, tmp_path):
    own_modules(
        {
            "own_pattern.py": "from dataclasses import dataclass\n"
            "from sparsefront.patterns.element_wise import ElementWise\n\n"
            "@dataclass(frozen=True)\nclass Own(ElementWise):\n    name = 'own'\n"
        }
    )
    from own_pattern import Own

    sf.save(tmp_path, cnn, sf.prune(cnn, Own(), 0.5, layers="mlp", tell=len))
    assert sf.load(tmp_path, cnn).pruning.pattern == Own()


def test_what_cannot_work_is_one_line(cnn, tmp_path):
    masks = sf.prune(cnn, "n_m", 0.5, layers="mlp", tell=len)
    with pytest.raises(sf.InvalidSetting, match=f"folder={tmp_path}: is not an export: model.safetensors is missing"):
        sf.load(tmp_path, cnn)
    sf.save(tmp_path, cnn, masks)
    with pytest.raises(
        sf.InvalidSetting, match="folder=.*: does not fit the model; missing keys: 0.bias, 0.weight; unexp"
    ):
        sf.load(tmp_path, nn.Sequential(nn.Linear(4, 4)))
    sf.swap(cnn, masks, (IMAGES,))
    with pytest.raises(sf.InvalidSetting, match=r"masks\['mlp'\]=given: .*after sf.swap, give a copy from before"):
        sf.save(tmp_path, cnn, masks)


def test_a_file_in_place_of_the_folder_is_told(cnn, tmp_path):
    masks = sf.prune(cnn, "n_m", 0.5, layers=["body"], tell=len)
    (tmp_path / "taken").touch()
    with pytest.raises(sf.InvalidSetting, match=r"^folder=\S+taken: cannot be written \(File exists\); name another"):
        sf.save(tmp_path / "taken", cnn, masks)
