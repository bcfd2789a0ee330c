"""What each part of the way from a fast kernel to a fast network is worth: BERT-base and BERT-large, tile_wise 128, 75 %.

    PYTHONPATH=src:kernels python -m experiments.end_to_end.ablation --out ablation.csv --minutes 8

The lines of the table of the Tile-Wise paper (dense, no transposition, explicit, fused), and one that takes away each thing that
the rewriting does. All lines run as CUDA graphs with sparse kernels in every pruned layer; lines that are there are not measured
again. Other processes may work on the GPU at once, but for the time in which one times.
"""

import copy
import logging
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from experiments.end_to_end.dense import Dense
from experiments.end_to_end.kernel_profile import gemm_share, kernel_times_us, write_profile
from experiments.end_to_end.launches import shipped_launches_only
from experiments.end_to_end.points import Point, Setting
from experiments.end_to_end.pruned import Masks, PrunedInMemory, apply_masks
from experiments.end_to_end.rows import Rows, where_and_when
from experiments.end_to_end.session import Session, free_memory
from experiments.end_to_end.sparse import Errors, Reference, swapped_net
from experiments.end_to_end.study import arguments, log_to_terminal, many_networks, options_of
from experiments.end_to_end.timing import timed_in_turn
from sparsefront.errors import InvalidSetting, failure_reason
from sparsefront.gpu import alone, sharing
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion.block_pass import fuse_blocks
from sparsefront.inference.fusion.plan import ALL_PARTS, FusionParts
from sparsefront.inference.network_modules import release_formats
from sparsefront.measure.end_to_end import find_execution, speedup_of
from sparsefront.measure.timers import summarise
from sparsefront.patterns.tile_wise import SOURCES
from sparsefront.results.store import append_line, read_lines

