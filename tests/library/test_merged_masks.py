"""Masks of two prunings of one network, put together: each layer keeps what its own pruning knows of it."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sparsefront as sf

TRAINER = sf.TrainerSettings(accelerator="cpu", checkpoint=False)
X = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


def pruned(net: nn.Module, pattern: object, sparsity: float, layer: str, **settings) -> sf.Masks:
    return sf.prune(net, pattern, sparsity, layers=[layer], tell=len, **settings)


def families(net: nn.Module, masks: sf.Masks) -> dict[str, str]:
    return {name: layer.family for name, layer in sf.swap(net, masks, (X,)).layers.items()}


@pytest.mark.parametrize("how", ["|", "|=", "update"])
def test_each_layer_keeps_its_pattern(net, how, tmp_path):
    first = pruned(net, sf.patterns.NM(m=4, permutation="search"), 0.5, "0")
    second = pruned(net, "block_wise", 0.75, "2", granularity=16)
    merged = first
    if how == "|":
        merged = first | second
    elif how == "|=":
        merged |= second
    else:
        merged.update(second)
    assert isinstance(merged, sf.Masks) and merged.sparsity == pytest.approx(0.625)
    assert (merged is first) == (how != "|")
    assert {name: pattern.name for name, pattern in merged.spec.patterns.items()} == {"0": "n_m", "2": "block_wise"}
    assert list(merged.spec.permutations) == ["0"] and merged.spec.sparsities == {"0": 0.5, "2": 0.75}
    sf.save(tmp_path, net, merged)
    again = copy.deepcopy(net)
    loaded = sf.load(tmp_path, again)
    trained = sf.recover(
        again, loaded, [(X, torch.zeros(8, dtype=torch.long))], F.cross_entropy, epochs=1, trainer=TRAINER
    )
    assert families(again, trained) == families(net, merged) == {"0": "n_m", "2": "blocked"}


def test_masks_of_two_networks(net):
    smaller = copy.deepcopy(net)
    sf.narrow(smaller, sf.prune(smaller, sf.patterns.Channel(axis="width"), 0.5, layers=["0", "2", "4"], tell=len))
    with pytest.raises(sf.InvalidSetting, match="^masks=given: are of two networks"):
        pruned(smaller, "element_wise", 0.5, "0") | pruned(net, "element_wise", 0.5, "2")


def test_unfinished_schedule_is_not_joined(net):
    rising, fixed = (
        pruned(net, "n_m", 0.5, "0", schedule="gradual"),
        pruned(net, "block_wise", 0.75, "2", granularity=16),
    )
    for first, second in ((rising, fixed), (fixed, rising), (rising, sf.Masks(fixed))):
        with pytest.raises(sf.InvalidSetting, match=r"^masks=schedule=gradual: goes on in recover"):
            first |= second
    assert list(rising) == ["0"] and list(fixed) == ["2"]
