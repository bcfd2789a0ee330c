"""End-to-end latency of pruned networks beside the fastest dense version: whole BERTs and ViTs with random weights.

    PYTHONPATH=src:kernels python -m experiments.end_to_end.study --out h200.csv --minutes 8

Needs torch, transformers, torchvision and a CUDA GPU, no network and no training. A row is written as soon as it is measured
and never measured again. --dry-run measures nothing: it swaps and compares, on a CPU too.
"""

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from experiments.end_to_end.points import TARGETS, Point, all_points
from experiments.end_to_end.session import Options, Rows, Session, free_memory
from experiments.harness import runs
from sparsefront.errors import InvalidSetting, failure_reason
from sparsefront.measure.settings import Measure
from sparsefront.measure.variants import VARIANTS

log = logging.getLogger("study")
HERE = Path(__file__).resolve().parent
MOST_RECOMPILES = 1024
MODES = ["cuda_graph", "compile_cuda_graph"]
OF_CONVOLUTIONS = ("folded_batch_norm", "fused_epilogue", "patch_product")  # a swap fuses the others


def select(points: Sequence[Point], only: Sequence[str]) -> list[Point]:
    """The points of which some word of `only` says all that it says: "targets", or "bert_large,fp16,tile_wise,0.75".

    Raises:
        InvalidSetting: a word that fits no point.
    """
    if not only:
        return list(points)
    targets = {target.point for target in TARGETS}
    chosen: dict[Point, None] = {}
    for word in only:
        words = set(word.split(",")) - {"targets"}
        pool = [point for point in points if point in targets] if "targets" in word.split(",") else points
        matches = [point for point in pool if words <= {*point.columns.values(), point.size}]
        if not matches:
            raise InvalidSetting("only", word, "fits no row; say values of its columns, such as bert_large,32x384,0.75")
        chosen |= dict.fromkeys(matches)
    return list(chosen)


def left_over(points: Sequence[Point], rows: Rows) -> list[Point]:
    """Those without a row."""
    return [point for point in points if not rows.has(point)]


def run(session: Session, points: Sequence[Point], ends_at: float) -> int:
    """Measure until the time is over; the exit status: 1 if a row failed."""
    status = 0
    for index, point in enumerate(points):
        if session.rows.has(point):  # written beside another row
            continue
        if runs.over(ends_at):
            log.warning("out of time: %d rows are left for the next call", len(points) - index)
            break
        try:
            session.measure(point)
        except Exception as error:  # one row must not take the others with it
            log.error("%s failed: %s", point, failure_reason(error), exc_info=error)
            status = 1
        free_memory()
    return status


def options_of(asked: argparse.Namespace) -> Options:
    """How rows are measured.

    Raises:
        InvalidSetting: tiny networks that would be timed.
    """
    if asked.tiny and not asked.dry_run:
        raise InvalidSetting("tiny", True, "is for --dry-run: rows are of whole networks")
    if torch.cuda.is_available():
        shared = {"warmup": 3, "samples": 20, "repeats": 5, "autotune_seconds": asked.autotune_seconds}
        dense, sparse = (
            Measure(execution_modes=MODES, variants=list(names), **shared) for names in (VARIANTS, OF_CONVOLUTIONS)
        )
    else:
        dense = sparse = Measure(execution_modes=["eager"], variants=[])
    return Options(
        dense,
        sparse,
        timed=not asked.dry_run,
        profile=asked.profile,
        tiny=asked.tiny,
        masked=asked.attention_mask != "none",
    )


def arguments() -> argparse.ArgumentParser:
    """The command line; the ablation takes the same."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "h200.csv")
    runs.add_options(parser)
    parser.add_argument(
        "--only", nargs="+", default=[], help="targets, or values of columns: bert_large,32x384,fp16,0.75"
    )
    parser.add_argument("--profile", action="store_true", help="kernels of each row, and its gemm_share")
    parser.add_argument("--dry-run", action="store_true", help="swap and compare, time nothing")
    parser.add_argument("--tiny", action="store_true", help="networks of two narrow layers, with --dry-run only")
    parser.add_argument(
        "--autotune-seconds", type=float, default=10.0, help="of the search, beyond what is always tried"
    )
    parser.add_argument("--attention-mask", default="none", choices=("none", "full", "padded"))
    parser.add_argument("--allocation", default="per_layer", choices=("per_layer", "global_threshold"))
    parser.add_argument("--pattern-settings", default="", help="of tile_wise: 'whole_tiles=true input_multiple=16'")
    return parser


def asked_points(asked: argparse.Namespace) -> list[Point]:
    """The rows of the study with what the command line changes in all of them."""
    return [
        replace(
            point,
            allocation=asked.allocation,
            attention_mask="none" if point.sequence_length is None else asked.attention_mask,
            pattern_settings=asked.pattern_settings if point.setting.pattern == "tile_wise" else "",
        )
        for point in select(all_points(), asked.only)
    ]


@contextmanager
def many_networks() -> Iterator[None]:
    """No gradients, and as many compiled networks in one process as a study makes.

    Past its limit Dynamo would run eager code and say nothing.
    """
    limits = {"recompile_limit": MOST_RECOMPILES, "accumulated_recompile_limit": MOST_RECOMPILES}
    with torch.no_grad(), torch._dynamo.config.patch(limits):
        yield


def log_to_terminal() -> None:
    form = "%(asctime)s %(name)s %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, datefmt="%H:%M:%S", stream=sys.stderr)


def main() -> int:
    asked = arguments().parse_args()
    log_to_terminal()
    options, rows = options_of(asked), Rows(asked.out)
    session = Session(rows, options)  # says before any work what cannot be measured
    points = left_over(asked_points(asked), rows)
    log.info("%d rows to measure, %d are there", len(points), len(rows.rows))
    ends_at = runs.ends_at(asked.minutes)
    with many_networks():
        return run(session, points, ends_at)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InvalidSetting as error:
        sys.exit(str(error))
