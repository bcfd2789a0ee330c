"""The session of a call, which measures rows and writes each at once, so that a stopped study goes on where it was.

Rows share the network, its dense baseline and its masks, which are made when a row asks for other ones.
"""

import gc
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from experiments.end_to_end.dense import Dense, find_dense, without_timing
from experiments.end_to_end.networks import Masks, Network, build, distribution_of, prune
from experiments.end_to_end.points import Point
from experiments.end_to_end.sparse import Errors, Sparse, make_sparse, without_kernels
from experiments.harness.measure import Steps, kernel_times_us, timed_in_turn
from experiments.harness.rows import append_line, read_lines, replace_lines, where_and_when
from sparsefront.artifacts.lease import held_alone
from sparsefront.errors import InvalidSetting, failure_reason
from sparsefront.gpu import exclusive, share_gpu
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion.product_choice import TimedProducts
from sparsefront.inference.whole_network import why_dense
from sparsefront.measure.settings import DTYPES, Measure
from sparsefront.measure.speedup import speedup_of
from sparsefront.measure.timers import summarize
from sparsefront.progress import record_spans

log = logging.getLogger(__name__)
ALL_SPARSE = 0.999  # of the flops: then forcing sparse kernels changes nothing
MOST_MASKS = 8
COLUMNS = (
    "model,batch,sequence_length,dtype,pattern,granularity,distribution,group_m,sparsity,allocation,min_layer_density,"
    "kernel_mode,latency_ms,latency_p20_ms,latency_p80_ms,dense_latency_ms,dense_variant,fused_dense_latency_ms,speedup,"
    "gemm_share,sparse_flops_share,kernels,outputs_relative_error,gpu,torch,commit,date,"
    # beyond what was asked for
    "pattern_settings,attention_mask,sparsity_achieved,speedup_low,speedup_high,sparse_variant,dense_outputs_relative_error,"
    "error_ratio,logits_relative_error,dense_logits_relative_error,layout,fused_blocks,block_variants_ms,seconds"
).split(",")
MOST = 12  # kernels of a profile that are named
# Products with weights, whoever's: cuBLAS (nvjet, cutlass, gemm, xmma), cuSPARSELt (sparse ones among them), ours.
PRODUCT = re.compile(
    r"gemm|nvjet|cutlass|xmma|wgmma|gemv|gathered|blocked|(?<![a-z])(n_m|csr|ell)_|spmm|bsr|splitk|sparse",
    re.IGNORECASE,
)
NO_PRODUCT = re.compile(r"fmha|flash|attention|mha_|softmax", re.IGNORECASE)


@dataclass(frozen=True)
class Options:
    """How rows are measured.

    Args:
        dense, sparse: which ways to run a network are searched; dtype and sizes are taken from the rows.
        timed: False for a dry run: networks are swapped and compared, and nothing else.
        profile: whether the kernels of each row are written beside it.
        tiny: networks of two narrow layers, to try the study itself.
        masked: whether texts come with an attention mask.
    """

    dense: Measure
    sparse: Measure
    timed: bool = True
    profile: bool = False
    tiny: bool = False
    masked: bool = False


@dataclass(frozen=True)
class Timed:
    """Samples in milliseconds, one list per repeat, taken in turn; `gemm_share` of the sparse side, where profiled."""

    dense_ms: list[list[float]]
    sparse_ms: list[list[float]]
    gemm_share: float | None = None


def row_of(
    point: Point, masks: Masks, sparse: Sparse, timed: Timed, dense_variant: str, fused_ms: float | None, seconds: float
) -> dict[str, str]:
    """A line, by column."""
    densities = masks.densities
    nonzero, all_weights = (sum(f(mask) for mask in masks.layers.values()) for f in (torch.count_nonzero, torch.numel))
    report, errors = sparse.report, sparse.errors
    content: dict[str, Any] = point.columns | {
        "distribution": distribution_of(masks.pattern),
        "min_layer_density": f"{min(densities.values(), default=1.0):.4f}",
        "dense_variant": dense_variant,
        "sparse_flops_share": f"{report.sparse_flops_share:.4f}",
        "kernels": kernels_text(report.kernels),
        "sparsity_achieved": f"{1 - float(nonzero) / all_weights:.4f}" if all_weights else "",
        "sparse_variant": sparse.variant,
        "dense_outputs_relative_error": f"{errors.dense_outputs:.3e}",
        "logits_relative_error": f"{errors.logits:.3e}",
        "dense_logits_relative_error": f"{errors.dense_logits:.3e}",
        "layout": report.fusion.layout,
        "fused_blocks": " | ".join(f"{count} x {line}" for line, count in report.fusion.summary().items()),
        "block_variants_ms": " ".join(
            f"{name}={time:.3f}" for times in report.fusion.variants_ms.values() for name, time in times.items()
        ),
        "seconds": f"{seconds:.1f}",
    }
    content |= times_cells(timed, fused_ms) | error_cells(errors) | where_and_when()
    return {name: str(content[name]) for name in COLUMNS}


