"""End-to-end latency of pruned networks beside the fastest dense version: whole BERTs and ViTs with random weights.

    PYTHONPATH=src:kernels python -m experiments.end_to_end.study --out h200.csv --minutes 8

Each row is pruned, swapped and timed by `sf.prune`, `sf.swap` and `sf.benchmark`. Needs torch, transformers, torchvision and a
CUDA GPU, no network and no training. A row is written as soon as it is measured and never measured again. --dry-run measures
nothing: it swaps and compares, on a CPU too.
"""

import argparse
import gc
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import sparsefront as sf
from experiments.end_to_end.networks import Errors, Pruned
from experiments.end_to_end.points import TARGETS, Point, all_points
from experiments.harness import runs
from experiments.harness.measure import gemm_share, kernel_times_us, write_profile
from experiments.harness.rows import append_line, read_lines, where_and_when
from sparsefront.errors import InvalidSetting, failure_reason
from sparsefront.gpu import exclusive
from sparsefront.inference.swap_report import SwapReport
from sparsefront.measure.problems import theoretical_dense_flops
from sparsefront.measure.settings import DTYPES

log = logging.getLogger("study")
HERE = Path(__file__).resolve().parent
MODES = ["cuda_graph", "compile_cuda_graph"]
COLUMNS = (
    "model,batch,sequence_length,dtype,pattern,granularity,distribution,group_m,sparsity,allocation,min_layer_density,"
    "kernel_mode,latency_ms,latency_p20_ms,latency_p80_ms,dense_latency_ms,dense_variant,fused_dense_latency_ms,speedup,"
    "gemm_share,sparse_flops_share,kernels,outputs_relative_error,gpu,torch,commit,date,"
    # beyond what was asked for
    "pattern_settings,attention_mask,sparsity_achieved,speedup_low,speedup_high,sparse_variant,dense_outputs_relative_error,"
    "error_ratio,logits_relative_error,dense_logits_relative_error,layout,fused_blocks,block_variants_ms,seconds"
).split(",")


@dataclass(frozen=True)
class Options:
    """How rows are measured.

    Args:
        file: the CSV.
        settings: of `sf.swap` and `sf.benchmark`; dtype and sizes are taken from the rows.
        seconds: of each of their searches.
        timed: False for a dry run: networks are swapped and compared, and nothing else.
        profile: whether the kernels of each row are written beside it.
        tiny: networks of two narrow layers, to try the study itself.
    Raises:
        InvalidSetting: there is no GPU and something is to be timed: a latency of a CPU never stands for one of a GPU; or tiny
            networks would be timed.
    """

    file: Path
    settings: sf.Measure
    seconds: float = 60.0
    timed: bool = True
    profile: bool = False
    tiny: bool = False

    def __post_init__(self) -> None:
        if self.tiny and self.timed:
            raise InvalidSetting("tiny", True, "is for --dry-run: rows are of whole networks")
        if self.timed and self.device.type != "cuda":
            allowed = "rows are latencies of a GPU: use a CUDA device, or --dry-run"
            raise InvalidSetting("device", self.device.type, allowed)

    @property
    def device(self) -> torch.device:
        return self.settings.torch_device

    def prepare(self, point: Point) -> Pruned:
        dtype = DTYPES[point.dtype] if self.device.type == "cuda" else torch.float32
        return Pruned(point, self.device, dtype, tiny=self.tiny)

    def swap(self, pruned: Pruned, kernel: str | sf.KernelChoice, **more: Any) -> SwapReport:
        """`sf.swap` of the pruned network."""
        more |= {"settings": self.settings, "seconds": self.seconds, "tell": log.info}
        return sf.swap(pruned.net, pruned.masks, pruned.inputs, kernel=kernel, **more)

    def benchmark(self, pruned: Pruned, **more: Any) -> sf.Comparison:
        """`sf.benchmark` of both networks."""
        more |= {"settings": self.settings, "seconds": self.seconds, "tell": log.info}
        return sf.benchmark(pruned.dense, pruned.net, pruned.inputs, **more)

    def profile_calls(self, point: Point, calls: Mapping[str, Callable[[], Any]]) -> float | None:
        """The share of products in the last call's time, after the kernels of each are written beside the rows."""
        share = None
        for side, call in calls.items() if self.profile else ():
            try:
                with exclusive(self.device):
                    times_us = kernel_times_us(call)
            except Exception as error:
                log.warning("%s: no profile: %s", point, failure_reason(error))
                continue
            write_profile(self.file.with_suffix(".profile.csv"), point.columns, side, times_us)
            share = gemm_share(times_us)
        return share

    def has(self, point: Point) -> bool:
        """Whether the file has the row of a point."""
        rows = read_lines(self.file)
        return any(all(row.get(name) == value for name, value in point.columns.items()) for row in rows)


