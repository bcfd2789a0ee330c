"""Command line of the operator benchmark.

python -m sparsefront_kernels.bench --m 4096 --sparsity 0.5 0.9 --granularity 128 --output rows.csv
python -m sparsefront_kernels.bench --batch 1 8 64 --k 768 --n 3072 --output rows.csv --append
python -m sparsefront_kernels.bench --family blocked gathered --granularity 64 --m 256 --output rows.csv
python -m sparsefront_kernels.bench --shape 77x4096x11008 --distribution pattern \\
    --masks sparsefront.pruning.operator_masks:pattern_masks --mask-settings pattern=tile_wise --output rows.csv
python -m sparsefront_kernels.bench --plan experiments/operators/h200.plan --tune --output rows.csv
python -m sparsefront_kernels.bench --compare before.csv after.csv
"""

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from sparsefront_kernels.bench.families import FAMILIES, family_masks
from sparsefront_kernels.bench.masks import Masks, setting
from sparsefront_kernels.bench.peers import PEERS
from sparsefront_kernels.bench.plan import Chosen, Plan
from sparsefront_kernels.bench.problems import BATCHES, Shape, any_shape, chosen_shapes
from sparsefront_kernels.bench.report import report, summary
from sparsefront_kernels.bench.rows import Results, read_rows
from sparsefront_kernels.bench.run import Run
from sparsefront_kernels.bench.timing import require_gpu
from sparsefront_kernels.problem import LAYOUTS
from sparsefront_kernels.tuning import TunedLaunches, tuned_kernel

DTYPE_NAMES = ("fp16", "bf16", "fp32", "tf32")
Read = TypeVar("Read")


