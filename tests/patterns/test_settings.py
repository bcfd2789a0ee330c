"""Settings of patterns that cannot be used, and what the messages name.

Choosing and rejecting windows.
"""

import inspect
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
from hydra.utils import get_class
from omegaconf import OmegaConf

from sparsefront.errors import InvalidSetting
from sparsefront.patterns.base import find_window
from sparsefront.patterns.block_2_4 import Block24
from sparsefront.patterns.block_wise import BlockWise
from sparsefront.patterns.channel import Channel
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.shuffled_block import ShuffledBlock
from sparsefront.patterns.tile_2_4 import Tile24
from sparsefront.patterns.tile_wise import TileWise
from sparsefront.patterns.uniform import Uniform
from sparsefront.patterns.vector_wise import VectorWise

CONF = Path(__file__).resolve().parents[2] / "conf"
YAMLS = sorted(path for group in ("pattern", "importance", "allocation") for path in (CONF / group).glob("*.yaml"))

G, WIDE = {"granularity": 4}, {"granularity": 4, "distribution": "balanced"}
NO_COUNTS = [
    (kind, {"granularity": g}, "granularity=") for kind in (VectorWise, TileWise) for g in (0, "4x64", 2.5, True, None)
]
NO_BLOCKS = [
    (BlockWise, {"granularity": g}, "granularity=") for g in (0, "0x4", "4x", "4x4x4", "4 x 4", 2.5, True, None)
]
WRONG = [
    *NO_COUNTS,
    *NO_BLOCKS,
    *[(Block24, {"granularity": g}, "granularity=") for g in (6, 2, "8x6", 0, "wide")],
    *[(Tile24, {"granularity": g}, "granularity=") for g in (0, 1, "4x4", None)],
    *[(Uniform, {"granularity": g}, "granularity=") for g in (0, 3, 64, "4x4", None)],
    (Uniform, {"granularity": 1, "aggregate": "max"}, "aggregate=max: must be 'l2' or 'rms' .the norm"),
    (Channel, {"axis": "rows"}, "axis=rows: must be 'outputs', 'inputs', 'width', 'hidden' or 'all'"),
    (VectorWise, G | {"distribution": "random"}, "'free' or 'balanced'"),
    (BlockWise, G | {"m": 4}, "only a balanced distribution"),
    *[(ShuffledBlock, G | {"search_rounds": r}, "search_rounds=") for r in (-1, 1.5, True, "many", None)],
    *[(TileWise, G | {"element_overlay": delta}, "element_overlay=") for delta in (-0.1, 1.0)],
    *[(TileWise, G | {"apriori_tuning": share}, "apriori_tuning=") for share in (-0.1, 1.1)],
    (TileWise, G | {"whole_tiles": 1}, "whole_tiles=1: must be a valid boolean"),
    *[(TileWise, G | {"input_multiple": n}, f"input_multiple={n}: must be") for n in (0, True, 1.5)],
    (TileWise, G | {"aggregate": "l2"}, "aggregate=l2: must be 'rms', 'mean' or 'l2_over_length'"),
    *[
        (NM, {"n": n, "m": m}, f"{key}=")
        for n, m, key in ((None, 1, "m"), (None, 65, "m"), (2, None, "n"), (5, 4, "n"), (0, 4, "n"))
    ],
    *[(NM, {"permutation": p}, "permutation=") for p in ("greedy", None)],
    *[(NM, {"permutation_rounds": r}, "permutation_rounds=") for r in (0, 2.5, True)],
    (NM, {"transposable": True, "n": 1, "m": 4}, "n=1: .*transposable"),
    (NM, {"transposable": True, "m": 8}, "m=8: .*transposable"),
    (NM, {"transposable": True, "permutation": "search"}, "permutation=search: .*transposable"),
]


@pytest.mark.parametrize(("kind", "keys", "message"), WRONG, ids=str)
def test_settings_of_patterns_are_checked(kind, keys, message):
    with pytest.raises(InvalidSetting, match=f"^{message}" if message.endswith("=") else message):
        kind(**keys)


@pytest.mark.parametrize(
    ("pattern", "sparsity", "message"),
    [
        (Block24(8), 0.4, r"sparsity=0.4: .* 2 of 4 in every group: at least 0.5"),
        (Tile24(8), 0.4, r"sparsity=0.4: .* 2 of 4 in every group: at least 0.5"),
        (TileWise(16, element_overlay=0.1), 0.9, r"element_overlay=0.1: below 0.1: .*below 1"),
        (NM(m=4), 0.6, r"^m=.*0\.5 \(2:4\) and 0\.75 \(1:4\)"),
        (NM(), 0.999, r"0\.9844 \(1:64\)"),
        (NM(2, 4), 0.75, r"^n=.*2:4 is sparsity 0\.5, not 0\.75; n: 1 \(or null\) agrees"),
        (NM(transposable=True), 0.4, r"^transposable=.*sparsity 0.5, not 0.4"),
    ],
    ids=str,
)
def test_sparsities_of_patterns_are_checked(pattern, sparsity, message):
    with pytest.raises(InvalidSetting, match=message):
        pattern.check_sparsity(sparsity)


@pytest.mark.parametrize(
    ("pattern", "shape", "reason"),
    [
        (VectorWise(32), (10, 64), "outputs 10 are not a multiple of granularity 32"),
        (ShuffledBlock(8), (20, 16), "outputs 20 are not a multiple of granularity 8"),
        (BlockWise(32), (64, 100), "inputs 100 are not a multiple of granularity 32"),
        (BlockWise("4x64"), (8, 100), "inputs 100 are not a multiple of 64 (granularity 4x64)"),
        (BlockWise(32, distribution="balanced", m=8), (64, 128), "4 blocks of 32 inputs are not a multiple of m 8"),
        (VectorWise(**WIDE, m=8), (8, 12), "inputs 12 are not a multiple of m 8"),
        (NM(m=32), (8, 100), "inputs 100 are not a multiple of m 32"),
        (NM(transposable=True), (10, 16), "outputs 10 are not a multiple of 4, the side of a transposable tile"),
        (NM(transposable=True), (8, 18), "inputs 18 are not a multiple of m 4"),
        (NM(transposable=True), (8, 16), None),
        (TileWise(128), (10, 7), None),
    ],
    ids=str,
)
def test_reasons_name_count_and_group(pattern, shape, reason):
    assert pattern.unsupported_reason(shape, 0.5) == reason


@pytest.mark.parametrize(
    ("granularity", "block"), [(64, (64, 64)), ("64", (64, 64)), ("4x64", (4, 64)), ("64x4", (64, 4))]
)
def test_blocks_are_outputs_by_inputs(granularity, block):
    assert BlockWise(granularity=granularity).block == block


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_yaml_and_class_agree(path):
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


@pytest.mark.parametrize(
    ("length", "sparsity", "expected"),
    [
        (1024, 0.5, (2, 4)),
        (1024, 0.75, (1, 4)),
        (1024, 0.9, (3, 32)),
        (768, 0.9, (3, 32)),
        (300, 0.9, (1, 10)),
        (1024, 0.0, (4, 4)),
        (1024, 0.875, (1, 8)),
        (10, 0.5, (5, 10)),
        (7, 0.5, None),
        (67, 0.5, None),
    ],
)
def test_smallest_window_that_comes_close(length, sparsity, expected):
    assert find_window(length, sparsity, n=None, m=None) == expected