log = logging.getLogger("ablation")
HERE = Path(__file__).resolve().parent
PLACES = (("bert_large", 32, 384), ("bert_base", 128, 128))
SPARSE = KernelChoice("sparse")
COLUMNS = (
    "model,batch,sequence_length,dtype,sparsity,line,what,latency_ms,latency_p20_ms,latency_p80_ms,dense_latency_ms,dense_variant,"
    "fused_dense_latency_ms,speedup,speedup_low,speedup_high,gemm_share,sparse_flops_share,kernels,layout,outputs_relative_error,error_ratio,"
    "pattern_settings,gpu,torch,commit,date"
).split(",")
WHOLE_TILES = "whole_tiles=true input_multiple=16 aggregate=rms"


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Args:
        name: of the line.
        what: it shows, in a few words.
        parts: of the rewriting; None where layers are swapped one by one.
        kernel: that is forced where layers are swapped one by one; None: the fastest sparse one.
        pattern_settings: of tile_wise; empty: those of the study.
        shipped_launches: launch parameters come from the shipped tables, and none are timed for the tiles at hand.
    """

    name: str
    what: str
    parts: FusionParts | None = ALL_PARTS
    kernel: str | None = None
    pattern_settings: str = ""
    shipped_launches: bool = False


LINES = (
    Line("fused", "everything: joined, fused, compact, in the faster layout"),
    Line("no_transposition", "layer by layer, row-major kernels", None, "gathered_sm90_row_major"),
    Line(
        "explicit", "layer by layer, feature-major kernels between two transposes", None, "gathered_sm90_feature_major"
    ),
    Line("layer_by_layer", "layer by layer, the fastest sparse kernel of each", None),
    Line("feature_major", "everything, feature-major", FusionParts(layouts=("feature_major",))),
    Line("row_major", "everything but the layout", FusionParts(layouts=("row_major",))),
    Line("three_products", "query, key and value are three products", FusionParts(joined=False)),
    Line("separate_gelu", "GELU follows its product, hidden features are not compact", FusionParts(activation=False)),
    Line("separate_residual", "residuals are added after their product", FusionParts(residual=False)),
    Line("not_compact", "hidden features that are pruned are computed and read", FusionParts(compact=False)),
    Line("shipped_launches", "launch parameters of other tiles, from the shipped tables", shipped_launches=True),
    Line(
        "sources_masks",
        "masks of the sources' variant: uneven tiles, a narrow last one",
        pattern_settings=" ".join(f"{key}={str(value).lower()}" for key, value in SOURCES.items()),
    ),
    Line("whole_tiles", "masks of whole tiles, inputs in multiples of 16", pattern_settings=WHOLE_TILES),
)


class Ablation:
    """Measures the lines of one place after the other, against the dense baseline of the study."""

    def __init__(self, session: Session, file: Path) -> None:
        self.session, self.file = session, file
        self.options = session.options

    def run(self, points: Sequence[Point], lines: Sequence[Line], ends_at: float) -> None:
        """Every line of every place that has none yet, until the time is over."""
        for point in points:
            done = {_key(row) for row in read_lines(self.file)}
            for line in lines:
                if (*_place(point), line.name) in done:
                    continue
                if time.monotonic() >= ends_at:
                    log.warning("out of time: call again for the lines that are left")
                    return
                try:
                    with sharing(self.session.device):
                        self.measure(point, line)
                except Exception as error:  # one line must not take the others with it
                    log.error("%s %s failed: %s", point, line.name, failure_reason(error), exc_info=error)
                free_memory()

    def measure(self, point: Point, line: Line) -> None:
        """Swap or rewrite, compare, time, and add the line."""
        start = time.perf_counter()
        point = replace(point, pattern_settings=line.pattern_settings or point.pattern_settings)
        dense, masks = self.session.dense(point), self.session.masks(point)
        masked = apply_masks(copy.deepcopy(dense.net), masks.layers)
        call = None
        with shipped_launches_only() if line.shipped_launches else nullcontext():
            net, facts = rewritten(dense, masked, masks, line)
            if self.options.timed:
                settings = replace(self.options.sparse, dtype=point.dtype, execution_modes=["cuda_graph"])
                call = find_execution(net, dense.inputs, settings).fastest.call
        errors = Reference(dense, masked).errors(net)
        del masked
        log.info("%s %s: %s, error ratio %.3f", point, line.name, facts, errors.ratio)
        if call is None:
            return
        taken = timed_in_turn({"dense": dense.call, "sparse": call}, settings)
        share = self._gemm_share(point, line, call) if self.options.profile else None
        row = line_row(point, line, dense, taken, errors, facts | {"gemm_share": share})
        append_line(self.file, row)
        log.info(
            "%s %s: %s ms, %sx, %.0f s",
            point,
            line.name,
            row["latency_ms"],
            row["speedup"],
            time.perf_counter() - start,
        )

    def _gemm_share(self, point: Point, line: Line, call: Callable[[], Any]) -> float | None:
        try:
            with alone(self.session.device):
                times_us = kernel_times_us(call)
        except Exception as error:  # costs a column, not the line
            log.warning("no profile: %s", failure_reason(error))
            return None
        write_profile(self.file.with_suffix(".profile.csv"), point.columns, line.name, times_us)
        return gemm_share(times_us)


def rewritten(dense: Dense, masked: nn.Module, masks: Masks, line: Line) -> tuple[nn.Module, dict[str, Any]]:
    """A network as the line wants it, and what was done."""
    if line.parts is None:
        choice = KernelChoice("sparse", fuse=False, name=_here(line.kernel, masked))
        net, report = swapped_net(dense, masked, masks, choice)
        kernels, layout, share = report.kernels, report.fusion.layout, report.sparse_flops_share
    else:
        net = copy.deepcopy(masked)
        export = PrunedInMemory(masked, masks)
        formats = {name: export.format(name) for name in masks.layers}
        report = fuse_blocks(net, formats, masks.layers, dense.inputs, SPARSE, parts=line.parts)
        release_formats(net)
        if not report.rewritten:
            raise RuntimeError(f"no block was rewritten: {report.summary()}")
        names = [product.kernel for product in report.product_of.values()]
        kernels, layout = {name: names.count(name) for name in dict.fromkeys(names)}, report.layout
        sparse = [name for name, product in report.product_of.items() if product.family != "dense"]
        share = sum(map(_size_in(masked), sparse)) / sum(map(_size_in(masked), dense.network.prunable))
    return net, {"kernels": kernels, "layout": layout, "sparse_flops_share": share}


def line_row(
    point: Point, line: Line, dense: Dense, taken: dict[str, list[list[float]]], errors: Errors, facts: dict[str, Any]
) -> dict[str, str]:
    """A line of the CSV."""
    ours, theirs = (summarise(sum(taken[side], [])) for side in ("sparse", "dense"))
    interval = speedup_of(taken["dense"], taken["sparse"]).to_json()
    share = facts["gemm_share"]
    row = {name: value for name, value in point.columns.items() if name in COLUMNS}
    return (
        row
        | where_and_when()
        | {name: f"{value:.4f}" for name, value in interval.items()}
        | {
            "line": line.name,
            "what": line.what,
            "latency_ms": f"{ours.median_ms:.4f}",
            "latency_p20_ms": f"{ours.p20_ms:.4f}",
            "latency_p80_ms": f"{ours.p80_ms:.4f}",
            "dense_latency_ms": f"{theirs.median_ms:.4f}",
            "dense_variant": dense.variant,
            "fused_dense_latency_ms": "" if dense.fused_latency_ms is None else f"{dense.fused_latency_ms:.4f}",
            "gemm_share": "" if share is None else f"{share:.4f}",
            "sparse_flops_share": f"{facts['sparse_flops_share']:.4f}",
            "kernels": " ".join(f"{name}:{count}" for name, count in facts["kernels"].items()),
            "layout": facts["layout"],
            "outputs_relative_error": f"{errors.outputs:.3e}",
            "error_ratio": f"{errors.ratio:.3f}",
        }
    )


def _here(kernel: str | None, net: nn.Module) -> str | None:
    """The forced kernel; on a CPU, where a dry run compares references, none."""
    return kernel if next(net.parameters()).is_cuda else None


def _size_in(net: nn.Module) -> Callable[[str], int]:
    """Linears of one network have equally many rows: flops go as weights."""
    return lambda name: net.get_submodule(name).weight.numel()


def _place(point: Point) -> tuple[str, ...]:
    columns = point.columns
    return columns["model"], columns["batch"], columns["sequence_length"], columns["dtype"], columns["sparsity"]


def _key(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in ("model", "batch", "sequence_length", "dtype", "sparsity", "line"))


def main() -> int:
    parser = arguments()
    parser.description = __doc__.splitlines()[0]
    parser.set_defaults(out=HERE / "ablation.csv")
    parser.add_argument(
        "--lines", nargs="+", default=[line.name for line in LINES], choices=[line.name for line in LINES]
    )
    parser.add_argument(
        "--models", nargs="+", default=[model for model, *_ in PLACES], choices=[model for model, *_ in PLACES]
    )
    asked = parser.parse_args()
    log_to_terminal()
    points = [
        Point(
            model,
            batch,
            length,
            "fp16",
            Setting("tile_wise", 128, 0.75),
            "sparse",
            pattern_settings=asked.pattern_settings,
        )
        for model, batch, length in PLACES
        if model in asked.models
    ]
    session = Session(Rows(asked.out), options_of(asked))
    ends_at = time.monotonic() + 60 * asked.minutes
    with many_networks():
        Ablation(session, asked.out).run(points, [line for line in LINES if line.name in asked.lines], ends_at)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InvalidSetting as error:
        sys.exit(str(error))
