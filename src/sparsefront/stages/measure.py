"""Stages swap and measure: accuracy and latency of the same weights beside the dense baseline, in one process."""

import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from sparsefront.artifacts.digest import digest
from sparsefront.artifacts.store import Artifact, ArtifactStore
from sparsefront.errors import InvalidSetting
from sparsefront.experiment import Experiment
from sparsefront.export.checkpoint import Export, read_export
from sparsefront.export.tensors_digest import tensors_digest
from sparsefront.gpu_sharing.access import sharing
from sparsefront.inference.saved_swap import save_choices
from sparsefront.inference.swap_report import KEEPS_ALL, SwapReport
from sparsefront.measure.memory import dense_layer_bytes, peak_memory_bytes, resident_bytes, weight_bytes
from sparsefront.measure.roofline import measured_rates, roofline_fraction
from sparsefront.measure.sparsity import AchievedSparsity, achieved_sparsity
from sparsefront.measure.variants import Fuse
from sparsefront.provenance import provenance
from sparsefront.stages.bench import Bench
from sparsefront.stages.keys import StageKeys
from sparsefront.stages.network import load_net, weights_digest
from sparsefront.stages.quality import (
    SplitQuality,
    evaluate_dense,
    evaluate_splits,
    quality_fields,
    save_all_outcomes,
)
from sparsefront.stages.speed import Samples, dense_speed, latency_curve, measured_swap
from sparsefront.training.epoch_weights import WEIGHTS

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
    fuse: Fuse | None = None,
) -> Artifact:
    """measurements.json (groups of the result), samples.json (every latency sample, in milliseconds),
    outcomes.npz (what each sample of the reporting split adds to the metric) and, where kernels were
    swapped in, choices.json (with which `inference.saved_swap` swaps the export again without timing).

    Args:
        recovered, exported: None for pattern=dense, where the dense network is measured alone.
        fuse: makes our own fused graph of a dense network, one of the candidates for the fastest dense version.
    """

    def make(folder: Path) -> None:
        dense_net = load_net(experiment, dense.path / WEIGHTS)
        digests = {
            "dataset_digest": digest(experiment.dataset.content()),
            "dense_weights_sha256": weights_digest(dense_net),
        }
        bench = Bench.of(experiment, dense_net)
        qualities = {"dense": evaluate_dense(store, keys, bench, dense_net)}
        bench.ready(dense_net)
        prunable = experiment.model.prunable(dense_net)
        if recovered is None or exported is None:
            achieved, reasons = achieved_sparsity(dense_net, {}, prunable), {name: "pattern=dense" for name in prunable}
            groups, samples_ms = _dense_alone(bench, dense_net, fuse)
        else:
            export = read_export(exported.path)
            digests["masks_sha256"] = tensors_digest(export.masks)
            masked = load_net(experiment, recovered.path / WEIGHTS)
            digests["weights_sha256"] = weights_digest(masked)
            masked = bench.ready(masked)
            qualities["masked"] = evaluate_splits(bench, masked, "masked")
            achieved = achieved_sparsity(masked, export.masks, prunable)
            whole = [name for name, sparsity in achieved.layers.items() if sparsity == 0]
            reasons = dict.fromkeys(whole, KEEPS_ALL) | export.manifest.dense_layers
            if experiment.swaps:
                make_net = partial(load_net, experiment, recovered.path / WEIGHTS)
                found = _side_by_side(bench, dense_net, masked, make_net, export, fuse, folder)
                groups, samples_ms, qualities["sparse"] = found
            else:
                groups, samples_ms = _dense_alone(bench, dense_net, fuse)
        clock = groups["speed"].pop("gpu_clock_mhz")
        content = groups | {
            "sparsity": _sparsity(achieved, reasons),
            "quality": quality_fields(bench, qualities),
            "identity": {**asdict(provenance(bench.device)), "gpu_clock_mhz": clock, **digests},
            "network": experiment.model.network_facts(dense_net),
        }
        (folder / MEASUREMENTS).write_text(json.dumps(content, indent=2))
        (folder / SAMPLES).write_text(json.dumps(samples_ms))
        save_all_outcomes(folder, qualities)

    _require_measured_without_swap(experiment, store, keys)
    return store.get_or_create("measure", keys.measure, make)


