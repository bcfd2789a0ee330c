"""Stages swap and measure: accuracy and latency of the same weights next to the dense baseline, in one process."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsefront.artifacts.content_digest import digest
from sparsefront.artifacts.store import Artifact, ArtifactStore
from sparsefront.config.experiment import Experiment
from sparsefront.errors import InvalidSetting
from sparsefront.export.checkpoint import Export, read_export
from sparsefront.gpu import share_gpu
from sparsefront.inference.benchmark import benchmark
from sparsefront.inference.fusion.block_pass import make_dense_graph
from sparsefront.inference.precision import activation_amax
from sparsefront.inference.swap import save_choices, swap
from sparsefront.inference.swap_report import SwapReport
from sparsefront.measure.accuracy import cast_inputs
from sparsefront.measure.correctness import has_low_precision
from sparsefront.measure.decode import int8_weight_only, time_prefill, time_step
from sparsefront.measure.end_to_end import DenseTiming, time_alone
from sparsefront.measure.execution_mode import SEPARATOR
from sparsefront.measure.memory import (
    AchievedSparsity,
    dense_layer_bytes,
    measure_sparsity,
    peak_memory_bytes,
    resident_bytes,
    weight_bytes,
)
from sparsefront.measure.problems import measure_rates, roofline_fraction, weight_flops
from sparsefront.measure.settings import INT8_WEIGHT_ONLY
from sparsefront.measure.variants import DoesNotApply
from sparsefront.models.unpadded import UNPADDED
from sparsefront.networks import layer_weight, tensors_digest
from sparsefront.patterns.base import Pattern
from sparsefront.patterns.hidden import ties_of
from sparsefront.progress import EVALUATION, SEARCH, TIMING, counted, reasons_text, record_spans, seconds_of, track_time
from sparsefront.provenance import provenance
from sparsefront.pruning.layers import KEEPS_ALL
from sparsefront.pruning.masks import Masks
from sparsefront.pruning.unit_hooks import hook_units
from sparsefront.stages.bench import (
    EvalContext,
    SplitQuality,
    evaluate_splits,
    evaluate_stored,
    quality_fields,
    save_all_outcomes,
)
from sparsefront.stages.keys import StageKeys, reseed, stage_seed
from sparsefront.stages.latency import (
    SAMPLES_PER_S,
    TOKENS_PER_S,
    Samples,
    Ways,
    collect_untimed,
    dataset_latency,
    latency_curve,
    part_latency,
    serving,
    timing_fields,
    with_prefill,
)
from sparsefront.stages.network import load_net, open_data, weights_digest
from sparsefront.training.resume import WEIGHTS

log = logging.getLogger(__name__)


def calibration_of(bench: EvalContext, net: nn.Module) -> dict[str, float] | None:
    """Layer -> the largest magnitude of its inputs, over the first training batches that stage prune reads; None if the run's
    precision needs no calibration.

    Args:
        net: ready, before kernels are swapped in; not modified.
    """
    experiment = bench.experiment
    if not experiment.precision.calibrates:
        return None
    seed = experiment.seed
    data = open_data(experiment, seed=stage_seed(seed, "prune, order"))
    reseed(stage_seed(seed, "prune"))
    data.prepare_data()
    data.setup("fit")
    batches = (
        cast_inputs(bench.task.net_inputs(batch), device=bench.device, dtype=bench.dtype)
        for batch in islice(data.train_dataloader(), experiment.precision.batches)
    )
    with share_gpu(bench.device):
        return activation_amax(net, batches)


def dense_in(bench: EvalContext, net: nn.Module, precision: str) -> nn.Module:
    """A network with the same weights in which every supported product runs dense in a low precision.

    Args:
        net: ready; not modified. Its weights may be masked.
        precision: fp8, int8, fp8_static (calibrated by the run) or int8_weight_only.
    Raises:
        DoesNotApply: no layer can be quantized.
    """
    if precision == INT8_WEIGHT_ONLY:
        return int8_weight_only(net)
    calibration = calibration_of(bench, net) if precision == "fp8_static" else None
    return make_dense_graph(net, bench.inputs, precision, calibration)


def low_networks(bench: EvalContext, dense_net: nn.Module) -> dict[str, nn.Module]:
    """Precision -> the dense network in it, for the dense precisions of the run that at least one layer supports."""
    networks = {}
    for precision in bench.experiment.dense_low:
        try:
            networks[precision] = dense_in(bench, dense_net, precision)
        except DoesNotApply as reason:
            log.info("measure: dense is not measured in %s: %s", precision, reason)
    return networks


@dataclass(frozen=True)
class SparseNetwork:
    """A network with kernels chosen for the inputs of one evaluation context.

    `prompts`: a network with kernels for prompts, if those of `net` are for decoding steps (one token per row).
    """

    net: nn.Module
    report: SwapReport
    prompts: nn.Module | None = None

    @property
    def evaluated(self) -> nn.Module:
        """The network that processes whole rows of text."""
        return self.net if self.prompts is None else self.prompts


@track_time(SEARCH)
def swap_in(bench: EvalContext, net: nn.Module, export: Export) -> SparseNetwork:
    """Choose kernels for the context's inputs and swap them into `net`, which holds the masked weights, in place. After whole
    blocks were removed, the report uses the layers' original names.

    Raises:
        RuntimeError: outputs of the sparse network differ from those of the masked one.
    """
    masks, kernel = Masks(export.masks, spec=export.spec), bench.experiment.kernel
    kernels = (
        f"kernels for {counted(len(masks), 'layer')}"
        if export.blocks is None
        else "none, without its blocks it is dense"
    )
    log.info("swap: %s on %s", kernels, bench.device.type)
    precision, calibration = bench.experiment.precision.mode, calibration_of(bench, bench.ready(net))
    settings = bench.experiment.measure
    report = swap(
        net,
        masks,
        bench.called_with,
        kernel=kernel,
        packed=export,
        precision=precision,
        calibration=calibration,
        settings=settings,
        seconds=2 * settings.autotune_seconds,
        reuse=False,
        tell=log.info,
    )
    return SparseNetwork(net, report.rename({export.spec.name_left(name): name for name in masks}))


@track_time(TIMING)
def dense_speed(bench: EvalContext, net: nn.Module, ways: Ways | None = None) -> tuple[dict[str, Any], Samples]:
    """Group `speed` if no sparse network is timed.

    Args:
        ways: receives "dense", and "dense_low" in a low precision -> the network and its execution.
    """
    log.info("measure: latency of the dense network, %s on %s", _size_in_words(bench), bench.device.type)
    low, settings = _low_to_time(bench, net), bench.experiment.measure
    if bench.prompt is None:
        timed = time_alone(net, bench.inputs, settings, fuse=make_dense_graph, low=low)
    else:
        timed = time_step(net, bench.prompt, settings, fuse=make_dense_graph, low=low)
    if ways is not None:
        ways |= _dense_ways(net, timed)
    speed = _conditions_and_timings(bench, timed.samples_ms, timed)
    speed |= {"variants_not_timed": timed.not_timed, "variant_medians_ms": timed.medians_ms}
    if bench.prompt is not None:
        speed = with_prefill(speed, time_prefill(net, None, bench.prompt, settings))
    return speed, timed.samples_ms


@track_time(TIMING)
def sparse_speed(
    bench: EvalContext, dense_net: nn.Module, sparse: SparseNetwork, ways: Ways | None = None
) -> tuple[dict[str, Any], Samples]:
    """Group `speed` of a sparse network next to the fastest dense version; `ways` also receives "sparse". On a CPU, low precision
    has only references, whose times mean nothing: dense is then timed without them.
    """
    if bench.device.type == "cpu" and has_low_precision(sparse.net):
        speed, samples_ms = dense_speed(bench, dense_net, ways)
        return speed | _kernels_side(bench, sparse), samples_ms
    log.info("measure: latency, %s on %s, dense and sparse in turn", _size_in_words(bench), bench.device.type)
    comparison = benchmark(
        dense_net,
        sparse.net,
        bench.called_with,
        settings=bench.experiment.measure,
        low=_low_to_time(bench, dense_net),
        prompt_net=sparse.prompts,
        tell=log.info,
    )
    timed = comparison.timed
    if ways is not None:
        ways |= _dense_ways(dense_net, timed.dense) | {"sparse": (sparse.net, timed.execution)}
    speed = _conditions_and_timings(bench, timed.samples_ms, timed.dense) | {
        "execution_mode_sparse": timed.execution.fastest.name,
        "sparse_variant": timed.execution.name,
        "variants_not_timed": timed.not_timed,
        "variant_medians_ms": timed.medians_ms,
    }
    if comparison.prefill is not None:
        speed = with_prefill(speed, comparison.prefill)
    return speed | _kernels_side(bench, sparse), timed.samples_ms


def _conditions_and_timings(bench: EvalContext, samples_ms: Samples, dense: DenseTiming) -> dict[str, Any]:
    rate = SAMPLES_PER_S if bench.prompt is None else TOKENS_PER_S
    fused = dense.fused_latency is not None
    return bench.conditions() | timing_fields(samples_ms, bench.batch_size, rate, fused=fused) | collect_untimed(dense)


def _kernels_side(bench: EvalContext, sparse: SparseNetwork) -> dict[str, Any]:
    return {"latency_kernel": kernel_names(sparse.report, bench.device), "layout": sparse.report.fusion.layout}


def _low_to_time(bench: EvalContext, dense_net: nn.Module) -> dict[str, nn.Module]:
    """Low precision -> the dense network in it, if it can be timed: not on a CPU, which only has references."""
    return {} if bench.device.type == "cpu" else low_networks(bench, dense_net)


def _dense_ways(net: nn.Module, timed: DenseTiming) -> Ways:
    low: Ways = {} if timed.low is None else {"dense_low": (timed.low.net, timed.low.execution)}
    return {"dense": (net, timed.execution)} | low


def measure_swap(
    bench: EvalContext,
    dense_net: nn.Module,
    make_net: Callable[[], nn.Module],
    export: Export,
    ways: Ways | None = None,
) -> tuple[SparseNetwork, dict[str, Any], Samples]:
    """Return a network with kernels and its group `speed`, without latencies if none are measured. For text generation, also swap
    and time a network with kernels for prompts.

    Args:
        make_net: returns the network to swap kernels into, with masked weights.
        ways: as in `sparse_speed`.
    Raises:
        RuntimeError: as in `swap_in`.
    """
    if not bench.experiment.measure.latency:
        at = bench if bench.prompt is None else bench.of_prompts()
        return swap_in(at, make_net(), export), bench.evaluation_conditions() | {"gpu_clock_mhz": None}, {}
    sparse = swap_in(bench, make_net(), export)
    if bench.prompt is not None:
        sparse = replace(sparse, prompts=swap_in(bench.of_prompts(), make_net(), export).net)
    return sparse, *sparse_speed(bench, dense_net, sparse, ways)


def kernel_names(report: SwapReport, device: torch.device) -> str:
    """The kernels that ran in the pruned layers; "reference" on a CPU, so that it is never mistaken for a GPU kernel."""
    names = sorted({layer.kernel for layer in report.layers.values() if layer.is_sparse})
    if not names:
        return "dense"
    return "reference" if device.type == "cpu" else "+".join(names)


def _size_in_words(bench: EvalContext) -> str:
    length = bench.sequence_length
    return f"batch {bench.batch_size}" + ("" if length is None else f", length {length}")


MEASUREMENTS, SAMPLES = "measurements.json", "samples.json"


def run(
    experiment: Experiment,
    store: ArtifactStore,
    keys: StageKeys,
    dense: Artifact,
    recovered: Artifact | None,
    exported: Artifact | None,
) -> Artifact:
    """Write measurements.json (groups of the result, `cost` in part), samples.json (all latency samples, in ms), outcomes.npz
    (per-sample outcomes of the reporting split) and, if kernels were swapped in, choices.json (with which
    `inference.swap` repeats the swap of the export without timing).

    Args:
        recovered, exported: None for pattern=dense, for which only the dense network is measured.
    """
    _require_measured_without_swap(experiment, store, keys)
    while (measured := store.get("measure", keys.measure)) is None:
        with store.making("measure", keys.measure) as new:
            _measure(experiment, store, keys, dense, recovered, exported, new.folder)
    return measured


def _measure(
    experiment: Experiment,
    store: ArtifactStore,
    keys: StageKeys,
    dense: Artifact,
    recovered: Artifact | None,
    exported: Artifact | None,
    folder: Path,
) -> None:
    export = None if exported is None else read_export(exported.path)
    make_masked = None
    if recovered is not None and export is not None:
        make_masked = partial(load_net, experiment, recovered.path / WEIGHTS, shrink=export.spec.shrink)

    def evaluate_dense(bench: EvalContext, make_net: Callable[[], nn.Module], low: str | None) -> SplitQuality:
        if low is not None:
            return evaluate_stored(store, keys.dense_low_quality(low), bench, "dense_low", make_net)
        return evaluate_stored(store, keys.dense_quality, bench, "dense", make_net)

    dense_net = load_net(experiment, dense.path / WEIGHTS)
    with record_spans() as spans:
        content, samples_ms, qualities = measure_networks(
            experiment, dense_net, make_masked, export, evaluate_dense, folder
        )
    content["cost"] = {f"{kind}_seconds": seconds_of(spans, kind) for kind in (SEARCH, TIMING, EVALUATION)}
    (folder / MEASUREMENTS).write_text(json.dumps(content, indent=2), encoding="utf-8")
    (folder / SAMPLES).write_text(json.dumps(samples_ms), encoding="utf-8")
    save_all_outcomes(folder, qualities)


def measure_networks(
    experiment: Experiment,
    dense_net: nn.Module,
    make_masked: Callable[[], nn.Module] | None,
    export: Export | None,
    evaluate_dense: Callable[[EvalContext, Callable[[], nn.Module], str | None], SplitQuality],
    folder: Path,
) -> tuple[dict[str, Any], Samples, dict[str, SplitQuality]]:
    """Evaluate and time all networks of a run.

    Args:
        make_masked, export: of the pruned network; None for pattern=dense.
        evaluate_dense: returns the metrics of the dense network, in a low precision if one is named.
        folder: where the kernel choices are stored.
    Returns:
        groups of the result, all latency samples, and the metrics of each network.
    """
    digests = {
        "dataset_digest": digest(experiment.dataset.content()),
        "initial_weights": experiment.model.fingerprint(),
        "dense_weights_sha256": weights_digest(dense_net),
    }
    bench = EvalContext.of(experiment, dense_net)
    qualities = {"dense": evaluate_dense(bench, lambda: dense_net, None)}
    bench.ready(dense_net)
    prunable, left = experiment.model.prunable(dense_net), {}
    if make_masked is None or export is None:
        achieved, reasons = measure_sparsity(dense_net, {}, prunable), {name: "pattern=dense" for name in prunable}
        if experiment.precision.is_low:
            groups, samples_ms, qualities["sparse"] = _dense_in_low(bench, dense_net)
        else:
            groups, samples_ms = _dense_alone(bench, dense_net)
    else:
        if experiment.pattern.over_norms and not experiment.leaves_dense:
            make_masked = partial(_make_hooked, make_masked, experiment.pattern, export.masks)
        digests["masks_sha256"] = tensors_digest(export.masks)
        masked = make_masked()
        digests["weights_sha256"] = weights_digest(masked)
        masked = bench.ready(masked)
        qualities["masked"] = evaluate_splits(bench, masked, "masked")
        pruned = masked if export.structure else dense_net
        achieved = measure_sparsity(pruned, export.masks, experiment.model.prunable(pruned))
        if export.structure:
            left = share_left(bench.inputs, dense_net, prunable, masked, export.masks)
        whole = [name for name, sparsity in achieved.layers.items() if sparsity == 0]
        reasons = dict.fromkeys(whole, KEEPS_ALL) | export.manifest.dense_layers
        if experiment.swaps:
            groups, samples_ms, qualities["sparse"] = _side_by_side(bench, dense_net, make_masked, export, folder)
        else:
            groups, samples_ms = _dense_alone(bench, dense_net)
        if experiment.leaves_dense:  # no kernel is missing: the network runs as it was evaluated
            qualities["sparse"] = qualities["masked"]
    precision = _dense_low_precision(bench, dense_net, groups["speed"])
    if precision is not None:
        groups["speed"]["dense_low_precision"] = precision
        qualities["dense_low"] = evaluate_dense(bench, partial(dense_in, bench, dense_net, precision), precision)
    if bench.unpadded:
        _name_unpadded(groups["speed"])
    clock = groups["speed"].pop("gpu_clock_mhz")
    content = groups | {
        "sparsity": _sparsity(achieved, reasons) | left,
        "quality": quality_fields(bench, qualities),
        "identity": {**asdict(provenance(bench.device)), "gpu_clock_mhz": clock, **digests},
        "network": experiment.model.network_facts(dense_net),
    }
    return content, samples_ms, qualities


def _make_hooked(make_masked: Callable[[], nn.Module], pattern: Pattern, masks: Mapping[str, Tensor]) -> nn.Module:
    net = make_masked()
    hook_units(net, ties_of(net, masks, pattern), masks)
    return net


def _name_unpadded(speed: dict[str, Any]) -> None:
    """Add that networks ran without padding to the names of their fastest variants, of the curve too."""
    for fields in (speed, *speed.get("curve", ())):
        for name in ("dense_variant", "dense_low_variant", "sparse_variant"):
            if name in fields or (name == "dense_variant" and fields is speed):  # also where only accuracy was measured
                fields[name] = SEPARATOR.join(filter(None, (fields.get(name), UNPADDED)))


def _dense_low_precision(bench: EvalContext, dense_net: nn.Module, speed: dict[str, Any]) -> str | None:
    """The fastest low precision of the dense network; if none was timed, the first that at least one layer supports."""
    if "dense_low_precision" in speed or not bench.experiment.dense_low:
        return speed.get("dense_low_precision")
    return next(iter(low_networks(bench, dense_net)), None)


def _require_measured_without_swap(experiment: Experiment, store: ArtifactStore, keys: StageKeys) -> None:
    """Raise an error about the missing stage that matters: without swap, the measurement without kernels is looked up.

    Raises:
        InvalidSetting: only the measurement with kernels exists, and this run may not make the other one.
    """
    if "measure" in experiment.stages or experiment.swaps or store.find("measure", keys.measure) is not None:
        return
    if store.find("measure", keys.measure | {"swap": digest(keys.swap)}) is not None:
        allowed = (
            "was measured with kernels swapped in, and these stages ask for the networks without: add swap,measure"
        )
        raise InvalidSetting("stages", f"[{','.join(experiment.stages)}]", f"{allowed}; nothing is measured again")


def _dense_alone(bench: EvalContext, net: nn.Module) -> tuple[dict[str, Any], Samples]:
    """Speed and size if no kernel is swapped in; if nothing is timed, only the size of the weights."""
    settings = bench.experiment.measure
    if not settings.latency:
        untimed = bench.evaluation_conditions() | {"gpu_clock_mhz": None}
        if settings.lengths == "dataset":
            untimed["variants_not_timed"] = {"dense/lengths=dataset": "measure.latency=false: nothing is timed"}
        return {"speed": untimed, "size": {"weight_bytes_dense": weight_bytes(net)}, "kernels": {}}, {}
    ways: Ways = {}
    speed, samples_ms = dense_speed(bench, net, ways)
    curve, on_curve = latency_curve(bench, lambda point: dense_speed(point, net))
    of_dataset, there = dataset_latency(bench, ways)
    parts, of_parts = part_latency(bench, net)
    speed |= {"curve": curve, "parts": parts} | of_dataset
    samples_ms |= on_curve | there | of_parts
    groups = {"speed": speed, "size": _size("dense", net, bench), "kernels": {}}
    return groups | serving(bench, ways), samples_ms


def _dense_in_low(bench: EvalContext, dense_net: nn.Module) -> tuple[dict[str, Any], Samples, SplitQuality]:
    """The dense network in the run's low precision, instead of a sparse one, next to itself in 16 bits."""

    def make_network(point: EvalContext) -> SparseNetwork:
        return SparseNetwork(
            dense_in(point, dense_net, bench.experiment.precision.mode), SwapReport({}, {}, None, None)
        )

    if not bench.experiment.measure.latency:
        groups, samples_ms = _dense_alone(bench, dense_net)
        return groups, samples_ms, evaluate_splits(bench, make_network(bench).net, "sparse")
    ways: Ways = {}
    low = make_network(bench)
    speed, samples_ms = sparse_speed(bench, dense_net, low, ways)
    log.info("measure: accuracy in %s", bench.experiment.precision.mode)
    quality = evaluate_splits(bench, low.net, "sparse")
    size = _size("dense", dense_net, bench) | _size("sparse", low.net, bench)
    of_dataset, there = dataset_latency(bench, ways)
    parts, of_parts = part_latency(bench, dense_net, low.net)
    served = serving(bench, ways)
    curve, on_curve = latency_curve(bench, lambda point: sparse_speed(point, dense_net, make_network(point)))
    speed |= {"curve": curve, "parts": parts} | of_dataset
    return {"speed": speed, "size": size, "kernels": {}} | served, samples_ms | on_curve | there | of_parts, quality


