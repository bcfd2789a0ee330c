"""The dense network in low precision (a baseline of every run), and calibration of static scales."""

import logging
from itertools import islice

from torch import nn

from sparsefront.gpu import share_gpu
from sparsefront.inference.fusion.block_pass import make_dense_graph
from sparsefront.inference.precision import activation_amax
from sparsefront.measure.accuracy import cast_inputs
from sparsefront.measure.decode import int8_weight_only
from sparsefront.measure.settings import INT8_WEIGHT_ONLY
from sparsefront.measure.variants import DoesNotApply
from sparsefront.stages.bench import EvalContext
from sparsefront.stages.keys import reseed, stage_seed
from sparsefront.stages.network import open_data

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
