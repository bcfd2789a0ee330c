"""The dense network in low precision, a baseline of every run, and the calibration that static scales need."""

import copy
import logging
from collections.abc import Callable
from itertools import islice

import torch
from torch import nn

from sparsefront.artifacts.store import ArtifactStore
from sparsefront.gpu import sharing
from sparsefront.inference.fusion.block_pass import fused_dense_graph
from sparsefront.inference.precision import activation_amax
from sparsefront.inference.swap import swap
from sparsefront.measure.accuracy import cast_inputs
from sparsefront.measure.variants import DoesNotApply
from sparsefront.stages.bench import EvalContext, SplitQuality, evaluate_stored
from sparsefront.stages.keys import StageKeys, reseed, stage_seed
from sparsefront.stages.network import open_data

log = logging.getLogger(__name__)


def calibration_of(bench: EvalContext, net: nn.Module) -> dict[str, float] | None:
    """Layer -> the largest magnitude that it is given, over the first batches of training data that stage prune reads; None where
    the precision of the run needs none.

    Args:
        net: ready, before kernels are swapped in; left as it is.
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
    with sharing(bench.device):
        return activation_amax(net, batches)


def dense_in(bench: EvalContext, net: nn.Module, precision: str) -> nn.Module:
    """A copy of a network in which every product that can runs dense in a low precision: blocks rewritten where that is known.

    Args:
        net: ready; left as it is. Its weights may be masked.
        precision: fp8, int8, or fp8_static, which is calibrated by the run.
    """
    if bench.device.type == "cuda" and precision != "fp8_static":
        try:
            return fused_dense_graph(net, bench.inputs, precision)
        except DoesNotApply:
            pass
    copied = copy.deepcopy(net)
    keeps_all = {
        name: torch.ones_like(layer.weight, dtype=torch.bool)
        for name in bench.experiment.model.prunable(copied)
        if isinstance(layer := copied.get_submodule(name), nn.Linear)
    }
    calibration = calibration_of(bench, net) if precision == "fp8_static" else None
    swap(copied, keeps_all, bench.inputs, precision=precision, calibration=calibration)
    return copied


def low_networks(bench: EvalContext, dense_net: nn.Module) -> dict[str, nn.Module]:
    """Precision -> the dense network in it, of those that the run's dense network is measured in."""
    return {precision: dense_in(bench, dense_net, precision) for precision in bench.experiment.dense_low}


def evaluate_low(
    store: ArtifactStore, keys: StageKeys, bench: EvalContext, precision: str, make_net: Callable[[], nn.Module]
) -> SplitQuality:
    """The metrics of the dense network in a low precision, once for all points of a sweep.

    Args:
        make_net: gives it.
    """
    return evaluate_stored(store, keys.dense_low_quality(precision), bench, "dense_low", make_net)
