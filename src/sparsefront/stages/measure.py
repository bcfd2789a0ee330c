"""Stages swap and measure: accuracy and latency of the same weights, the dense twin beside, in one process."""

import json
import logging
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparsefront.artifacts.store import Artifact, ArtifactStore
from sparsefront.experiment import Experiment
from sparsefront.export.checkpoint import Export, read_export
from sparsefront.inference.problems import LayerInput, observe_problems
from sparsefront.inference.swap import swap
from sparsefront.inference.swap_report import SwapReport
from sparsefront.measure.end_to_end import Alone, EndToEnd, time_alone, time_pair
from sparsefront.measure.latency import LatencySummary
from sparsefront.measure.memory import peak_memory_bytes, weight_bytes
from sparsefront.measure.roofline import measured_rates, roofline_fraction
from sparsefront.measure.sparsity import AchievedSparsity, achieved_sparsity
from sparsefront.provenance import gpu_clock_mhz
from sparsefront.stages.bench import Bench
from sparsefront.stages.keys import StageKeys
from sparsefront.stages.network import WEIGHTS, load_net

log = logging.getLogger(__name__)
MEASUREMENTS, SAMPLES = "measurements.json", "samples.json"


def run(
    experiment: Experiment,
    store: ArtifactStore,
    keys: StageKeys,
    *,
    dense: Artifact,
    recovered: Artifact | None,
    exported: Artifact | None,
) -> Artifact:
    """measurements.json (groups of the row) and samples.json (every latency sample, in milliseconds).

    Args:
        recovered, exported: None for pattern=dense, where the dense network is measured alone.
    """

    def make(folder: Path) -> None:
        dense_net = load_net(experiment, dense.path / WEIGHTS)
        bench = Bench.of(experiment, dense_net)
        qualities = {"dense": _dense_quality(store, keys, bench, dense_net)}
        bench.ready(dense_net)
        prunable = experiment.model.prunable(dense_net)
        if recovered is None or exported is None:
            achieved, reasons = achieved_sparsity(dense_net, {}, prunable), {name: "pattern=dense" for name in prunable}
            groups, samples_ms = _dense_alone(bench, dense_net)
        else:
            export = read_export(exported.path)
            masked = bench.ready(load_net(experiment, recovered.path / WEIGHTS))
            qualities["masked"] = bench.quality(masked, "masked")
            achieved, reasons = achieved_sparsity(masked, export.masks, prunable), export.manifest.dense_layers
            if experiment.swaps:
                swapped = load_net(experiment, recovered.path / WEIGHTS)
                groups, samples_ms, qualities["kernel"] = _side_by_side(bench, dense_net, masked, swapped, export)
            else:
                groups, samples_ms = _dense_alone(bench, dense_net)
        content = groups | {
            "sparsity": _sparsity(achieved, reasons),
            "quality": _quality(bench, qualities),
            "gpu_clock_mhz": gpu_clock_mhz(bench.device),
        }
        (folder / MEASUREMENTS).write_text(json.dumps(content, indent=2))
        (folder / SAMPLES).write_text(json.dumps(samples_ms))

    return store.obtain("measure", keys.measure, make)


def _dense_quality(store: ArtifactStore, keys: StageKeys, bench: Bench, net: nn.Module) -> dict[str, float]:
    """The dense network's metrics: evaluated once for all points of a sweep."""

    def make(folder: Path) -> None:
        log.info("measure: accuracy of the dense network on %s", bench.device.type)
        (folder / "quality.json").write_text(json.dumps(bench.quality(net, "dense")))

    return store.obtain("dense_quality", keys.dense_quality, make, stage="measure").read_json("quality.json")