def times_cells(timed: Timed, fused_ms: float | None) -> dict[str, str]:
    """Columns of latencies, of the speedup with its range, and of the share of products."""
    dense, ours = (summarize(sum(runs, [])) for runs in (timed.dense_ms, timed.sparse_ms))
    times = {"latency_ms": ours.median_ms, "latency_p20_ms": ours.p20_ms, "latency_p80_ms": ours.p80_ms}
    times |= {"dense_latency_ms": dense.median_ms, "fused_dense_latency_ms": fused_ms, "gemm_share": timed.gemm_share}
    times |= speedup_of(timed.dense_ms, timed.sparse_ms).to_json()
    return {name: "" if value is None else f"{value:.4f}" for name, value in times.items()}


def error_cells(errors: Errors) -> dict[str, str]:
    """Columns of the swapped network's error."""
    return {"outputs_relative_error": f"{errors.outputs:.3e}", "error_ratio": f"{errors.ratio:.3f}"}


def kernels_text(kernels: Mapping[str, int]) -> str:
    """Kernels and how many layers run each, as a cell."""
    return " ".join(f"{name}:{count}" for name, count in kernels.items())


class Rows:
    """The CSV."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rows = read_lines(file)

    def has(self, point: Point) -> bool:
        return any(_is_of(row, point) for row in self.rows)

    def add(self, row: dict[str, str]) -> None:
        append_line(self.file, row)
        self.rows.append(row)


def _is_of(row: dict[str, str], point: Point) -> bool:
    return all(row.get(name) == value for name, value in point.columns.items())


class Session:
    """Measures rows one after the other.

    Raises:
        InvalidSetting: there is no GPU and something is to be timed: a latency of a CPU never stands for one of a GPU.
    """

    def __init__(self, rows: Rows, options: Options) -> None:
        self.rows, self.options = rows, options
        self.device = options.dense.torch_device
        if options.timed and self.device.type != "cuda":
            raise InvalidSetting(
                "device", self.device.type, "rows are latencies of a GPU: use a CUDA device, or --dry-run"
            )
        self._network: tuple[str, Network] | None = None
        self._dense: Dense | None = None
        self._masks: dict[tuple, Masks] = {}
        self._timed: dict[tuple, TimedProducts] = {}

    def measure(self, point: Point) -> None:
        """Add the row of a point, and the one with forced sparse kernels where those are what `auto` chose everywhere.

        Other processes may work on the GPU at once, but for the time in which one times.

        Raises:
            Exception: whatever fails on the way.
        """
        with record_spans() as spans, share_gpu(self.device):
            self._measure(point)
        kinds: dict[str, float] = defaultdict(float)
        for span in spans:
            kinds[span.kind] += span.seconds
        log.info("%s: %s", point, ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in kinds.items()))

    def _measure(self, point: Point) -> None:
        steps = Steps()
        with steps("dense"):
            dense = self.dense(point)
        with steps("masks"):
            masks = self.masks(point)
        settings = self._of_dtype(self.options.sparse, point) if self.options.timed else None
        sparse = make_sparse(dense, masks, KernelChoice(point.kernel_mode), settings, steps, self._timed_of(point))
        self._describe(point, sparse)
        self._time(point, masks, dense, sparse, steps)
        forced = replace(point, kernel_mode="sparse")
        if point.kernel_mode == "auto" and sparse.report.sparse_flops_share > ALL_SPARSE and not self.rows.has(forced):
            self._time(forced, masks, dense, sparse, Steps())
        log.info("%s: %s", point, steps)

    def dense(self, point: Point) -> Dense:
        """The dense baseline of the point's place; the one before is given up, with its memory."""
        if self._dense is None or self._dense.place != point.place:
            self._dense = None
            free_memory()
            network = self.network(point.model)
            if not self.options.timed:
                self._dense = without_timing(network, point, self.device, self._dtype(point))
                return self._dense
            settings = self._of_dtype(self.options.dense, point)
            self._dense = find_dense(network, point, settings)
            if self.options.profile:
                self.profile(point, "dense", self._dense.call)
        return self._dense

    def masks(self, point: Point) -> Masks:
        """Masks of the point's network: the same for every size, dtype and choice of kernels."""
        key = (point.model, point.setting, point.allocation, point.pattern_settings)
        if key not in self._masks:
            if len(self._masks) >= MOST_MASKS:
                self._masks.pop(next(iter(self._masks)))
            self._masks[key] = prune(self.network(point.model), point)
        return self._masks[key]

    def _timed_of(self, point: Point) -> TimedProducts:
        """Times of products with the point's masks in its place: `auto` and `sparse` choose by the same ones."""
        key = (point.place, point.setting, point.allocation, point.pattern_settings)
        return self._timed.setdefault(key, TimedProducts())

    def network(self, model: str) -> Network:
        """The network of that name in float32; the one before is given up."""
        if self._network is None or self._network[0] != model:
            self._network = None
            self._masks = {}
            free_memory()
            self._network = model, build(model, self.device, tiny=self.options.tiny, masked=self.options.masked)
        return self._network[1]

    def _dtype(self, point: Point) -> torch.dtype:
        """That of the point; float32 for a dry run on a CPU, which has no fast fp16."""
        return DTYPES[point.dtype] if self.device.type == "cuda" else torch.float32

    def _of_dtype(self, settings: Measure, point: Point) -> Measure:
        return replace(settings, dtype=point.dtype)

    def _time(self, point: Point, masks: Masks, dense: Dense, sparse: Sparse, steps: Steps) -> None:
        if not self.options.timed:
            return
        with steps("time"):
            calls = {"dense": dense.call, "sparse": sparse.call}
            taken = timed_in_turn(calls, self._of_dtype(self.options.sparse, point))
        if self.device.type == "cuda" and point.kernel_mode == "auto" and sparse.report.sparse_flops_share:
            dense_ms, sparse_ms = (summarize(sum(taken[side], [])).median_ms for side in ("dense", "sparse"))
            why = why_dense(sparse_ms, dense_ms)
            if why is not None:
                log.info("%s: every layer stays dense: %s", point, why)
                self._time(point, masks, dense, without_kernels(dense, masks, sparse, why), steps)
                return
        share = None
        if self.options.profile:
            with steps("profile"):
                share = self.profile(point, "sparse", sparse.call)
        timed = Timed(taken["dense"], taken["sparse"], share)
        row = row_of(point, masks, sparse, timed, dense.variant, dense.fused_latency_ms, steps.total)
        self.rows.add(row)
        log.info(
            "%s: %s ms against %s ms (%s): %s, error ratio %s",
            *(point, row["latency_ms"], row["dense_latency_ms"], dense.variant, row["speedup"], row["error_ratio"]),
        )

    def profile(self, point: Point, side: str, call: Callable[[], Any]) -> float | None:
        """Write the kernels of a side beside the rows; the share of products, or None where that fails: it costs no row."""
        try:
            with exclusive(self.device):
                times_us = kernel_times_us(call)
        except Exception as error:
            log.warning("%s: no profile: %s", point, failure_reason(error))
            return None
        write_profile(self.rows.file.with_suffix(".profile.csv"), point.columns, side, times_us)
        return gemm_share(times_us)

    def _describe(self, point: Point, sparse: Sparse) -> None:
        report = sparse.report
        log.info("%s: kernels %s, share %.3f", point, report.kernels, report.sparse_flops_share)
        for name, count in report.fusion.summary().items():
            log.info("  %d blocks: %s", count, name)
        for block in report.fusion.blocks.values():
            for product in block.products:
                if product.candidates and product.timed_as is None:
                    times_us = ", ".join(f"{name} {us:.1f}" for name, us in product.candidates.items())
                    log.info("  %s: us %s", product.describe(), times_us)
        log.info("  ways to run the blocks, ms: %s", report.fusion.variants_ms)
        log.info("  errors: %s, ratio %.3f", sparse.errors, sparse.errors.ratio)


