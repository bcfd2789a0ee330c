"""Every YAML composes, and its keys are those of the class that it names."""

from dataclasses import replace
from pathlib import Path

import pytest

from sparsefront.allocation.per_layer import PerLayer
from sparsefront.config.schema import GROUPS
from sparsefront.config.settings import build_settings
from sparsefront.config.validate import validate

CONF = Path(__file__).resolve().parents[2] / "conf"
OPTIONS = sorted(
    (folder.name, file.stem) for folder in CONF.iterdir() if folder.name in GROUPS for file in folder.rglob("*.yaml")
)


@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=lambda part: part)
def test_every_option_composes_and_builds(composed, group, option):
    config = composed(f"{group}={option}")
    assert build_settings(group, config[group]) is not None


@pytest.mark.parametrize("name", sorted(file.stem for file in (CONF / "experiment").glob("*.yaml")))
def test_every_experiment_composes(composed, name):
    config = composed(f"experiment={name}")
    for group in GROUPS:
        assert config[group] is None or build_settings(group, config[group]) is not None, group


def test_distribution_pairs_share_one_allocation(composed):
    """Three pairs, of which one of each is balanced; nothing else tells the members of a pair apart."""
    names = [file.stem for file in (CONF / "experiment").glob("distribution_*.yaml")]
    points = {name.removeprefix("distribution_"): validate(composed(f"experiment={name}")) for name in names}
    assert {name for name, point in points.items() if point.pattern.balanced} == {
        "n_m",
        "vector_wise_balanced",
        "block_wise_balanced",
    }
    assert len(points) == 6 and {point.allocation for point in points.values()} == {PerLayer()}
    for name in ("vector_wise", "block_wise"):
        balanced = points[f"{name}_balanced"].pattern
        assert replace(balanced, distribution="free") == points[name].pattern
    shared = [(point.sparsity, point.granularity, point.recipe, point.schedule) for point in points.values()]
    assert shared.count(shared[0]) == 6


def test_groups_and_root_keys_differ():
    """Hydra cannot tell `sparsity=0.75` from a choice in a folder `sparsity/`."""
    assert not {"sparsity", "granularity", "seed", "stages"} & {folder.name for folder in CONF.iterdir()}


def test_root_granularity_reaches_the_pattern(composed):
    assert composed("pattern=tile_wise", "granularity=32").pattern.granularity == 32
    assert composed("pattern=tile_wise").pattern.granularity == 128
    assert composed("pattern=block_wise", "granularity=4x64").pattern.granularity == "4x64"
    assert composed("pattern=vector_wise", "pattern.granularity=8").pattern.granularity == 8
