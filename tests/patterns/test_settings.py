"""Settings of patterns that cannot be used, and what the messages name."""

import inspect
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
from hydra.utils import get_class
from omegaconf import OmegaConf

from sparsefront.allocation.global_threshold import GlobalThreshold
from sparsefront.errors import InvalidSetting
from sparsefront.patterns.block_wise import BlockWise
from sparsefront.patterns.tile_wise import TileWise
from sparsefront.patterns.vector_wise import VectorWise

CONF = Path(__file__).resolve().parents[2] / "conf"
YAMLS = sorted(path for group in ("pattern", "importance", "allocation") for path in (CONF / group).glob("*.yaml"))


@pytest.mark.parametrize("granularity", [0, -4, "4x64", "wide", 2.5, True, None])
@pytest.mark.parametrize("pattern", [VectorWise, TileWise])
def test_a_group_size_is_a_positive_whole_number(pattern, granularity):
    with pytest.raises(InvalidSetting) as caught:
        pattern(granularity=granularity)
    assert caught.value.key == "granularity"


@pytest.mark.parametrize("granularity", [0, -4, "0x4", "4x", "x4", "4x4x4", "4 x 4", "-4x4", 2.5, True, None])
def test_a_block_is_one_or_two_positive_whole_numbers(granularity):
    with pytest.raises(InvalidSetting) as caught:
        BlockWise(granularity=granularity)
    assert caught.value.key == "granularity"


@pytest.mark.parametrize(
    ("granularity", "block"), [(64, (64, 64)), ("64", (64, 64)), ("4x64", (4, 64)), ("64x4", (64, 4))]
)
def test_blocks_are_outputs_by_inputs(granularity, block):
    assert BlockWise(granularity=granularity).block == block


@pytest.mark.parametrize("pattern", [VectorWise, BlockWise])
def test_distributions(pattern):
    with pytest.raises(InvalidSetting, match="free or balanced"):
        pattern(granularity=4, distribution="random")
    with pytest.raises(InvalidSetting, match="only a balanced distribution"):
        pattern(granularity=4, m=4)
    assert pattern(granularity=4).ranked_in_source
    assert GlobalThreshold().mismatch(pattern(granularity=4, distribution="balanced"))


def test_unsupported_reasons_name_the_count_and_the_group():
    assert (
        VectorWise(granularity=32).unsupported_reason((10, 64), 0.5)
        == "outputs 10 are not a multiple of granularity 32"
    )
    assert (
        BlockWise(granularity=32).unsupported_reason((64, 100), 0.5)
        == "inputs 100 are not a multiple of granularity 32"
    )
    oblong = BlockWise(granularity="4x64")
    assert oblong.unsupported_reason((8, 100), 0.5) == "inputs 100 are not a multiple of 64 (granularity 4x64)"
    balanced = BlockWise(granularity=32, distribution="balanced", m=8)
    assert balanced.unsupported_reason((64, 128), 0.5) == "4 blocks of 32 inputs are not a multiple of m 8"
    assert TileWise(granularity=128).unsupported_reason((10, 7), 0.5) is None


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_yaml_and_class_name_the_same_keys_and_defaults(path):
    """Two places that name a default must not drift apart."""
    node = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    of_the_root = {"${seed}": 0, "${granularity}": None}  # its defaults
    node = {key: of_the_root.get(value, value) if isinstance(value, str) else value for key, value in node.items()}
    if str(node.get("granularity")).startswith("${default:"):  # the root's where it is set, else the pattern's own
        node["granularity"] = int(node["granularity"].removesuffix("}").rpartition(",")[2])
    kind = get_class(node.pop("_target_"))
    parameters = inspect.signature(kind).parameters
    made = {field.name: field.default_factory() for field in fields(kind) if field.default_factory is not MISSING}
    assert set(node) == set(parameters)
    for key, value in node.items():
        if parameters[key].default is not inspect.Parameter.empty:
            assert value == made.get(key, parameters[key].default), key