def _require_measured_without_swap(experiment: Experiment, store: ArtifactStore, keys: StageKeys) -> None:
    """Name the stage whose absence matters: without swap another measurement is looked for, the one without kernels.

    Raises:
        InvalidSetting: only the measurement with kernels is there, and this run may not make the other one.
    """
    if "measure" in experiment.stages or experiment.swaps or store.find("measure", keys.measure) is not None:
        return
    if store.find("measure", keys.measure | {"swap": digest(keys.swap)}) is not None:
        allowed = (
            "was measured with kernels swapped in, and these stages ask for the networks without: add swap,measure"
        )
        raise InvalidSetting("stages", f"[{','.join(experiment.stages)}]", f"{allowed}; nothing is measured again")


def _dense_alone(bench: Bench, net: nn.Module, fuse: Fuse | None) -> tuple[dict[str, Any], Samples]:
    """Speed and size where no kernel is swapped in; of the size the weights alone where nothing is timed."""
    if not bench.experiment.measure.latency:
        untimed = bench.evaluation_conditions() | {"gpu_clock_mhz": None}
        return {"speed": untimed, "size": {"weight_bytes_dense": weight_bytes(net)}, "kernels": {}}, {}
    speed, samples_ms = dense_speed(bench, net, fuse)
    curve, on_curve = latency_curve(bench, lambda point: dense_speed(point, net, fuse))
    groups = {"speed": speed | {"curve": curve}, "size": _size("dense", net, bench), "kernels": {}}
    return groups, samples_ms | on_curve


def _side_by_side(
    bench: Bench,
    dense_net: nn.Module,
    masked: nn.Module,
    make_net: Callable[[], nn.Module],
    export: Export,
    fuse: Fuse | None,
    folder: Path,
) -> tuple[dict[str, Any], Samples, SplitQuality]:
    """Swap, check against the masked network, evaluate, and time beside the dense baseline; again for each point of the curve.

    Args:
        make_net: makes the network to swap kernels into.
        folder: where the choices of the first size are kept.
    """

    def at(point: Bench) -> tuple[dict[str, Any], Samples]:
        sparse, speed, samples_ms = measured_swap(point, dense_net, make_net, export, fuse)
        chosen = {"kernels": sparse.report.kernels, "sparse_flops_share": sparse.report.sparse_flops_share}
        return speed | chosen, samples_ms

    sparse, speed, samples_ms = measured_swap(bench, dense_net, make_net, export, fuse)
    save_choices(sparse.report, folder)
    log.info("measure: accuracy with the sparse kernels running")
    quality = evaluate_splits(bench, sparse.net, "sparse")
    size = _size("dense", dense_net, bench) | _size("sparse", sparse.net, bench)
    size["dense_bytes_per_layer"] = dense_layer_bytes(sparse.net, bench.experiment.model.prunable(masked))
    kernels = {
        "kernel_per_layer": _layers(sparse.report, bench),
        "sparse_layer_share": sparse.report.sparse_layer_share,
        "sparse_flops_share": sparse.report.sparse_flops_share,
        **sparse.report.fusion.to_json(),
    }
    del sparse  # its memory belongs to the curve's networks
    curve, on_curve = latency_curve(bench, at)
    return {"speed": speed | {"curve": curve}, "size": size, "kernels": kernels}, samples_ms | on_curve, quality


def _size(side: str, net: nn.Module, bench: Bench) -> dict[str, int | None]:
    with sharing(bench.device):
        return {
            f"weight_bytes_{side}": weight_bytes(net),
            f"resident_bytes_{side}": resident_bytes(net, bench.device),
            f"peak_memory_bytes_{side}": peak_memory_bytes(net, bench.inputs),
        }


def _layers(report: SwapReport, bench: Bench) -> dict[str, dict[str, Any]]:
    """Per layer what runs it, and how close it comes to the roofline where it was timed."""
    rates, problems = measured_rates(bench.device, bench.dtype), report.problems
    content = {name: layer.to_json() for name, layer in report.layers.items()}
    for name, layer in report.layers.items():
        if name in report.dense_layers:
            content[name]["why_dense"] = report.dense_layers[name]
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
        "dense_weight_shares": {name: achieved.weight_shares[name] for name in dense_reasons},
    }