def measure(point: Point, options: Options) -> None:
    """Add the row of a point, and the one with forced sparse kernels where those are what `auto` chose everywhere.

    Raises:
        Exception: whatever fails on the way.
    """
    start = time.perf_counter()
    pruned = options.prepare(point)
    report = options.swap(pruned, point.kernel_mode)
    errors = pruned.errors()
    log.info("%s: kernels %s, share %.3f", point, report.kernels, sparse_share(report))
    log.info("  blocks %s, errors %s, ratio %.3f", report.fusion.summary(), errors, errors.ratio)
    if not options.timed:
        return
    forced = [replace(point, kernel_mode="sparse")] if sparse_share(report) == 1 else []
    for row in dict.fromkeys((point, *forced)):
        if row == point or not options.has(row):
            comparison = options.benchmark(pruned)
            share = options.profile_calls(row, calls_of(comparison))
            cells = times_cells(comparison, share) | {"seconds": f"{time.perf_counter() - start:.1f}"}
            cells |= row.columns | report_cells(report) | error_cells(errors) | network_cells(pruned)
            cells |= where_and_when(options.device)
            append_line(options.file, {name: cells[name] for name in COLUMNS})
            start = time.perf_counter()


def sparse_share(report: SwapReport) -> float:
    """Fraction of the dense flops of prunable layers that run in sparse kernels."""
    flops = {name: theoretical_dense_flops(seen.problem) for name, seen in report.problems.items()}
    sparse = [name for name, layer in report.layers.items() if layer.is_sparse]
    return sum(flops.get(name, 0) for name in sparse) / sum(flops.values()) if flops else 0.0


def calls_of(comparison: sf.Comparison) -> dict[str, Callable[[], Any]]:
    """Side -> what runs it in its fastest execution."""
    timed = comparison.timed
    return {"dense": timed.dense.execution.fastest.call, "sparse": timed.execution.fastest.call}


def times_cells(comparison: sf.Comparison, share: float | None) -> dict[str, str]:
    """Columns of latencies, executions, the speedup with its range, and the share of products."""
    timed, fused = comparison.timed, comparison.timed.dense.fused_latency
    names = ("latency_ms", "latency_p20_ms", "latency_p80_ms")
    times = dict(zip(names, (timed.sparse.median_ms, timed.sparse.p20_ms, timed.sparse.p80_ms), strict=True))
    times |= {"dense_latency_ms": comparison.dense_ms, "gemm_share": share} | timed.speedup.to_json()
    times |= {"fused_dense_latency_ms": None if fused is None else fused.median_ms}
    variant = f"dense: {timed.execution.name}" if timed.left_dense else timed.execution.name
    cells = {name: "" if value is None else f"{value:.4f}" for name, value in times.items()}
    return cells | {"dense_variant": timed.dense.execution.name, "sparse_variant": variant}


def report_cells(report: SwapReport) -> dict[str, str]:
    """Columns of what was swapped."""
    fusion = report.fusion
    variants_ms = (pair for times_ms in fusion.variants_ms.values() for pair in times_ms.items())
    return {
        "sparse_flops_share": f"{sparse_share(report):.4f}",
        "kernels": " ".join(f"{name}:{count}" for name, count in report.kernels.items()),
        "layout": fusion.layout,
        "fused_blocks": " | ".join(f"{count} x {line}" for line, count in fusion.summary().items()),
        "block_variants_ms": " ".join(f"{name}={ms:.3f}" for name, ms in variants_ms),
    }