def is_product(kernel: str) -> bool:
    """Whether a kernel, by its name, multiplies by weights; attention's products are its own."""
    return bool(PRODUCT.search(kernel)) and not NO_PRODUCT.search(kernel)


def gemm_share(times_us: dict[str, float]) -> float | None:
    """Of the kernels' time, the fraction of products with weights; None where nothing was seen."""
    total = sum(times_us.values())
    return sum(time for name, time in times_us.items() if is_product(name)) / total if total else None


def write_profile(file: Path, key: dict[str, str], side: str, times_us: dict[str, float]) -> None:
    """Put the longest kernels of a row into a CSV, and what the others take together, instead of an earlier profile of it.

    One process at a time: what another one added while the file is written anew would be lost.
    """
    total = sum(times_us.values())
    longest = dict(list(times_us.items())[:MOST])
    lines = [(name, time, is_product(name)) for name, time in longest.items()]
    lines.append(("(all others)", total - sum(longest.values()), ""))
    rows = [
        key
        | {"side": side, "kernel": name, "us_per_forward": f"{time:.1f}"}
        | {"share": f"{time / total:.4f}" if total else "", "is_product": str(product)}
        for name, time, product in lines
    ]
    with held_alone(file):
        replace_lines(file, key | {"side": side}, rows)


def free_memory() -> None:
    """Give back what nothing refers to any more: CUDA graphs of the place before hold gigabytes."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
