"""The fastest dense version of a network at one place, shared by all rows."""

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from experiments.end_to_end.networks import Network, inputs_of
from experiments.end_to_end.points import Point
from experiments.harness.measure import timed_in_turn
from sparsefront.inference.fusion.block_pass import make_dense_graph
from sparsefront.measure.end_to_end import find_execution
from sparsefront.measure.settings import Measure
from sparsefront.measure.timers import summarize

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Dense:
    """What rows of one place share.

    Args:
        place: `Point.place`.
        network: in float32.
        net: in the dtype that is measured.
        inputs: of the timed forward.
        call: runs the fastest dense version; None where nothing is timed.
        variant: its name.
        latency_ms: its median when it was found.
        fused_latency_ms: of the fused graph with every layer dense; None where there is none.
    """

    place: tuple
    network: Network
    net: nn.Module
    inputs: dict[str, Tensor]
    call: Callable[[], Any] | None = None
    variant: str = ""
    latency_ms: float = float("nan")
    fused_latency_ms: float | None = None


def without_timing(network: Network, point: Point, device: torch.device, dtype: torch.dtype) -> Dense:
    """Network and inputs alone."""
    net = _in_dtype(network.net, dtype)
    inputs = inputs_of(
        net, point.batch, point.sequence_length, attention_mask=point.attention_mask, device=device, dtype=dtype
    )
    return Dense(point.place, network, net, inputs)


def find_dense(network: Network, point: Point, settings: Measure) -> Dense:
    """The fastest dense version, as an earlier search found or by a new one, timed beside the fused graph."""
    plain = without_timing(network, point, settings.torch_device, settings.torch_dtype)
    execution = find_execution(plain.net, plain.inputs, settings, make_dense_graph)
    log.info("dense candidates: %s", ", ".join(f"{name} {ms:.3f} ms" for name, ms in execution.medians_ms.items()))
    for name, why in execution.not_timed.items():
        log.info("dense candidate %s: %s", name, why)
    executions = {one.name: one for one in (execution, execution.fused) if one is not None}
    calls = {name: one.fastest.call for name, one in executions.items()}
    medians = {name: summarize(sum(runs, [])).median_ms for name, runs in timed_in_turn(calls, settings).items()}
    best = min(medians, key=medians.__getitem__)
    fused = [medians[name] for name, one in executions.items() if "fused_graph" in one.variants]
    log.info("dense: %s", ", ".join(f"{name} {ms:.3f} ms" for name, ms in medians.items()))
    return Dense(
        point.place,
        network,
        plain.net,
        plain.inputs,
        executions[best].fastest.call,
        best,
        medians[best],
        min(fused, default=None),
    )


def _in_dtype(net: nn.Module, dtype: torch.dtype) -> nn.Module:
    return copy.deepcopy(net).to(dtype).eval()
