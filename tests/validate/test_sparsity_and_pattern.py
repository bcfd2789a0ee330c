"""Sparsities, patterns and layers that cannot be are rejected before any training."""

import pytest
from torch import nn

import sparsefront as sf
from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting


@pytest.mark.parametrize("pattern", ["element_wise", "dense"])
def test_ignored_granularity_is_logged(composed, caplog, pattern):
    with caplog.at_level("INFO"):
        validate(composed(f"pattern={pattern}", "granularity=64"))
    assert f"granularity=64: pattern {pattern} has no group size and ignores it" in caplog.text


LARGEST = r"is larger than every layer; the largest is blocks\.0\.mlp\.fc1 \[1024, 256\]"
INPUTS = r"the largest is blocks\.0\.mlp\.fc2 \[256, 1024\]: at most 1024 inputs"
BALANCED = "pattern=block_wise granularity=64 pattern.distribution=balanced pattern.m=32 sparsity=0.5"
MIXED = "pattern=mixed pattern.candidates=[n_m,'tile_wise:4096'] allocation=latency_search allocation.speedup=2"
TOO_LARGE = {  # the default network's widest layer has 1024 outputs, the one with most inputs 1024
    "granularity=1025": f"^granularity=1025: {LARGEST}: at most 1024 outputs$",
    "pattern.granularity=1025": f"^granularity=1025: {LARGEST}",
    "pattern=tile_2_4 granularity=1000000000": f"^granularity=1000000000: {LARGEST}",
    "pattern=block_2_4 granularity=2048": f"^granularity=2048: {LARGEST}",
    "pattern=shuffled_block granularity=2048": f"^granularity=2048: {LARGEST}",
    "pattern=block_wise granularity=4x2048": rf"^granularity=4x2048: .*{INPUTS}",
    "pattern=block_wise granularity=1024x1024": f"^granularity=1024x1024: {LARGEST}$",
    BALANCED: rf"^pattern\.m=32: .*{INPUTS}",
    MIXED: rf"^pattern\.candidates=tile_wise:4096: granularity=4096 {LARGEST}",
}


@pytest.mark.parametrize(("overrides", "message"), TOO_LARGE.items(), ids=TOO_LARGE)
def test_group_larger_than_every_layer(composed, overrides, message):
    with pytest.raises(InvalidSetting, match=message):
        validate(composed(*overrides.split()))


@pytest.mark.parametrize("pattern", ["tile_wise", "tile_2_4"])
def test_narrower_layers_are_counted(skeleton, pattern):
    for granularity, narrower in ((256, False), (1024, True)):
        messages = []
        sf.prune(skeleton, pattern, 0.75, granularity=granularity, layers="blocks*", tell=messages.append)
        line = "granularity=1024: 20 of 24 pruned layers have fewer outputs: each of them is one narrower tile"
        assert any(line in message for message in messages) == narrower


@pytest.fixture
def skeleton(composed):
    experiment = validate(composed())
    net = experiment.model.skeleton(experiment.dataset.info).to_empty(device="cpu")
    for parameter in net.parameters():
        nn.init.ones_(parameter)
    return net


@pytest.mark.parametrize(
    ("pattern", "options", "key"),
    [
        ("vector_wise", {"granularity": 96}, "granularity"),
        ("block_wise", {"granularity": 2048}, "granularity"),
        ("block_wise", {"granularity": 256, "sparsity": 0.2}, "sparsity"),
        ("depth", {"sparsity": 0.01}, "sparsity"),
        ("n_m", {"ignore": ["blocks"]}, "ignore"),
    ],
)
def test_program_and_library_refuse_alike(composed, skeleton, pattern, options, key):
    typed = {"recipe.ignore" if name == "ignore" else name: value for name, value in options.items()}
    with pytest.raises(InvalidSetting) as program:
        validate(composed(f"pattern={pattern}", *(f"{name}={value}".replace("'", "") for name, value in typed.items())))
    if "ignore" in options:
        options = {"ignore": ["blocks.*"]}
    with pytest.raises(InvalidSetting) as library:
        sf.prune(skeleton, pattern, **{"sparsity": 0.75, "layers": "blocks*", "tell": len} | options)
    assert library.value.allowed == program.value.allowed and library.value.key == key
    assert program.value.key == ("recipe.ignore" if key == "ignore" else key)


def test_sparsity_below_one_group(composed):
    """A block of 256 x 256 is all of a layer of the attention, and a quarter of one of the MLP."""
    with pytest.raises(InvalidSetting, match=r"^sparsity=0\.2: rounds to no change: block_wise .* prunes is 0\.25"):
        validate(composed("pattern=block_wise", "granularity=256", "sparsity=0.2"))
    validate(composed("pattern=block_wise", "granularity=256", "sparsity=0.25"))
    with pytest.raises(InvalidSetting, match=r"^sparsity=0\.005: rounds to no change: n_m "):
        validate(composed("pattern=n_m", "sparsity=0.005"))
