"""Every YAML composes, and its keys are those of the class that it names."""

from pathlib import Path

import pytest

from sparsefront.config.schema import GROUPS
from sparsefront.config.settings import build_settings

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


def test_groups_and_root_keys_differ():
    """Hydra cannot tell `sparsity=0.75` from a choice in a folder `sparsity/`."""
    assert not {"sparsity", "granularity", "seed", "stages"} & {folder.name for folder in CONF.iterdir()}


def test_root_granularity_reaches_the_pattern(composed):
    assert composed("pattern=tile_wise", "granularity=32").pattern.granularity == 32
    assert composed("pattern=tile_wise").pattern.granularity == 128
    assert composed("pattern=block_wise", "granularity=4x64").pattern.granularity == "4x64"
    assert composed("pattern=vector_wise", "pattern.granularity=8").pattern.granularity == 8
