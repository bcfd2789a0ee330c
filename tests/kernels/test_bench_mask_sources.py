"""Where the operator benchmark's masks come from: a named function, or the random weights of a family."""

import sys

import pytest
import torch
from sparsefront_kernels import FORMATS
from sparsefront_kernels.bench import __main__ as command
from sparsefront_kernels.bench.families import (
    FAMILIES,
    equal_tiles,
    family_masks,
    random_blocks,
    random_groups,
    uneven_tiles,
)
from sparsefront_kernels.bench.masks import PATTERN, Masks, setting
from sparsefront_kernels.bench.plan import Chosen

CPU = torch.device("cpu")
GATHERED = family_masks("gathered")


def given_masks(granularity, *, whole=False, order="up"):
    """What a test gives to `--masks`."""
    return (granularity, whole, order)


def test_masks_come_from_a_function_that_is_named(monkeypatch):
    module = type("module", (), {"given_masks": staticmethod(given_masks)})
    monkeypatch.setitem(sys.modules, "some_patterns", module)
    masks = Masks.named(GATHERED, "some_patterns:given_masks", {"whole": True})
    assert masks.source(PATTERN, 64) == (64, True, "up")
    assert Masks(GATHERED).source("equal", 64).pattern == "vector_wise", "the random ones stay"
    asked = "--distribution pattern --granularity 8 --masks some_patterns:given_masks --mask-settings".split()
    parsed = command.parser().parse_args([*asked, "whole=true,order=down"])
    assert command._masks(parsed).source(PATTERN, 8) == (8, True, "down")
    with pytest.raises(ValueError, match="--mask-settings: got an unexpected keyword argument 'wide'"):
        Masks.named(GATHERED, "some_patterns:given_masks", {"wide": 1}).source(PATTERN, 64)


@pytest.mark.parametrize("name", ["no_such_module:masks", "math:masks", "math", ":masks", "math:"])
def test_masks_of_no_function(name):
    with pytest.raises(ValueError, match=f"--masks {name}: not a function as module:function"):
        Masks.named(GATHERED, name, {})


def test_masks_that_are_not_given():
    with pytest.raises(ValueError, match="distribution pattern needs --masks"):
        Masks(GATHERED).source(PATTERN, 64)
    with pytest.raises(ValueError, match="distribution pattern needs --masks"):
        command.main(["--distribution", "pattern"])
    with pytest.raises(ValueError, match="--mask-settings: got an unexpected keyword argument 'whole'"):
        Masks.named(GATHERED, None, {"whole": True}).source("equal", 64)
    with pytest.raises(ValueError, match="distribution free: those of gathered are equal, uneven, pattern"):
        Masks(GATHERED).source("free", 64)


def test_settings_are_read_as_what_they_are():
    pairs = ("a=true", "b=false", "c=null", "d=3", "e=0.5", "f=tile_wise", "g=a=b")
    assert dict(map(setting, pairs)) == {
        "a": True,
        "b": False,
        "c": None,
        "d": 3,
        "e": 0.5,
        "f": "tile_wise",
        "g": "a=b",
    }
    for text in ("whole", "=3", "whole="):
        with pytest.raises(ValueError, match="is not key=value"):
            setting(text)


@pytest.mark.parametrize("distribution", ["equal", "uneven"])
def test_random_tiles_keep_all_outputs(distribution):
    drawn = Masks(GATHERED).source(distribution, 16).draw(96, 64, 0.75, CPU)
    assert drawn.weight.shape == drawn.mask.shape == (96, 64) and drawn.mask.any(dim=1).all()
    assert drawn.storage == {"gathered": {"tile": 16, "drop_empty_outputs": False}}


@pytest.mark.parametrize("sparsity", [0.5, 0.75, 0.9])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_masks_that_it_can_hold(family, sparsity):
    bench = family_masks(family)
    assert bench.family == family and bench.granularity > 0
    unit = 16 if bench.granularity > 64 else bench.granularity
    for distribution in bench.distributions:
        drawn = bench.source(distribution, unit).draw(128, 192, sparsity, CPU)
        assert family in drawn.storage
        for holder, parameters in drawn.storage.items():
            stored = FORMATS[holder].from_dense(drawn.weight, drawn.mask, **parameters)
            assert torch.equal(stored.to_dense(), torch.where(drawn.mask, drawn.weight, 0.0)), holder
            assert family_masks(holder).weight_bytes(stored) > 0
        density = drawn.mask.float().mean().item()
        wanted = 0.5 if family == "semi_structured" else 1 - sparsity
        assert density == pytest.approx(wanted, abs=0.05)


def test_blocks_may_be_rectangular():
    masks = Masks.named(family_masks("blocked"), None, {"inputs": 16})
    source = masks.source("equal", 64)
    assert source.settings == "inputs=16" and source.pattern == "block_wise"
    drawn = source.draw(128, 96, 0.5, CPU)
    assert drawn.storage["blocked"] == {"block": (64, 16)}
    assert FORMATS["blocked"].from_dense(drawn.weight, drawn.mask, block=(64, 16)).block_columns.numel() == 6
    with pytest.raises(ValueError, match="blocks of 64x16 do not divide the weight"):
        source.draw(100, 96, 0.5, CPU)


def test_a_family_on_the_command_line():
    asked = command.parser().parse_args(["--family", "blocked", "gathered", "--mask-settings", "inputs=16"])
    masks = command._masks(asked)
    assert command._granularities(asked, masks) == (128,) and command._distributions(asked, masks) == ("equal",)
    assert masks.source("equal", 128).settings == "inputs=16"
    names = {one.name for one, _ in Chosen((), ("row_major",), tuple(asked.family)).entries("fp16")}
    assert "blocked_triton" in names and "gathered_triton" in names


def test_equal_tiles_keep_equally_many():
    mask = equal_tiles(100, 60, 32, 0.75, CPU)
    assert mask.shape == (100, 60)
    assert (mask.sum(dim=1) == 15).all()
    assert (mask[:32] == mask[0]).all() and not (mask[32] == mask[0]).all()


def test_uneven_tiles_keep_the_mean():
    mask = uneven_tiles(640, 400, 64, 0.5, CPU)
    counts = mask[::64].sum(dim=1)
    assert counts.float().mean().item() == pytest.approx(200, rel=0.01)
    assert counts.min() == 100 and counts.max() == 300
    assert (mask.view(10, 64, 400) == mask.view(10, 64, 400)[:, :1]).all()


def test_blocks_and_halves_of_groups():
    blocks = random_blocks(64, 128, (16, 16), 0.75, CPU).view(4, 16, 8, 16)
    assert (blocks.all(dim=3).all(dim=1).sum(dim=1) == 2).all() and blocks.sum() == 4 * 2 * 256
    for group_m in (2, 4):
        mask = random_groups(8, 32, group_m // 2, group_m, CPU)
        assert (mask.view(8, -1, group_m).sum(dim=2) == group_m // 2).all()