def _side_by_side(
    bench: EvalContext, dense_net: nn.Module, make_net: Callable[[], nn.Module], export: Export, folder: Path
) -> tuple[dict[str, Any], Samples, SplitQuality]:
    """Swap, check against the masked network, evaluate, and time next to the dense baseline; repeat for each curve point.

    Args:
        make_net: returns the network to swap kernels into.
        folder: where the kernel choices of the first size are stored.
    """

    def at(point: EvalContext) -> tuple[dict[str, Any], Samples]:
        sparse, speed, samples_ms = measure_swap(point, dense_net, make_net, export)
        chosen = {"kernels": sparse.report.kernels, "sparse_flops_share": sparse.report.sparse_flops_share}
        return speed | chosen, samples_ms

    ways: Ways = {}
    sparse, speed, samples_ms = measure_swap(bench, dense_net, make_net, export, ways)
    save_choices(sparse.report, folder)
    dense = sparse.report.dense_layers
    if dense:  # the report has other weights, which are never pruned
        log.info("swap: left dense, %d: %s", len(dense), reasons_text(dense))
    if bench.experiment.precision.is_low and not has_low_precision(sparse.net):
        reasons = reasons_text(sparse.report.low_precision_layers)
        log.warning("precision=%s: no layer runs in it: %s", bench.experiment.precision.mode, reasons)
        speed["precision"] = speed["dtype"]
    log.info("measure: accuracy with the sparse kernels running")
    quality = evaluate_splits(bench, sparse.evaluated, "sparse")
    size = _size("dense", dense_net, bench) | _size("sparse", sparse.net, bench)
    prunable = [*export.manifest.layers, *export.manifest.dense_layers]
    size["dense_bytes_per_layer"] = dense_layer_bytes(sparse.net, prunable, export.spec.name_left)
    kernels = {
        "kernel_per_layer": _layers(sparse.report, bench),
        "sparse_layer_share": sparse.report.sparse_layer_share,
        "sparse_flops_share": sparse.report.sparse_flops_share,
        **sparse.report.fusion.to_json(),
        "dense_weights": sparse.report.others,
        "low_precision_layers": sparse.report.low_precision_layers,
        "quantization_error": sparse.report.quantization_error,
    }
    of_dataset, there = dataset_latency(bench, ways)
    parts, of_parts = part_latency(bench, dense_net, sparse.net)
    served = serving(bench, ways)
    del sparse, ways  # free their memory for the networks of the curve
    curve, on_curve = latency_curve(bench, at)
    speed |= {"curve": curve, "parts": parts} | of_dataset
    groups = {"speed": speed, "size": size, "kernels": kernels} | served
    return groups, samples_ms | on_curve | there | of_parts, quality


