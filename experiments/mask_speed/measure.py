"""Seconds and memory that the masks of all prunable layers of a BERT take, for every pattern.

python experiments/mask_speed/measure.py --device cuda --size large --out experiments/mask_speed/masks.csv
python experiments/mask_speed/measure.py --device cpu --threads 2 --out experiments/mask_speed/masks.csv

Weights are random, of the real shapes; their scores are magnitudes. All layers are ranked together where the pattern
allows it. Pattern and allocation are built from the YAML files of conf/, as in a run.
"""

import argparse
import json
import resource
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from records import append_records, origin, show
from torch import Tensor

import sparsefront.config  # noqa: F401  registers the schema and the resolvers of the YAML files
from sparsefront.allocation.base import Allocation
from sparsefront.datasets.info import DataInfo
from sparsefront.errors import InvalidSetting
from sparsefront.importance.magnitude import Magnitude
from sparsefront.models.bert import SIZES, Bert
from sparsefront.patterns.base import Pattern
from sparsefront.pruning.make_masks import make_masks
from sparsefront.settings import build_settings

CONF = Path(__file__).resolve().parents[2] / "conf"
PATTERNS = sorted(file.stem for file in (CONF / "pattern").glob("*.yaml") if file.stem not in ("dense", "mixed"))
RANKED_AT = (0.75, 0.5)  # the first that the pattern can express
WINDOWS_AT = (0.5, 0.75)  # each that it can express: 2:4 and 1:4
# Settings beside the defaults that change what there is to compute.
VARIANTS = {
    "block_wise": ("distribution=balanced",),
    "n_m": ("transposable=true", "permutation=search"),
    "tile_wise": ("element_overlay=0.05", "apriori_tuning=0.5"),
    "uniform": ("granularity=4",),
    "vector_wise": ("granularity=4", "distribution=balanced"),
}
SEARCHES = ("permutation=search",)  # minutes: only where they are asked for


@dataclass(frozen=True)
class Case:
    """One line of the result: what is built and how often it is timed."""

    pattern: str
    allocation: str
    sparsity: float
    size: str
    repeats: int
    settings: tuple[str, ...] = ()

    def build(self) -> tuple[Pattern, Allocation, dict[str, Any]]:
        """The pattern, the allocation and the pattern's settings, as `run.py` would build them."""
        changed = [f"pattern.{setting}" for setting in self.settings]
        config = _config(
            f"pattern={self.pattern}", f"allocation={self.allocation}", f"sparsity={self.sparsity}", *changed
        )
        pattern = build_settings("pattern", config.pattern)
        settings = {key: value for key, value in asdict(pattern).items() if value is not None}
        return pattern, build_settings("allocation", config.allocation), settings


def cases(name: str, size: str, repeats: int, *, searches: bool = False) -> Iterator[Case]:
    """The cases of a pattern: its defaults, then one setting at a time; `searches`: with those that take minutes."""
    variants = (variant for variant in VARIANTS.get(name, ()) if searches or variant not in SEARCHES)
    for settings in ((), *((variant,) for variant in variants)):
        pattern = build_settings("pattern", _config(f"pattern={name}", *(f"pattern.{key}" for key in settings)).pattern)
        ranked = not pattern.balanced
        allocation = "global_threshold" if ranked else "per_layer"
        expressed = [sparsity for sparsity in (RANKED_AT if ranked else WINDOWS_AT) if _expresses(pattern, sparsity)]
        for sparsity in expressed[:1] if ranked else expressed:
            yield Case(name, allocation, sparsity, size, repeats, settings)


def layer_shapes(size: str) -> dict[str, tuple[int, int]]:
    """[N, K] of every prunable layer of a BERT."""
    model = Bert(size=size)
    net = model.skeleton(DataInfo("sequence_classification", num_classes=2, sequence_length=128))
    return {name: tuple(net.get_submodule(name).weight.shape) for name in model.prunable(net)}


