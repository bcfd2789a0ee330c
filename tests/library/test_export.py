"""save and load: a pruned network in a folder, and back."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import sparsefront as sf

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
    with pytest.raises(sf.InvalidSetting, match="net=mlp: was swapped already: save the network before sf.swap"):
        sf.save(tmp_path, cnn, masks)
