"""The fastest dense version of a network at one place: searched once, known again in the next call, shared by all rows."""

import copy
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.end_to_end.networks import Network, inputs_of
from experiments.end_to_end.points import Point
from experiments.harness.measure import timed_in_turn
from sparsefront.artifacts.durable import whole_file
from sparsefront.errors import failure_reason
from sparsefront.inference.fusion.block_pass import fused_dense_graph
from sparsefront.measure.end_to_end import find_execution
from sparsefront.measure.execution_mode import fastest_execution_mode
from sparsefront.measure.fastest import Execution
from sparsefront.measure.settings import Measure
from sparsefront.measure.timers import summarise
from sparsefront.measure.variants import make_variant

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


class KnownVariants:
    """Names of the fastest versions that earlier calls found, in a JSON file beside the rows."""

    def __init__(self, file: Path, *, forget: bool = False) -> None:
        self.file = file
        if forget:
            file.unlink(missing_ok=True)
        self._known = self._read()

    def of(self, place: tuple) -> list[str] | None:
        return self._known.get(str(place))

    def note(self, place: tuple, names: list[str]) -> None:
        """Keep them beside what other processes found meanwhile; what two that write at once lose is searched again."""
        self._known = self._read() | {str(place): names}
        with whole_file(self.file) as temporary:
            temporary.write_text(json.dumps(self._known, indent=2) + "\n", encoding="utf-8")

    def _read(self) -> dict[str, list[str]]:
        return json.loads(self.file.read_text(encoding="utf-8")) if self.file.is_file() else {}


def without_timing(network: Network, point: Point, device: torch.device, dtype: torch.dtype) -> Dense:
    """Network and inputs alone."""
    net = _in_dtype(network.net, dtype)
    inputs = inputs_of(
        net, point.batch, point.sequence_length, attention_mask=point.attention_mask, device=device, dtype=dtype
    )
    return Dense(point.place, network, net, inputs)


def find_dense(network: Network, point: Point, settings: Measure, known: KnownVariants) -> Dense:
    """Search the fastest dense version, or make the one again that was found before, and time it beside the fused graph."""
    plain = without_timing(network, point, settings.torch_device, settings.torch_dtype)
    executions = _again(plain, settings, known.of(point.place)) or _search(plain, settings)
    known.note(point.place, [one.name for one in executions])
    calls = {one.name: one.fastest.call for one in executions}
    medians = {name: summarise(sum(runs, [])).median_ms for name, runs in timed_in_turn(calls, settings).items()}
    best = min(executions, key=lambda one: medians[one.name])
    fused = [medians[one.name] for one in executions if "fused_graph" in one.variants]
    log.info("dense: %s", ", ".join(f"{name} {ms:.3f} ms" for name, ms in medians.items()))
    return Dense(
        point.place,
        network,
        plain.net,
        plain.inputs,
        best.fastest.call,
        best.name,
        medians[best.name],
        min(fused, default=None),
    )


def _search(plain: Dense, settings: Measure) -> list[Execution]:
    found = find_execution(plain.net, plain.inputs, settings, fused_dense_graph)
    log.info("dense candidates: %s", ", ".join(f"{name} {ms:.3f} ms" for name, ms in found.medians_ms.items()))
    for name, why in found.not_timed.items():
        log.info("dense candidate %s: %s", name, why)
    return [found] if found.fused is None or found.fused.name == found.name else [found, found.fused]


def _again(plain: Dense, settings: Measure, names: list[str] | None) -> list[Execution] | None:
    """The versions of these names, or None where one of them does not come about."""
    try:
        return [_execution(name, plain, settings) for name in names] if names else None
    except Exception as error:  # whatever it is, the search finds something that runs
        log.warning("dense: %s could not be made again: %s", names, failure_reason(error))
        return None


def _execution(name: str, plain: Dense, settings: Measure) -> Execution:
    mode, *variants = name.split("+")
    net = plain.net
    for variant in variants:
        net = make_variant(variant, net, plain.inputs, fuse=fused_dense_graph)
    fastest = fastest_execution_mode(
        net,
        plain.inputs,
        execution_modes=[mode],
        device=settings.torch_device,
        dtype=settings.torch_dtype,
        original=plain.net if variants else None,
    )
    return Execution(fastest, tuple(variants))


def _in_dtype(net: nn.Module, dtype: torch.dtype) -> nn.Module:
    return copy.deepcopy(net).to(dtype).eval()