def _size(side: str, net: nn.Module, bench: EvalContext) -> dict[str, int | None]:
    with share_gpu(bench.device):
        return {
            f"weight_bytes_{side}": weight_bytes(net),
            f"resident_bytes_{side}": resident_bytes(net, bench.device),
            f"peak_memory_bytes_{side}": peak_memory_bytes(net, bench.inputs),
        }


def _layers(report: SwapReport, bench: EvalContext) -> dict[str, dict[str, Any]]:
    """The kernel of each layer and, if it was timed, its fraction of the roofline."""
    rates, problems = measure_rates(bench.device, bench.dtype), report.problems
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


def share_left(
    inputs: dict[str, Any],
    dense_net: nn.Module,
    prunable: Iterable[str],
    masked: nn.Module,
    masks: Mapping[str, Tensor],
) -> dict[str, float]:
    """What a network that became smaller and was then pruned still has of the dense network's prunable weights and of the flops
    of their products, zeros not counted.

    Args:
        inputs: keyword arguments of both networks, on their device.
        prunable: layers of the dense network.
        masks: of the other one's layers; those without a mask keep every weight.
    """
    layers = {*masks, *prunable} & {name for name, _ in masked.named_modules()}  # of a depth's blocks, numbered anew
    density = {name: float(masks[name].float().mean()) if name in masks else 1.0 for name in layers}
    flops, of_dense = weight_flops(masked, inputs), weight_flops(dense_net, inputs)
    weights = sum(density[name] * layer_weight(masked.get_submodule(name)).numel() for name in layers)
    before = sum(layer_weight(dense_net.get_submodule(name)).numel() for name in prunable)
    multiplied = sum(density[name] * flops.get(f"{name}.weight", 0) for name in layers)
    multiplied_before = sum(of_dense.get(f"{name}.weight", 0) for name in prunable)
    return {"weights_left": weights / before, "theoretical_flops_left": multiplied / max(1, multiplied_before)}


def _sparsity(achieved: AchievedSparsity, dense_reasons: dict[str, str]) -> dict[str, Any]:
    return {
        "sparsity_achieved": achieved.sparsity_achieved,
        "sparsity_whole_model": achieved.sparsity_whole_model,
        "sparsity_per_layer": achieved.layers,
        "dense_layers": dense_reasons,
        "dense_weight_shares": {name: achieved.weight_shares[name] for name in dense_reasons},
    }
