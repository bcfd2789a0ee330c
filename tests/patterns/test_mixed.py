"""Several patterns in one network: what may be named, what a layer may be given, and how it is written down."""

import json
from dataclasses import asdict

import pytest
import torch

from sparsefront.errors import InvalidSetting
from sparsefront.patterns.base import from_record, label, to_record
from sparsefront.patterns.mixed import Mixed
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.tile_wise import TileWise
from sparsefront.patterns.vector_wise import VectorWise


def test_candidates_by_name_granularity_or_settings():
    own = {"_target_": "sparsefront.patterns.vector_wise.VectorWise", "granularity": 4}
    mixed = Mixed(["n_m", "tile_wise:64", {"name": "n_m", "m": 4}, own])
    assert mixed.patterns == (NM(), TileWise(64), NM(m=4), VectorWise(granularity=4))
    assert mixed.parts == mixed.patterns


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        (["n_n"], r"^candidates=n_n: name=n_n: is no pattern; there are .*tile_wise"),
        (["n_m:4"], r"^candidates=n_m:4: cannot be made: .*granularity"),
        (["tile_wise:0"], r"^candidates=tile_wise:0: granularity=0"),
        ([{"name": "n_m", "m": 1}], r"^candidates=.*: m=1: must be greater than"),
        ([{"m": 4}], r"^candidates=.*name=None: is no pattern"),
        ([{"_target_": "nowhere.Pattern"}], r"^candidates=.*: _target_=nowhere.Pattern: cannot be imported .*No"),
        (["dense"], r"^candidates=dense: is a pattern that prunes within a layer; dense is a choice beside them all"),
        (["mixed"], r"^candidates=mixed: is a pattern that prunes"),
        (["n_m", "tile_wise", "tile_wise:128"], r"^candidates=\[n_m,tile_wise:128,tile_wise:128\]: names a"),
        ([], r"^candidates=\[\]: must have at least 1 item"),
    ],
    ids=str,
)
def test_candidates_that_are_none(candidates, message):
    with pytest.raises(InvalidSetting, match=message):
        Mixed(candidates)


@pytest.mark.parametrize("sparsities", [[], [0.0, 0.5], [0.5, 0.5], [1.0], [-0.5], ["half"]])
def test_levels_that_are_none(sparsities):
    with pytest.raises(InvalidSetting, match="^sparsities="):
        Mixed(["n_m"], sparsities)


def test_choices_up_to_the_ceiling():
    mixed = Mixed(["vector_wise:8", {"name": "n_m", "m": 4}], [0.75, 0.5, 0.9])
    vectors, windows = mixed.patterns
    assert mixed.choices((16, 32), 0.8) == [(vectors, 0.5), (vectors, 0.75), (windows, 0.5), (windows, 0.75)]
    assert mixed.choices((12, 32), 0.9) == [(windows, 0.5), (windows, 0.75)]  # no vectors of 8, and no 0.9 of four
    assert mixed.choices((12, 30), 0.9) == []
    reason = mixed.unsupported_reason((12, 30), 0.9)
    assert "vector_wise:8: outputs 12 are not a multiple" in reason and "n_m m=4: " in reason
    mixed.check_sparsity(0.5)
    with pytest.raises(
        InvalidSetting, match=r"^sparsity=0\.4: is the ceiling of pattern\.sparsities=\[0\.75,0\.5,0\.9\]"
    ):
        mixed.check_sparsity(0.4)


def test_a_mask_obeys_one_of_them():
    mixed = Mixed(["vector_wise:4", {"name": "n_m", "m": 4}], [0.5])
    scores = torch.rand(8, 8)
    for pattern in mixed.patterns:
        mixed.check(pattern.mask(scores, 0.5), 0.5)
    broken = torch.zeros(8, 8, dtype=torch.bool)
    broken[0, 0] = True
    with pytest.raises(ValueError, match="mixed: no candidate has this mask: vector_wise.*n_m"):
        mixed.check(broken, 0.5)


@pytest.mark.parametrize("pattern", [NM(m=4), TileWise(64), Mixed(["n_m", {"name": "n_m", "m": 8}])], ids=label)
def test_a_record_gives_the_pattern_back(pattern):
    assert from_record(json.loads(json.dumps(to_record(pattern)))) == pattern
    assert type(pattern)(**json.loads(json.dumps(asdict(pattern)))) == pattern  # as a manifest has it