def parser() -> argparse.ArgumentParser:
    """All options; every filter takes several values."""
    options = argparse.ArgumentParser(prog="python -m sparsefront_kernels.bench", description=__doc__.splitlines()[0])
    options.add_argument("--shapes", nargs="+", default=[], help="names of shapes, such as M17 or 'small_m8-*'")
    options.add_argument(
        "--shape", nargs="+", type=_sizes, default=[], metavar="MxKxN,...", help="any shape, such as 77x4096x11008"
    )
    for size in ("m", "k", "n"):
        options.add_argument(f"--{size}", nargs="+", type=int, default=[], help=f"only shapes with this {size}")
    options.add_argument(
        "--batch", nargs="+", type=int, default=[], choices=BATCHES, help="BERT's body at these batches"
    )
    options.add_argument("--dtype", nargs="+", default=["fp16"], choices=DTYPE_NAMES, help="of X, W and Y")
    options.add_argument("--sparsity", nargs="+", type=_fraction, default=[0.5, 0.75, 0.9])
    options.add_argument(
        "--family",
        nargs="+",
        default=["gathered"],
        choices=FAMILIES,
        help="whose kernels run; random masks are those of the first, and the others run where they can hold them",
    )
    options.add_argument(
        "--granularity", nargs="+", type=int, default=[], help="of masks: tile, side of a block, m of n:m"
    )
    options.add_argument(
        "--distribution",
        nargs="+",
        default=[],
        help="of masks: a family's random ones, such as equal or uneven; or pattern: what a pattern makes (--masks)",
    )
    options.add_argument(
        "--masks",
        metavar="MODULE:FUNCTION",
        help="what makes them, such as sparsefront.pruning.operator_masks:pattern_masks",
    )
    options.add_argument(
        "--mask-settings",
        nargs="+",
        type=_settings,
        default=[],
        metavar="KEY=VALUE,...",
        help="of that function, such as pattern=tile_wise, a pattern's own settings, or checkpoint=model.safetensors; "
        "without it of the family's random masks, such as inputs=16 of blocks",
    )
    options.add_argument("--layout", nargs="+", default=list(LAYOUTS), choices=LAYOUTS, help="of X and Y")
    options.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS), help="what runs beside")
    options.add_argument(
        "--peer-shapes", nargs="+", type=_peer_shapes, default=[], metavar="PEER=SHAPE,...", help="its only shapes"
    )
    options.add_argument("--kernels", nargs="+", default=[], help="only these of our kernels, such as 'gathered_sm90*'")
    options.add_argument("--tune", action="store_true", help="tune before timing, and keep what was found")
    options.add_argument("--samples", type=int, default=20, help="graph replays per measurement")
    options.add_argument("--commit", default=None, help="of the code, for the rows; asked of git where not given")
    options.add_argument("--output", type=Path, help="CSV to write, row by row")
    options.add_argument(
        "--append", action="store_true", help="keep what the CSV holds, and measure only what it lacks"
    )
    options.add_argument("--tuned-output", type=Path, help="with --tune: JSON to write the launch parameters to")
    options.add_argument("--plan", type=Path, help="file of options, a run in each line, for one process and one CSV")
    options.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "AFTER"), help="two CSVs; runs nothing")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or compare; returns exit code 1 if a product is wrong, or a comparison finds something slower, wrong or missing."""
    arguments = sys.argv[1:] if arguments is None else arguments
    asked = parser().parse_args(arguments)
    if asked.compare:
        text, worse = report(*(read_rows(path) for path in asked.compare))
        print(text)
        return int(worse)
    every = [parser().parse_args([*arguments, *line]) for line in _lines(asked.plan)] if asked.plan else [asked]
    plans = [_plan(one, _shapes(one), _masks(one)) for one in every]
    require_gpu()
    commit = _commit() if asked.commit is None else asked.commit
    results = Results.opened(asked.output, gpu=_gpu(), commit=commit, append=asked.append)
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - began:.1f} s] {line}", file=sys.stderr, flush=True)

    run = Run(results, say, lambda tuned: _save_tuned(tuned, asked.tuned_output))
    for plan in plans:
        run.measure(plan)
    say(f"{len(run.rows)} measurements")
    print("\n".join([summary(run.rows), *(f"ERROR: {error}" for error in run.errors)]))
    return int(bool(run.errors) or not all(row.correct for row in run.rows))


def _plan(asked: argparse.Namespace, shapes: list[Shape], masks: Masks) -> Plan:
    return Plan(
        shapes=tuple(shapes),
        dtypes=tuple(asked.dtype),
        sparsities=tuple(asked.sparsity),
        granularities=_granularities(asked, masks),
        distributions=_distributions(asked, masks),
        peers=tuple(asked.peers),
        chosen=Chosen(tuple(asked.kernels), tuple(asked.layout), tuple(asked.family)),
        tune=asked.tune,
        samples=asked.samples,
        masks=masks,
        peer_shapes=dict(asked.peer_shapes),
    )


def _shapes(asked: argparse.Namespace) -> list[Shape]:
    sized = [shape for shapes in asked.shape for shape in shapes]
    return chosen_shapes(asked.shapes, sized=sized, m=asked.m, k=asked.k, n=asked.n, batch=asked.batch)


def _masks(asked: argparse.Namespace) -> Masks:
    """The requested masks; raises ValueError before anything runs if one of them cannot be made."""
    settings = dict(pair for pairs in asked.mask_settings for pair in pairs)
    masks = Masks.named(family_masks(asked.family[0]), asked.masks, settings)
    for distribution in _distributions(asked, masks):
        for granularity in _granularities(asked, masks):
            masks.source(distribution, granularity)
    return masks


def _distributions(asked: argparse.Namespace, masks: Masks) -> tuple[str, ...]:
    return tuple(asked.distribution) or masks.family.distributions[:1]


def _granularities(asked: argparse.Namespace, masks: Masks) -> tuple[int, ...]:
    return tuple(asked.granularity) or (masks.family.granularity,)


def _lines(path: Path) -> list[list[str]]:
    """Options of each line of a plan; # begins a comment."""
    lines = [shlex.split(line, comments=True) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line]


def _save_tuned(tuned: Iterable[TunedLaunches], path: Path | None) -> None:
    for tunable in tuned:
        tuned_kernel(_gpu(), tunable.kernel, tunable.version).save(path)


def _gpu() -> str:
    return torch.cuda.get_device_name()


def _sizes(text: str) -> list[Shape]:
    return _each(text, any_shape)


def _settings(text: str) -> list[tuple[str, Any]]:
    return _each(text, setting)


def _each(text: str, read: Callable[[str], Read]) -> list[Read]:
    """Parse each element of a comma-separated list."""
    try:
        return [read(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _peer_shapes(text: str) -> tuple[str, tuple[str, ...]]:
    peer, _, shapes = text.partition("=")
    if peer not in PEERS or not shapes:
        raise argparse.ArgumentTypeError(f"{text!r} is not PEER=SHAPE,..., where PEER is one of {', '.join(PEERS)}")
    return peer, tuple(shapes.split(","))


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"sparsity is a fraction of zeros in [0, 1), not {text}")
    return value


def _commit() -> str:
    """The current commit; empty if git cannot tell."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, encoding="utf-8", errors="replace"
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


if __name__ == "__main__":
    sys.exit(main())
