"""Where the operator benchmark's masks come from: a named function, or the random weights of a family."""

import sys

import pytest
import torch
from sparsefront_kernels import FORMATS
from sparsefront_kernels.bench import __main__ as command
from sparsefront_kernels.bench.families import FAMILIES, family_masks
from sparsefront_kernels.bench.masks import PATTERN, Masks

CPU = torch.device("cpu")
GATHERED = family_masks("gathered")


def given_masks(granularity, *, whole=False, order="up"):
    """What a test gives to `--masks`."""
    return (granularity, whole, order)


def test_masks_of_a_named_function(monkeypatch):
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


def test_masks_that_are_not_given():
    with pytest.raises(ValueError, match="distribution pattern needs --masks"):
        Masks(GATHERED).source(PATTERN, 64)
    with pytest.raises(ValueError, match="distribution pattern needs --masks"):
        command.main(["--distribution", "pattern"])
    with pytest.raises(ValueError, match="--mask-settings: got an unexpected keyword argument 'whole'"):
        Masks.named(GATHERED, None, {"whole": True}).source("equal", 64)
    with pytest.raises(ValueError, match="distribution free: those of gathered are equal, uneven, pattern"):
        Masks(GATHERED).source("free", 64)


@pytest.mark.parametrize("sparsity", [0.5, 0.75, 0.9])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_holds_its_masks(family, sparsity):
    bench = family_masks(family)
    assert bench.family == family and bench.granularity > 0
    unit = 16 if bench.granularity > 64 else bench.granularity
    for distribution in bench.distributions:
        drawn = bench.source(distribution, unit).draw(128, 192, sparsity, CPU)
        assert family in drawn.storage
        for holder, parameters in drawn.storage.items():
            stored = FORMATS[holder].from_dense(drawn.weight, drawn.mask, **parameters)
            assert torch.equal(stored.to_dense(), torch.where(drawn.mask, drawn.weight, 0.0)), holder
        density = drawn.mask.float().mean().item()
        wanted = 0.5 if family == "semi_structured" else 1 - sparsity
        assert density == pytest.approx(wanted, abs=0.05)
