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
def test_each_layer_keeps_its_pattern_order_and_sparsity(net, how, tmp_path):
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


def test_one_pattern_at_two_sparsities_stays_one_pattern(net):
    merged = pruned(net, "n_m", 0.5, "0") | pruned(net, "n_m", 0.75, "2")
    assert merged.pruning.pattern == sf.patterns.NM() and merged.pruning.sparsity == 0.75
    dense = copy.deepcopy(net)
    found = sf.recover(net, merged, [X], recovery=sf.recovery.SparseSwaps(batches=1), dense_net=dense, trainer=TRAINER)
    assert [round(1 - float(mask.float().mean()), 2) for mask in found.values()] == [0.5, 0.75]


def test_two_calls_with_the_same_settings_are_as_one(net):
    other = copy.deepcopy(net)
    one = sf.prune(other, "n_m", 0.5, layers=["0", "2"], schedule="gradual", tell=len)
    merged = pruned(net, "n_m", 0.5, "0", schedule="gradual") | pruned(net, "n_m", 0.5, "2", schedule="gradual")
    assert merged.pruning == one.pruning and merged.spec.sparsities == one.spec.sparsities
    assert merged.spec.patterns is None and all(torch.equal(merged[name], mask) for name, mask in one.items())


def test_of_a_layer_in_both_the_second_counts(net):
    first = sf.prune(net, "n_m", 0.5, layers=["0", "2"], tell=len)
    merged = first | pruned(net, "block_wise", 0.75, "2", granularity=16)
    assert merged.spec.patterns["2"].name == "block_wise"
    assert 1 - float(merged["2"].float().mean()) == pytest.approx(0.75)


def test_what_one_left_out_and_the_other_pruned_is_no_longer_left_out(net):
    first = sf.prune(net, "n_m", 0.5, layers=["0", "2"], ignore={"2": "later"}, tell=len)
    assert first.ignored == {"2": "later"}
    assert (first | pruned(net, "n_m", 0.75, "2")).ignored == {}


def test_a_schedule_that_is_still_to_go_on_cannot_be_joined(net):
    rising, fixed = (
        pruned(net, "n_m", 0.5, "0", schedule="gradual"),
        pruned(net, "block_wise", 0.75, "2", granularity=16),
    )
    for first, second in ((rising, fixed), (fixed, rising), (rising, sf.Masks(fixed))):
        with pytest.raises(sf.InvalidSetting, match=r"^masks=schedule=gradual: goes on in recover"):
            first |= second
    assert list(rising) == ["0"] and list(fixed) == ["2"]


def test_beside_masks_of_which_nothing_is_known_the_structure_of_each_decides(net):
    known, unknown = pruned(net, "n_m", 0.5, "0"), sf.Masks(dict(pruned(net, "block_wise", 0.75, "2", granularity=16)))
    merged = known | unknown
    assert merged.pruning is None and merged.spec.patterns is None
    assert type(known | dict(unknown)) is dict
    assert families(net, merged) == {"0": "semi_structured", "2": "blocked"}
