"""Every pattern that has a YAML file, in each of its distributions: what the contract is tested on."""

from pathlib import Path

import torch

from sparsefront.allocation.erk import Erk
from sparsefront.allocation.global_threshold import GlobalThreshold
from sparsefront.allocation.per_layer import PerLayer
from sparsefront.errors import InvalidSetting
from sparsefront.patterns.base import Pattern
from sparsefront.patterns.tile_wise import SOURCES

FILES = (Path(__file__).resolve().parents[2] / "conf" / "pattern").glob("*.yaml")
NO_STRUCTURE = (
    "mixed",
    "depth",
    "experts",
)  # of their own within a layer: test_mixed.py, test_depth.py, test_experts.py
NAMES = sorted(path.stem for path in FILES if path.stem not in NO_STRUCTURE)
SUITED = {"whole_tiles": True, "input_multiple": 16, "aggregate": "rms"}  # to the hardware
# Each distribution of a pattern is held to the contract, not only the YAML's own.
VARIANTS = [(name, {}) for name in NAMES] + [
    ("n_m", {"m": 16}),
    ("n_m", {"n": 2, "m": 4}),
    ("n_m", {"transposable": True}),
    ("vector_wise", {"distribution": "balanced"}),
    ("block_wise", {"distribution": "balanced"}),
    ("block_wise", {"granularity": "2x4"}),
    ("block_2_4", {"granularity": "2x8"}),
    ("channel", {"axis": "inputs"}),
    ("uniform", {"granularity": 1}),
    ("uniform", {"aggregate": "rms"}),
    ("vector_wise", {"aggregate": "l1"}),
    ("block_wise", {"aggregate": "l1", "distribution": "balanced"}),
    ("channel", {"aggregate": "mean"}),
    ("tile_wise", {"aggregate": "mean"}),
    ("tile_wise", {"element_overlay": 0.05}),
    ("tile_wise", {"apriori_tuning": 0.5}),
    ("tile_wise", {"apriori_tuning": 1.0, "element_overlay": 0.05}),
    ("tile_wise", SOURCES),
    ("tile_wise", SUITED),
    ("tile_wise", SUITED | {"apriori_tuning": 0.5, "element_overlay": 0.05}),
    ("tile_wise", SUITED | {"apriori_tuning": 1.0, "input_multiple": 5}),
]
SPARSITIES = (0.0, 0.5, 0.75, 0.9)
ALLOCATIONS = {"per_layer": PerLayer(), "global_threshold": GlobalThreshold(), "erk": Erk()}
UNIT = 4  # small, so that small layers have many groups


def met(pattern: Pattern) -> list[str]:
    """Names of the allocations that a pattern goes with."""
    return [name for name, allocation in ALLOCATIONS.items() if allocation.mismatch(pattern) is None]


def scores(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def expressible(pattern: Pattern, shape: tuple[int, int]) -> list[float]:
    """The sparsities that this pattern can give this layer."""
    fitting = []
    for sparsity in SPARSITIES:
        try:
            pattern.check_sparsity(sparsity)
        except InvalidSetting:
            continue
        if pattern.unsupported_reason(shape, sparsity) is None:
            fitting.append(sparsity)
    return fitting


def pruned(mask: torch.Tensor) -> int:
    return int((~mask).sum())


def assert_near(pattern: Pattern, mask: torch.Tensor, sparsity: float) -> None:
    target = 0 if pattern.name == "dense" else sparsity * mask.numel()
    assert abs(pruned(mask) - target) <= pattern.rounding_unit(tuple(mask.shape)), (pruned(mask), target)
