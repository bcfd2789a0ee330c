"""Latency at one batch size and sequence length, as fields of the result, and the curve over several of them."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import nn

from sparsefront.counted import counted
from sparsefront.experiment import Experiment
from sparsefront.export.checkpoint import Export
from sparsefront.inference.kept_dense import kept_dense, why_dense
from sparsefront.inference.swap_report import SwapReport
from sparsefront.library.benchmark import benchmark
from sparsefront.library.swap import swap
from sparsefront.measure.end_to_end import Alone, time_alone
from sparsefront.measure.execution_mode import NothingRuns
from sparsefront.measure.latency import LatencySummary
from sparsefront.measure.variants import Fuse
from sparsefront.stages.bench import Bench
from sparsefront.time_use import TIMING, spent_on

log = logging.getLogger(__name__)

Samples = dict[str, list[list[float]]]  # network -> milliseconds, one list per repeat
ON_THE_CURVE = (
    "batch_size",
    "sequence_length",
    "latency_dense_ms",
    "latency_dense_p20_ms",
    "latency_dense_p80_ms",
    "latency_sparse_ms",
    "latency_sparse_p20_ms",
    "latency_sparse_p80_ms",
    "speedup",
    "speedup_low",
    "speedup_high",
    "dense_variant",
    "sparse_variant",
    "fused_dense_latency_ms",
    "gpu_clock_mhz",
)


@dataclass(frozen=True)
class SparseNetwork:
    """A network with kernels chosen for the inputs of one bench."""

    net: nn.Module
    report: SwapReport


@spent_on(TIMING)
def swap_in(bench: Bench, net: nn.Module, export: Export) -> SparseNetwork:
    """Choose kernels for the bench's inputs and put them into `net`, which holds the masked weights, in place.

    Raises:
        RuntimeError: the sparse network computes something else than the masked one.
    """
    log.info("swap: kernels for %s on %s", counted(len(export.manifest.layers), "layer"), bench.device.type)
    report = swap(bench.ready(net), export.masks, bench.inputs, kernel=bench.experiment.kernel, packed=export)
    return SparseNetwork(net, report)


@spent_on(TIMING)
def dense_speed(bench: Bench, net: nn.Module, fuse: Fuse | None) -> tuple[dict[str, Any], Samples]:
    """Group `speed` where no kernel is swapped in: there is no sparse latency."""
    log.info("measure: latency of the dense network, %s on %s", _size(bench), bench.device.type)
    timed = time_alone(net, bench.inputs, bench.experiment.measure, fuse=fuse)
    speed = bench.conditions() | _latency("dense", timed.latency) | _dense_side(timed)
    return speed | {"variants_not_timed": timed.not_timed, "variant_medians_ms": timed.medians_ms}, timed.samples_ms


@spent_on(TIMING)
def sparse_speed(
    bench: Bench, dense_net: nn.Module, sparse: SparseNetwork, fuse: Fuse | None
) -> tuple[dict[str, Any], Samples]:
    """Group `speed` of a sparse network beside the fastest dense version."""
    log.info("measure: latency, %s on %s, dense and sparse in turn", _size(bench), bench.device.type)
    timed = benchmark(dense_net, sparse.net, bench.inputs, settings=bench.experiment.measure, fuse=fuse).timed
    speed = (
        bench.conditions()
        | _latency("dense", timed.dense.latency)
        | _latency("sparse", timed.sparse)
        | timed.speedup.to_json()
        | _dense_side(timed.dense)
        | {
            "throughput_sparse_samples_per_s": timed.throughput_sparse_samples_per_s,
            "execution_mode_sparse": timed.execution.fastest.name,
            "sparse_variant": timed.execution.name,
            "variants_not_timed": timed.not_timed,
            "variant_medians_ms": timed.medians_ms,
            "latency_kernel": kernel_names(sparse.report, bench.device),
            "layout": sparse.report.fusion.layout,
        }
    )
    return speed, timed.samples_ms


def measured_swap(
    bench: Bench, dense_net: nn.Module, make_net: Callable[[], nn.Module], export: Export, fuse: Fuse | None
) -> tuple[SparseNetwork, dict[str, Any], Samples]:
    """A network with kernels and its group `speed`. With kernel=auto the masked network instead, where it is the faster whole.

    Args:
        make_net: makes the network to swap kernels into, with masked weights.
    Raises:
        RuntimeError: as `swap_in`.
    """
    sparse = swap_in(bench, make_net(), export)
    speed, samples_ms = sparse_speed(bench, dense_net, sparse, fuse)
    changed = sparse.report.sparse_flops_share or sparse.report.fusion.rewritten
    if bench.device.type != "cuda" or not bench.experiment.kernel.dense_allowed or not changed:
        return sparse, speed, samples_ms
    if (why := why_dense(speed["latency_sparse_ms"], speed["latency_dense_ms"])) is None:
        return sparse, speed, samples_ms
    log.info("swap: every layer stays dense: %s", why)
    masked = bench.ready(make_net())
    kept = SparseNetwork(masked, kept_dense(sparse.report, masked, why))
    del sparse  # its memory is the masked network's now
    return kept, *sparse_speed(bench, dense_net, kept, fuse)


def latency_curve(
    bench: Bench, speed_at: Callable[[Bench], tuple[dict[str, Any], Samples]]
) -> tuple[list[dict[str, Any]], Samples]:
    """Every size of the measurement's settings but the first: field `curve` of the result, and its samples.

    A size that the device has no memory for, or that no execution mode can run, is a point without latencies that says so.

    Args:
        bench: of the first size.
        speed_at: group `speed` at another one, with the entries `kernels` and `sparse_flops_share` where kernels run.
    """
    curve, samples = [], {}
    for batch_size, sequence_length in sizes(bench.experiment)[1:]:
        try:
            speed, taken = speed_at(bench.at(batch_size, sequence_length))
        except (torch.OutOfMemoryError, NothingRuns) as error:
            why = "out of memory" if isinstance(error, torch.OutOfMemoryError) else str(error)
            log.warning("measure: batch %d, length %s: %s", batch_size, sequence_length, why)
            curve.append({"batch_size": batch_size, "sequence_length": sequence_length, "not_measured": why})
            continue
        kept = (*ON_THE_CURVE, "kernels", "sparse_flops_share")
        point = {name: speed[name] for name in kept if name in speed}
        curve.append(point)
        at = (
            f"{point['batch_size']}x{point['sequence_length']}"
            if point["sequence_length"]
            else f"{point['batch_size']}"
        )
        samples |= {f"{side} {at}": values for side, values in taken.items()}
    return curve, samples


def sizes(experiment: Experiment) -> list[tuple[int, int | None]]:
    """(batch size, sequence length) of all points, the result's own first; images have no length."""
    measure = experiment.measure
    lengths = (None,) if experiment.dataset.info.sequence_length is None else measure.sequence_lengths
    return [(batch_size, length) for length, batch_size in product(lengths, measure.batch_sizes)]


def _latency(side: str, latency: LatencySummary) -> dict[str, float]:
    return {
        f"latency_{side}_ms": latency.median_ms,
        f"latency_{side}_p20_ms": latency.p20_ms,
        f"latency_{side}_p80_ms": latency.p80_ms,
    }


def _dense_side(timed: Alone) -> dict[str, Any]:
    return {
        "throughput_dense_samples_per_s": timed.throughput_samples_per_s,
        "execution_mode_dense": timed.execution.fastest.name,
        "dense_variant": timed.execution.name,
        "fused_dense_latency_ms": None if timed.fused_latency is None else timed.fused_latency.median_ms,
        "gpu_clock_mhz": timed.clock_mhz,
    }


def kernel_names(report: SwapReport, device: torch.device) -> str:
    """What ran in the pruned layers; on a CPU it says reference, so that it is never taken for a GPU's kernel."""
    names = sorted({layer.kernel for layer in report.layers.values() if layer.is_sparse})
    if not names:
        return "dense"
    return "reference" if device.type == "cpu" else "+".join(names)


def _size(bench: Bench) -> str:
    length = bench.sequence_length
    return f"batch {bench.batch_size}" + ("" if length is None else f", length {length}")
