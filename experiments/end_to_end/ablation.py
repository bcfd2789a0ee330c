"""What each part of the way from a fast kernel to a fast network is worth: BERT-base and BERT-large, tile_wise 128, 75 %.

    PYTHONPATH=src:kernels python -m experiments.end_to_end.ablation --out ablation.csv --minutes 8

The lines of the table of the Tile-Wise paper (dense, no transposition, explicit, fused), and one that takes away each thing that
the rewriting does. All lines run as CUDA graphs with sparse kernels in every pruned layer; lines that are there are not measured
again. Other processes may work on the GPU at once, but for the time in which one times.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from sparsefront_kernels import entries
from sparsefront_kernels.tuning.launches import TunedLaunches, forget_choices
from sparsefront_kernels.tuning.store import SHIPPED, file_name, tuned_kernel

import sparsefront as sf
from experiments.end_to_end.points import Point, Setting
from experiments.end_to_end.study import (
    Options,
    arguments,
    calls_of,
    error_cells,
    log,
    options_of,
    report_cells,
    run,
    select_points,
    times_cells,
)
from experiments.harness import runs
from experiments.harness.rows import append_line, read_lines, values_of, where_and_when
from sparsefront.errors import InvalidSetting
from sparsefront.inference import swap
from sparsefront.inference.fusion import product_choice
from sparsefront.inference.fusion.block_pass import fuse_blocks
from sparsefront.inference.fusion.plan import ALL_PARTS, FusionParts
from sparsefront.inference.swap_report import SwapReport
from sparsefront.measure import timers
from sparsefront.measure.end_to_end import set_decided_versions
from sparsefront.patterns.tile_wise import SOURCES

HERE = Path(__file__).resolve().parent
PLACES = (("bert_large", 32, 384), ("bert_base", 128, 128))
COLUMNS = (
    "model,batch,sequence_length,dtype,sparsity,pattern_settings,gpu,torch,commit,date,speedup,speedup_low,"
    "speedup_high,line,what,latency_ms,latency_p20_ms,latency_p80_ms,dense_latency_ms,dense_variant,"
    "fused_dense_latency_ms,gemm_share,sparse_flops_share,kernels,layout,outputs_relative_error,error_ratio"
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


@contextmanager
def conditions(line: Line) -> Iterator[None]:
    """Inside, a swap rewrites blocks as the line says, with its launch parameters."""
    with ExitStack() as stack:
        if line.shipped_launches:
            stack.enter_context(shipped_launches_only())
        if line.parts is not None:
            stack.enter_context(patch.object(swap, "fuse_blocks", partial(fuse_blocks, parts=line.parts)))
        yield


def choice_of(line: Line, device: torch.device) -> sf.KernelChoice:
    """Sparse kernels; on a CPU, where a dry run compares references, none is forced."""
    fuses = line.parts is not None
    return sf.KernelChoice("sparse", fuse=fuses, name=line.kernel if device.type == "cuda" else None)


def measure(point: Point, options: Options, line: Line) -> None:
    """Swap or rewrite, compare, time, and add the line.

    Raises:
        RuntimeError: no block was rewritten where the line says so.
    """
    point = replace(point, pattern_settings=line.pattern_settings or point.pattern_settings)
    pruned = options.prepare(point)
    with conditions(line):
        report = options.swap(pruned, choice_of(line, options.device), reuse=False)
        if line.parts is not None and not report.fusion.rewritten:
            raise RuntimeError(f"no block was rewritten: {report.fusion.summary()}")
        cells = error_cells(pruned.errors())
        log.info("%s %s: kernels %s, error ratio %s", point, line.name, report.kernels, cells["error_ratio"])
        if not options.timed:
            return
        settings = replace(options.settings, device=options.device.type, dtype=point.dtype)
        set_decided_versions(pruned.net, pruned.inputs, settings, ["cuda_graph"])
        comparison = options.benchmark(pruned)
    calls = {line.name: calls_of(comparison)["sparse"]}
    cells |= times_cells(comparison, options.profile_calls(point, calls)) | where_and_when(options.device)
    append_line(options.file, line_row(point, line, report, cells))


def line_row(point: Point, line: Line, report: SwapReport, cells: Mapping[str, str]) -> dict[str, Any]:
    """A line of the CSV, with these cells of its measurement."""
    row = point.columns | {"line": line.name, "what": line.what} | report_cells(report) | cells
    return {name: row[name] for name in COLUMNS}


def main() -> int:
    parser = arguments(__doc__, HERE / "ablation.csv")
    names, models = [line.name for line in LINES], [model for model, *_ in PLACES]
    parser.add_argument("--lines", nargs="+", default=names, choices=names)
    parser.add_argument("--models", nargs="+", default=models, choices=models)
    asked = parser.parse_args()
    setting, places = Setting("tile_wise", 128, 0.75), [place for place in PLACES if place[0] in asked.models]
    points = [Point(*place, "fp16", setting, "sparse") for place in places]
    options, ends_at, status = options_of(asked), runs.ends_at(asked.minutes), 0
    for point in select_points(asked, points):
        done = {values_of(row, KEY) for row in read_lines(asked.out)}
        for line in LINES:
            if line.name in asked.lines and values_of(point.columns | {"line": line.name}, KEY) not in done:
                status |= run(partial(measure, line=line), [point], options, ends_at)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InvalidSetting as error:
        sys.exit(str(error))