def _dense_alone(bench: Bench, net: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Speed and size where nothing is swapped: there is no sparse latency."""
    log.info("measure: latency of the dense network on %s", bench.device.type)
    timed = time_alone(net, bench.inputs, bench.experiment.measure)
    groups = {
        "speed": bench.conditions() | _latency("dense", timed.latency) | _dense_side(timed),
        "size": {
            "weight_bytes_dense": weight_bytes(net),
            "peak_memory_bytes_dense": peak_memory_bytes(net, bench.inputs),
        },
        "kernels": {},
    }
    return groups, {"dense": timed.samples_ms}


def _side_by_side(
    bench: Bench, dense_net: nn.Module, masked: nn.Module, swapped: nn.Module, export: Export
) -> tuple[dict[str, Any], dict[str, Any], dict[str, float]]:
    """Swap, check against the masked network, judge, and time beside the dense twin."""
    experiment = bench.experiment
    problems = observe_problems(masked, bench.inputs, experiment.model.prunable(masked))
    log.info("swap: kernels for %d layers on %s", len(export.manifest.layers), bench.device.type)
    report = swap(
        swapped, export, problems, experiment.kernel, device=bench.device, dtype=bench.dtype, inputs=bench.inputs
    )
    bench.require_agreement(masked, swapped)
    log.info("measure: accuracy through the swapped layers, then latency, dense and sparse in turn")
    quality = bench.quality(swapped, "swapped")
    timed = time_pair(dense_net, swapped, bench.inputs, experiment.measure)
    groups = {
        "speed": bench.conditions()
        | _latency("dense", timed.dense)
        | _latency("sparse", timed.sparse)
        | timed.speedup.to_json()
        | _both_sides(timed)
        | {"latency_kernel": _kernel_names(report, bench.device), "layout": report.fusion.layout},
        "size": {
            "weight_bytes_dense": weight_bytes(dense_net),
            "weight_bytes_sparse": weight_bytes(swapped),
            "peak_memory_bytes_dense": peak_memory_bytes(dense_net, bench.inputs),
            "peak_memory_bytes_sparse": peak_memory_bytes(swapped, bench.inputs),
        },
        "kernels": {
            "kernel_per_layer": _layers(report, problems, bench),
            "sparse_layer_share": report.sparse_layer_share,
            "sparse_flops_share": report.sparse_flops_share,
            **report.fusion.to_json(),
        },
    }
    return groups, timed.samples_ms, quality


def _latency(side: str, latency: LatencySummary) -> dict[str, float]:
    return {
        f"latency_{side}_ms": latency.median_ms,
        f"latency_{side}_p20_ms": latency.p20_ms,
        f"latency_{side}_p80_ms": latency.p80_ms,
    }


def _dense_side(timed: Alone) -> dict[str, Any]:
    return {
        "throughput_dense_samples_per_s": timed.throughput_samples_per_s,
        "wrapping_dense": timed.wrapping.name,
        "wrapping_refusals": {f"dense/{name}": why for name, why in timed.wrapping.refused.items()},
    }


def _both_sides(timed: EndToEnd) -> dict[str, Any]:
    return {
        "throughput_dense_samples_per_s": timed.throughput_dense_samples_per_s,
        "throughput_sparse_samples_per_s": timed.throughput_sparse_samples_per_s,
        "wrapping_dense": timed.wrapping_dense.name,
        "wrapping_sparse": timed.wrapping_sparse.name,
        "wrapping_refusals": timed.wrapping_refusals,
    }


def _kernel_names(report: SwapReport, device: torch.device) -> str:
    """What ran in the pruned layers; on a CPU it says reference, so that it is never taken for a GPU's kernel."""
    names = sorted({layer.kernel for layer in report.layers.values() if layer.is_sparse})
    if not names:
        return "dense"
    return "reference" if device.type == "cpu" else "+".join(names)


def _layers(report: SwapReport, problems: dict[str, LayerInput], bench: Bench) -> dict[str, dict[str, Any]]:
    """Per layer what runs it, and how close it comes to the roofline where it was timed."""
    rates = measured_rates(bench.device, bench.dtype)
    content = {name: layer.to_json() for name, layer in report.layers.items()}
    for name, layer in report.layers.items():
        if name in problems:
            problem = problems[name].problem
            content[name] |= {"m": problem.m, "k": problem.k, "n": problem.n}
        if rates is not None and layer.latency_us and name in problems:
            density = layer.density if layer.is_sparse else 1.0
            content[name]["roofline_fraction"] = roofline_fraction(
                problems[name].problem,
                latency_us=layer.latency_us,
                density=density,
                weight_bytes=layer.weight_bytes,
                rates=rates,
            )
    return content


def _sparsity(achieved: AchievedSparsity, dense_reasons: dict[str, str]) -> dict[str, Any]:
    return {
        "sparsity_achieved": achieved.sparsity_achieved,
        "sparsity_whole_model": achieved.sparsity_whole_model,
        "sparsity_per_layer": achieved.layers,
        "dense_layers": dense_reasons,
    }


def _quality(bench: Bench, qualities: dict[str, dict[str, float]]) -> dict[str, Any]:
    metric = bench.task.metric_name
    extra = {
        side: {name: value for name, value in found.items() if name != metric} for side, found in qualities.items()
    }
    return {
        "metric_name": metric,
        **{side: found[metric] for side, found in qualities.items()},
        "extra_metrics": {side: found for side, found in extra.items() if found},
    }
