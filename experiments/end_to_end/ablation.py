"""What each part of the way from a fast kernel to a fast network is worth: BERT-base and BERT-large, tile_wise 128, 75 %.

    PYTHONPATH=src:kernels python -m experiments.end_to_end.ablation --out ablation.csv --minutes 8

The lines of the table of the Tile-Wise paper (dense, no transposition, explicit, fused), and one that takes away each thing that
the rewriting does. All lines run as CUDA graphs with sparse kernels in every pruned layer; lines that are there are not measured
again. Other processes may work on the GPU at once, but for the time in which one times.
"""

import copy
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from sparsefront_kernels import entries
from sparsefront_kernels.tuning.launches import TunedLaunches, forget_choices
from sparsefront_kernels.tuning.store import SHIPPED, file_name, tuned_kernel
from torch import nn

from experiments.end_to_end.dense import Dense
from experiments.end_to_end.networks import Masks, PrunedInMemory, apply_masks
from experiments.end_to_end.points import Point, Setting
from experiments.end_to_end.session import Rows, Session, Timed, error_cells, free_memory, kernels_text, times_cells
from experiments.end_to_end.sparse import Errors, Reference, swapped_net
from experiments.end_to_end.study import arguments, log_to_terminal, many_networks, options_of
from experiments.harness import runs
from experiments.harness.measure import timed_in_turn
from experiments.harness.rows import append_line, read_lines, values_of, where_and_when
from sparsefront.errors import InvalidSetting, failure_reason
from sparsefront.gpu import share_gpu
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion import product_choice
from sparsefront.inference.fusion.block_pass import fuse_blocks
from sparsefront.inference.fusion.plan import ALL_PARTS, FusionParts
from sparsefront.inference.network_modules import release_formats
from sparsefront.measure import timers
from sparsefront.measure.end_to_end import find_execution
from sparsefront.patterns.tile_wise import SOURCES

log = logging.getLogger("ablation")
HERE = Path(__file__).resolve().parent
PLACES = (("bert_large", 32, 384), ("bert_base", 128, 128))
SPARSE = KernelChoice("sparse")
COLUMNS = (
    "model,batch,sequence_length,dtype,sparsity,line,what,latency_ms,latency_p20_ms,latency_p80_ms,dense_latency_ms,dense_variant,"
    "fused_dense_latency_ms,speedup,speedup_low,speedup_high,gemm_share,sparse_flops_share,kernels,layout,outputs_relative_error,error_ratio,"
    "pattern_settings,gpu,torch,commit,date"
).split(",")
KEY = ("model", "batch", "sequence_length", "dtype", "sparsity", "line")
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


@contextmanager
def shipped_launches_only() -> Iterator[None]:
    """Inside, no launch parameters are timed, and those that this GPU measured for itself do not count."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    shipped_file = SHIPPED / file_name(gpu)
    shipped = json.loads(shipped_file.read_text(encoding="utf-8"))["kernels"] if shipped_file.is_file() else {}
    before = {}
    tunables = {entry.tunable_in(layout) for entry in entries() for layout in entry.layouts}
    for tunable in (one for one in tunables if isinstance(one, TunedLaunches)):
        table = tuned_kernel(gpu, tunable.kernel, tunable.version)
        before[tunable.kernel] = table, dict(table.entries), dict(table.trials)
        content = shipped.get(tunable.kernel, {})
        table.entries.clear()
        table.trials.clear()
        table.entries.update(content.get("entries", {}) if content.get("version") == tunable.version else {})
    forget_choices()
    try:
        with (
            patch.object(timers, "find_untried", lambda *given: None),
            patch.object(product_choice, "assume_launch", lambda *given: None),
        ):
            yield
    finally:
        for table, entries_before, trials_before in before.values():
            table.entries.clear()
            table.entries.update(entries_before)
            table.trials.clear()
            table.trials.update(trials_before)
        forget_choices()


class Ablation:
    """Measures the lines of one place after the other, against the dense baseline of the study."""

    def __init__(self, session: Session, file: Path) -> None:
        self.session, self.file = session, file
        self.options = session.options

    def run(self, points: Sequence[Point], lines: Sequence[Line], ends_at: float) -> None:
        """Every line of every place that has none yet, until the time is over."""
        for point in points:
            done = {values_of(row, KEY) for row in read_lines(self.file)}
            for line in lines:
                if values_of(point.columns | {"line": line.name}, KEY) in done:
                    continue
                if runs.over(ends_at):
                    log.warning("out of time: call again for the lines that are left")
                    return
                try:
                    with share_gpu(self.session.device):
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
        share = self.session.profile(point, line.name, call) if self.options.profile else None
        row = line_row(point, line, dense, Timed(taken["dense"], taken["sparse"], share), errors, facts)
        append_line(self.file, row)
        log.info(
            "%s %s: %s ms, %sx, %.0f s",
            point,
            line.name,
            row["latency_ms"],
            row["speedup"],
            time.perf_counter() - start,
        )


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
    point: Point, line: Line, dense: Dense, timed: Timed, errors: Errors, facts: dict[str, Any]
) -> dict[str, str]:
    """A line of the CSV."""
    row = {name: value for name, value in point.columns.items() if name in COLUMNS}
    row |= where_and_when() | times_cells(timed, dense.fused_latency_ms) | error_cells(errors)
    return row | {
        "line": line.name,
        "what": line.what,
        "dense_variant": dense.variant,
        "sparse_flops_share": f"{facts['sparse_flops_share']:.4f}",
        "kernels": kernels_text(facts["kernels"]),
        "layout": facts["layout"],
    }


def _here(kernel: str | None, net: nn.Module) -> str | None:
    """The forced kernel; on a CPU, where a dry run compares references, none."""
    return kernel if next(net.parameters()).is_cuda else None


def _size_in(net: nn.Module) -> Callable[[str], int]:
    """Linears of one network have equally many rows: flops go as weights."""
    return lambda name: net.get_submodule(name).weight.numel()


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
    setting, more = Setting("tile_wise", 128, 0.75), {"pattern_settings": asked.pattern_settings}
    points = [
        Point(model, batch, length, "fp16", setting, "sparse", **more)
        for model, batch, length in PLACES
        if model in asked.models
    ]
    session = Session(Rows(asked.out), options_of(asked))
    ends_at = runs.ends_at(asked.minutes)
    with many_networks():
        Ablation(session, asked.out).run(points, [line for line in LINES if line.name in asked.lines], ends_at)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InvalidSetting as error:
        sys.exit(str(error))