def measure(case: Case, device_name: str, threads: int | None) -> dict[str, Any]:
    """Make the masks once to warm up, then `repeats` times; the medians.

    `peak_extra_ratio` is the most memory that was held beside the weights (scores, masks and everything in between), over
    the bytes of the weights in fp32: what PyTorch allocated on a GPU, the growth of the resident set on a CPU.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    device = torch.device(device_name)
    pattern, allocation, settings = case.build()
    generator = torch.Generator(device).manual_seed(0)
    weights = {
        layer: torch.randn(shape, generator=generator, device=device)
        for layer, shape in layer_shapes(case.size).items()
        if pattern.unsupported_reason(shape, case.sparsity) is None
    }
    count = sum(weight.numel() for weight in weights.values())
    before = _memory_so_far(device)
    score_seconds, mask_seconds = [], []
    for _ in range(1 + case.repeats):
        masks = None  # those of the turn before are gone, as in a run
        scores, seconds = _timed(lambda: Magnitude().scores(weights), device)
        score_seconds.append(seconds)
        masks, seconds = _timed(lambda scores=scores: make_masks(scores, pattern, allocation, case.sparsity), device)
        mask_seconds.append(seconds)
        del scores
    extra = _peak_memory(device) - before
    return {
        "size": case.size,
        "pattern": case.pattern,
        "settings": json.dumps(settings),
        "allocation": case.allocation,
        "sparsity": case.sparsity,
        "sparsity_achieved": 1 - sum(_kept(mask) for mask in masks.values()) / count,
        "layers": len(weights),
        "weights": count,
        "seconds": median(mask_seconds[1:]),
        "score_seconds": median(score_seconds[1:]),
        "repeats": case.repeats,
        "peak_extra_ratio": extra / (4 * count),
        **origin(device),
    }


def main() -> int:
    arguments = _parser().parse_args()
    records = []
    for name in arguments.patterns:
        for case in cases(name, arguments.size, arguments.repeats, searches=arguments.searches):
            print(name, *case.settings, f"at {case.sparsity:g}, {case.allocation}", flush=True)
            record = _run(case, arguments)
            append_records(arguments.out, [record])
            records.append(record)
    shown = ("pattern", "settings", "allocation", "sparsity_achieved", "seconds", "score_seconds", "peak_extra_ratio")
    show(f"masks of BERT-{arguments.size} on {records[0]['device']}", records, shown)
    return 0


def _run(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    """On a CPU in a process of its own: the peak of a resident set never falls again."""
    if arguments.device != "cpu":
        return measure(case, arguments.device, arguments.threads)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, case, arguments.device, arguments.threads).result()


def _config(*overrides: str) -> Any:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def _expresses(pattern: Pattern, sparsity: float) -> bool:
    try:
        pattern.check_sparsity(sparsity)
    except InvalidSetting:
        return False
    return True


def _timed(function: Callable[[], dict[str, Tensor]], device: torch.device) -> tuple[dict[str, Tensor], float]:
    _wait(device)
    start = perf_counter()
    result = function()
    _wait(device)
    return result, perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _memory_so_far(device: torch.device) -> int:
    """Bytes that the weights hold; from here on the peak counts."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    return _peak_memory(device)


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _kept(mask: Tensor) -> int:
    return int(torch.count_nonzero(mask))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--size", default="base", choices=list(SIZES), help="of the BERT; tiny only tries the script")
    parser.add_argument("--patterns", nargs="+", default=PATTERNS, choices=PATTERNS, metavar="PATTERN")
    parser.add_argument("--repeats", type=int, default=5, help="timed turns after one to warm up")
    parser.add_argument("--threads", type=int, help="of the CPU; PyTorch's own choice by default")
    parser.add_argument(
        "--searches", action="store_true", help="with the permutation search of n_m, which takes minutes"
    )
    parser.add_argument("--out", type=Path, required=True, help="CSV file; lines are added to it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
