"""The lines of the study's CSV: written as soon as a row is measured, so that a stopped study goes on where it was."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from experiments.end_to_end.points import Point
from experiments.end_to_end.pruned import Masks, distribution_of
from experiments.end_to_end.sparse import Sparse
from sparsefront.measure.end_to_end import speedup_of
from sparsefront.measure.timers import summarise
from sparsefront.provenance import provenance
from sparsefront.results.store import append_line, read_lines

COLUMNS = (
    "model,batch,sequence_length,dtype,pattern,granularity,distribution,group_m,sparsity,allocation,min_layer_density,"
    "kernel_mode,latency_ms,latency_p20_ms,latency_p80_ms,dense_latency_ms,dense_variant,fused_dense_latency_ms,speedup,"
    "gemm_share,sparse_flops_share,kernels,outputs_relative_error,gpu,torch,commit,date,"
    # beyond what was asked for
    "pattern_settings,attention_mask,sparsity_achieved,speedup_low,speedup_high,sparse_variant,dense_outputs_relative_error,"
    "error_ratio,logits_relative_error,dense_logits_relative_error,layout,fused_blocks,block_variants_ms,seconds"
).split(",")
FAILED = ("failed", "date")


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
    dense, ours = (summarise(sum(runs, [])) for runs in (timed.dense_ms, timed.sparse_ms))
    densities = masks.densities
    kept, all_weights = (sum(f(mask) for mask in masks.layers.values()) for f in (torch.count_nonzero, torch.numel))
    report, errors = sparse.report, sparse.errors
    content: dict[str, Any] = point.columns | {
        "distribution": distribution_of(masks.pattern),
        "min_layer_density": f"{min(densities.values(), default=1.0):.4f}",
        "latency_ms": f"{ours.median_ms:.4f}",
        "latency_p20_ms": f"{ours.p20_ms:.4f}",
        "latency_p80_ms": f"{ours.p80_ms:.4f}",
        "dense_latency_ms": f"{dense.median_ms:.4f}",
        "dense_variant": dense_variant,
        "fused_dense_latency_ms": "" if fused_ms is None else f"{fused_ms:.4f}",
        "gemm_share": "" if timed.gemm_share is None else f"{timed.gemm_share:.4f}",
        "sparse_flops_share": f"{report.sparse_flops_share:.4f}",
        "kernels": " ".join(f"{name}:{count}" for name, count in report.kernels.items()),
        "outputs_relative_error": f"{errors.outputs:.3e}",
        "sparsity_achieved": f"{1 - float(kept) / all_weights:.4f}" if all_weights else "",
        "sparse_variant": sparse.variant,
        "dense_outputs_relative_error": f"{errors.dense_outputs:.3e}",
        "error_ratio": f"{errors.ratio:.3f}",
        "logits_relative_error": f"{errors.logits:.3e}",
        "dense_logits_relative_error": f"{errors.dense_logits:.3e}",
        "layout": report.fusion.layout,
        "fused_blocks": " | ".join(f"{count} x {line}" for line, count in report.fusion.summary().items()),
        "block_variants_ms": " ".join(
            f"{name}={time:.3f}" for times in report.fusion.variants_ms.values() for name, time in times.items()
        ),
        "seconds": f"{seconds:.1f}",
    }
    interval = speedup_of(timed.dense_ms, timed.sparse_ms).to_json()
    content |= {name: f"{value:.4f}" for name, value in interval.items()} | where_and_when()
    return {name: str(content[name]) for name in COLUMNS}


def where_and_when() -> dict[str, str]:
    """Columns gpu, torch, commit and date."""
    facts = provenance(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    return {
        "gpu": facts.gpu or "",
        "torch": facts.torch_version,
        "commit": facts.commit or "",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


class Rows:
    """The CSV, and beside it the rows that failed with their reasons (`<name>.failed.csv`)."""

    def __init__(self, file: Path) -> None:
        self.file, self.failures = file, file.with_suffix(".failed.csv")
        self.rows = read_lines(file)

    def has(self, point: Point) -> bool:
        return any(_is_of(row, point) for row in self.rows)

    def has_failed(self, point: Point) -> bool:
        return any(_is_of(row, point) for row in read_lines(self.failures))

    def add(self, row: dict[str, str]) -> None:
        append_line(self.file, row)
        self.rows.append(row)

    def fail(self, point: Point, reason: str) -> None:
        date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
        append_line(self.failures, point.columns | {"failed": reason, "date": date})


def _is_of(row: dict[str, str], point: Point) -> bool:
    return all(row.get(name) == value for name, value in point.columns.items())
