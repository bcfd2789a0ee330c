"""Predict before training whether a pattern can be faster than dense at all, from GPU measurements or a performance model."""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from sparsefront_kernels.performance_model import PerformanceModel, PredictedSpeedup, Product, performance_model
from torch import Tensor, nn

from sparsefront.config.experiment import Experiment
from sparsefront.data.base import DataInfo
from sparsefront.measure.problems import LayerInput, observe_problems, theoretical_dense_flops
from sparsefront.measure.settings import DTYPES
from sparsefront.pruning.layers import plan_pruning

log = logging.getLogger(__name__)
ASKS = ("auto", "sparse")  # kernel modes that need a fast sparse kernel
LEAST_COVERED = 0.5  # fraction of the pruned layers' multiply-adds with a prediction, below which no warning is given


def warn_where_nothing_wins(experiment: Experiment) -> None:
    """Log one warning if every pruned layer with a predicted latency is expected to be slower than dense.

    Silent on a CPU, for storage without measurements or model, and if the network cannot be traced without data. Never
    fails.
    """
    device = experiment.measure.torch_device
    if device.type != "cuda":
        return
    known = performance_model(torch.cuda.get_device_name(device))
    if known is not None and (warning := predict_loss(experiment, known)) is not None:
        log.warning("%s", warning)


def predict_loss(experiment: Experiment, known: PerformanceModel) -> str | None:
    """The warning, or None if a layer may be faster or too little is known.

    Every layer is predicted at the run's sparsity, regardless of the allocation, for the real batch. A layer known only to
    the performance model counts as possibly faster within the model's error.
    """
    kernel = experiment.kernel
    if not experiment.swaps or kernel.mode not in ASKS or kernel.forced or not experiment.pattern.prunes:
        return None
    if experiment.pattern.takes_blocks or experiment.shrinking is not None:  # uses no kernels; or has other shapes
        return None
    if experiment.pattern.mixed:  # patterns of layers are chosen by measurement
        return None
    problems = _problems(experiment)
    layer_predictions = {name: _predict(experiment, known, seen) for name, seen in problems.items()}
    predictions = {name: predicted for name, predicted in layer_predictions.items() if predicted is not None}
    flops = {name: theoretical_dense_flops(seen.problem) for name, seen in problems.items()}
    covered = sum(flops[name] for name in predictions)
    if not predictions or covered < LEAST_COVERED * sum(flops.values()):
        return None
    best = max(predictions, key=lambda name: predictions[name].speedup)
    if any(predicted.may_win for predicted in predictions.values()):
        return None
    return _text(experiment, known, best, problems[best], predictions, len(problems))


def storage_granularity(family: str, parameters: Mapping[str, Any]) -> int | None:
    """The granularity under which the benchmark lists this storage; None if it measures nothing similar.

    Args:
        family, parameters: from a pattern's `storage`.
    """
    if family == "gathered":
        return parameters["tile"]
    if family == "blocked" and len(set(parameters["block"])) == 1:
        return parameters["block"][0]
    return None


def shape_inputs(
    info: DataInfo, *, batch_size: int, sequence_length: int | None, image_size: int | None = None
) -> dict[str, Tensor]:
    """Keyword arguments of the net for one measured batch, on the meta device: shapes without data.

    Text has no attention mask here, because a network may read its values.
    """
    if info.image_size is not None:
        side = image_size or info.image_size
        return {"x": torch.empty(batch_size, info.channels, side, side, device="meta")}
    shape = (batch_size, sequence_length or info.sequence_length)
    if info.kind == "translation":
        source, target = (torch.empty(shape, dtype=torch.int64, device="meta") for _ in range(2))
        return {"source": source, "source_mask": torch.empty(shape, dtype=torch.bool, device="meta"), "target": target}
    return {name: torch.empty(shape, dtype=torch.int64, device="meta") for name in ("input_ids", "token_type_ids")}


def _problems(experiment: Experiment) -> dict[str, LayerInput]:
    """The input of each pruned Linear layer; empty if the network cannot run on the meta device."""
    info, measure = experiment.dataset.info, experiment.measure
    net = experiment.model.skeleton(info).eval()
    prunable = experiment.model.prunable(net)
    plan = plan_pruning(
        net,
        prunable,
        pattern=experiment.pattern,
        sparsity=experiment.sparsity,
        ignored=experiment.recipe.find_ignored(prunable),
    )
    # skip convolutions: their dense time is not that of a matrix product
    layers = [name for name in plan.layers if isinstance(net.get_submodule(name), nn.Linear)]
    inputs = shape_inputs(
        info,
        batch_size=measure.batch_sizes[0],
        sequence_length=measure.sequence_lengths[0] if measure.mode != "decode" else 1,
        image_size=measure.image_size,
    )
    try:
        return observe_problems(net, inputs, layers)
    except Exception as error:  # data-dependent networks fail on the meta device; a prediction must not fail the run
        log.debug("no prediction: the network cannot be followed without data: %s", error)
        return {}


def _predict(experiment: Experiment, known: PerformanceModel, seen: LayerInput) -> PredictedSpeedup | None:
    problem = seen.problem
    family, parameters = experiment.pattern.storage((problem.n, problem.k), experiment.sparsity)
    unit = storage_granularity(family, parameters)
    if unit is None:
        return None
    dtype = next(name for name, value in DTYPES.items() if value == experiment.measure.torch_dtype)
    product = Product(
        m=problem.m,
        k=problem.k,
        n=problem.n,
        sparsity=experiment.sparsity,
        granularity=unit,
        distribution="equal",
        dtype=dtype,
        layout="row_major",
    )
    return known.speedup(product, family)


def _text(
    experiment: Experiment,
    known: PerformanceModel,
    best: str,
    received: LayerInput,
    predictions: Mapping[str, PredictedSpeedup],
    layers: int,
) -> str:
    problem, predicted = received.problem, predictions[best]
    outside = f" ({layers - len(predictions)} more are outside its range)" if layers > len(predictions) else ""
    return (
        f"prediction, not measurement: with pattern {experiment.pattern.name} at sparsity {experiment.sparsity:g} "
        f"none of {len(predictions)} pruned layers{outside} is expected to beat dense. Closest: {best}, MxKxN = "
        f"{problem.m}x{problem.k}x{problem.n}, {predicted.latency_us:.1f} us against {predicted.dense_us:.1f} us dense "
        f"({predicted.speedup:.2f}x). {_source(known, predicted)}"
    )


def _source(known: PerformanceModel, predicted: PredictedSpeedup) -> str:
    """Source of the prediction for the closest layer."""
    if predicted.source == "model":
        made_with, of = known.rates.made_with, _name_gpu(known, known.rates.gpu)
        how = (
            f"Computed by sparsefront_kernels.performance_model for {of} "
            f"(its speedups may be {predicted.error:.0%} off), fitted to"
        )
    else:
        made_with, of = known.table.made_with, _name_gpu(known, known.table.gpu)
        how = f"Interpolated by sparsefront_kernels.performance_model from its table of {of},"
    date, commit = made_with.get("date", "at an unknown date"), made_with.get("commit", "unknown")
    return f"{how} measurements of {date} at commit {commit}"


def _name_gpu(known: PerformanceModel, gpu: str) -> str:
    """The GPU model that was measured, and which one it stands in for if they differ."""
    return gpu if gpu == known.gpu else f"{gpu} (nothing was measured on {known.gpu})"