def error_cells(errors: Errors) -> dict[str, str]:
    """Columns of errors."""
    return {
        "outputs_relative_error": f"{errors.outputs:.3e}",
        "dense_outputs_relative_error": f"{errors.dense_outputs:.3e}",
        "error_ratio": f"{errors.ratio:.3f}",
        "logits_relative_error": f"{errors.logits:.3e}",
        "dense_logits_relative_error": f"{errors.dense_logits:.3e}",
    }


def network_cells(pruned: Pruned) -> dict[str, str]:
    """Columns of the masks; survivors may be anywhere (free), or balanced."""
    pattern = pruned.pattern
    return {
        "distribution": getattr(pattern, "distribution", "balanced" if pattern.balanced else "free"),
        "min_layer_density": f"{min(pruned.densities, default=1.0):.4f}",
        "sparsity_achieved": f"{pruned.masks.sparsity:.4f}",
    }


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
        words = set(word.split(","))
        pool = [point for point in points if "targets" not in words or point in targets]
        matches = [point for point in pool if words - {"targets"} <= {*point.columns.values(), point.size}]
        if not matches:
            raise InvalidSetting("only", word, "fits no row; say values of its columns, such as bert_large,32x384,0.75")
        chosen |= dict.fromkeys(matches)
    return list(chosen)


def run(measure: Callable[[Point, Options], None], points: Sequence[Point], options: Options, ends_at: float) -> int:
    """Measure rows that the file does not have, until the time is over; the exit status: 1 if one failed."""
    status = 0
    for point in points:
        if options.has(point):
            continue
        if runs.over(ends_at):
            log.warning("out of time: call again for the rows that are left")
            break
        try:
            measure(point, options)
        except Exception as error:  # one row must not take the others with it
            log.error("%s failed: %s", point, failure_reason(error), exc_info=error)
            status = 1
        free_memory()
    return status


def free_memory() -> None:
    """Give back what nothing refers to any more: CUDA graphs of the last row hold gigabytes."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def arguments(description: str, out: Path) -> argparse.ArgumentParser:
    """The command line, which the other programs share."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--out", type=Path, default=out)
    runs.add_options(parser)
    parser.add_argument(
        "--only", nargs="+", default=[], help="targets, or values of columns: bert_large,32x384,fp16,0.75"
    )
    parser.add_argument("--profile", action="store_true", help="kernels of each row, and its gemm_share")
    parser.add_argument("--dry-run", action="store_true", help="swap and compare, time nothing")
    parser.add_argument("--tiny", action="store_true", help="networks of two narrow layers, with --dry-run only")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each search, of sf.swap and sf.benchmark")
    parser.add_argument("--pattern-settings", default="", help="of tile_wise: 'whole_tiles=true input_multiple=16'")
    return parser


def options_of(asked: argparse.Namespace) -> Options:
    """How rows are measured; raises as `Options`. Progress goes to the terminal from here on."""
    form = "%(asctime)s %(name)s %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, datefmt="%H:%M:%S", stream=sys.stderr)
    modes = MODES if torch.cuda.is_available() else ["eager"]
    settings = sf.Measure(execution_modes=modes, warmup=3, samples=20, repeats=5)
    return Options(asked.out, settings, asked.seconds, not asked.dry_run, asked.profile, asked.tiny)


def select_points(asked: argparse.Namespace, points: Sequence[Point]) -> list[Point]:
    """The points that the command line names, with its pattern settings."""
    return [
        replace(point, pattern_settings=asked.pattern_settings) if point.setting.pattern == "tile_wise" else point
        for point in select(points, asked.only)
    ]


def main(
    measure: Callable[[Point, Options], None] = measure,
    points: Sequence[Point] = (),
    description: str = __doc__,
    out: Path = HERE / "h200.csv",
) -> int:
    """The exit status."""
    asked = arguments(description, out).parse_args()
    try:
        points = select_points(asked, points or all_points())
        return run(measure, points, options_of(asked), runs.ends_at(asked.minutes))
    except InvalidSetting as error:
        sys.exit(str(error))


if __name__ == "__main__":
    sys.exit(main())
