"""Patterns as a user configures them: from their YAML."""

from collections.abc import Callable
from pathlib import Path

import pytest
from every_pattern import UNIT, VARIANTS
from hydra.utils import instantiate
from omegaconf import OmegaConf

import sparsefront.config.schema  # noqa: F401  registers the resolver that the YAML files use
from sparsefront.patterns.base import Pattern

CONF = Path(__file__).resolve().parents[2] / "conf"


@pytest.fixture
def from_yaml() -> Callable:
    """from_yaml(name, granularity=..., **keys) -> the pattern that `pattern=name pattern.key=...` gives."""

    def build(name: str, granularity: int | str | None = None, **keys: object):
        settings = OmegaConf.load(CONF / "pattern" / f"{name}.yaml")
        root = OmegaConf.create({"granularity": granularity, "pattern": OmegaConf.merge(settings, keys)})
        return instantiate(root.pattern, _convert_="all")

    return build


@pytest.fixture(params=VARIANTS, ids=lambda variant: "-".join([variant[0], *map(str, variant[1].values())]))
def pattern(request: pytest.FixtureRequest, from_yaml: Callable) -> Pattern:
    """Every pattern of every YAML file, in each of its distributions."""
    name, keys = request.param
    return from_yaml(name, **{"granularity": UNIT, **keys})
