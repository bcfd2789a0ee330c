"""Latency of a sparse network next to its dense baseline: same inputs and process, interleaved, each in its fastest execution."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import Tensor, nn

from sparsefront.gpu import clock_under_load, exclusive, shared, yield_gpu
from sparsefront.measure.attention import math_path_report
from sparsefront.measure.execution_mode import SEPARATOR, NothingRuns, fastest_execution_mode
from sparsefront.measure.fastest import Execution, fastest_execution, rebuilt_execution
from sparsefront.measure.search_cache import SearchCache, good_for, seconds_of
from sparsefront.measure.search_time import NOT_TRIED, current, part
from sparsefront.measure.settings import Measure
from sparsefront.measure.speedup import Speedup, speedup_of
from sparsefront.measure.timers import LatencySummary, summarise, time_interleaved
from sparsefront.measure.variants import DoesNotApply, Fuse
from sparsefront.networks import architecture_text

log = logging.getLogger(__name__)

MOST_RECOMPILES = 64  # of one network's code: one per variant, with room to spare


@dataclass(frozen=True)
class DenseTiming:
    """One network timed on its own.

    Args:
        latency: over the samples of all repeats.
        execution: how it ran, the latency of the other candidates, and why some were not timed.
        samples_ms: "dense", "fused_dense" (with a fused graph), "dense_low" (with a low precision) -> one list of samples per
            repeat.
        batch_size: rows of the inputs.
        fused_latency: of the fused graph with every layer dense; None without one.
        clock_mhz: GPU clock under the timed load; None on a CPU or where the driver does not report it.
        versions: all that were timed in turn; see `Execution.versions`.
        low: the same network in a low precision; None without one.
    """

    latency: LatencySummary
    execution: Execution
    samples_ms: dict[str, list[list[float]]]
    batch_size: int
    fused_latency: LatencySummary | None = None
    clock_mhz: float | None = None
    versions: tuple[str, ...] = ()
    low: "LowTiming | None" = None

    @property
    def throughput_samples_per_s(self) -> float:
        return self.batch_size / self.latency.median_ms * 1e3

    @property
    def not_timed(self) -> dict[str, str]:
        """Why candidates were not timed, under "dense/<candidate>"."""
        low = {} if self.low is None else self.low.execution.not_timed
        return _with_prefix("dense", self.execution.not_timed) | _with_prefix("dense_low", low)

    @property
    def medians_ms(self) -> dict[str, float]:
        """Median of each candidate's short timing, under "dense/<candidate>"."""
        low = {} if self.low is None else self.low.execution.medians_ms
        return _with_prefix("dense", self.execution.medians_ms) | _with_prefix("dense_low", low)


Reported = TypeVar("Reported", str, float)


def _with_prefix(side: str, found: Mapping[str, Reported]) -> dict[str, Reported]:
    return {f"{side}/{name}": value for name, value in found.items()}


@dataclass(frozen=True)
class LowTiming:
    """The fastest of a dense network's low precisions, timed in turn with it.

    Args:
        precision: fp8 or int8.
        net, execution: the network in that precision, and how it ran.
        latency: over the samples of all repeats.
        speedup: of the sparse network over it; None without one.
    """

    precision: str
    net: nn.Module
    execution: Execution
    latency: LatencySummary
    speedup: Speedup | None = None


@dataclass(frozen=True)
class EndToEnd:
    """Two networks timed side by side.

    Args:
        dense: the fastest dense version; see `DenseTiming`.
        sparse: over the samples of all repeats.
        speedup: dense / sparse with its interval.
        execution: how the sparse network ran.
        samples_ms: as in `DenseTiming`, plus "sparse".
    """

    dense: DenseTiming
    sparse: LatencySummary
    speedup: Speedup
    execution: Execution
    samples_ms: dict[str, list[list[float]]]

    @property
    def throughput_sparse_samples_per_s(self) -> float:
        return self.dense.batch_size / self.sparse.median_ms * 1e3

    @property
    def not_timed(self) -> dict[str, str]:
        """Why candidates of either network were not timed, under "dense/<candidate>" and "sparse/<candidate>"."""
        return self.dense.not_timed | _with_prefix("sparse", self.execution.not_timed)

    @property
    def medians_ms(self) -> dict[str, float]:
        """Short-timing medians of both networks, under the same keys."""
        return self.dense.medians_ms | _with_prefix("sparse", self.execution.medians_ms)


def time_alone(
    net: nn.Module,
    inputs: dict[str, Tensor],
    settings: Measure,
    *,
    fuse: Fuse | None = None,
    low: Mapping[str, nn.Module] | None = None,
) -> DenseTiming:
    """Find the fastest way to run a dense network that has no sparse version, then time it. Arguments as in `time_pair`."""
    execution, found = find_dense(net, inputs, settings, fuse), _find_low(low or {}, inputs, settings)
    samples_ms, clock_mhz = _time(_dense_calls(execution) | _low_calls(found), inputs, settings)
    timed = _fastest_dense(execution, samples_ms, inputs)
    return replace(timed, clock_mhz=clock_mhz, versions=execution.versions, **_low_fields(found, samples_ms, timed))


def time_pair(
    dense: nn.Module,
    sparse: nn.Module,
    inputs: dict[str, Tensor],
    settings: Measure,
    *,
    fuse: Fuse | None = None,
    low: Mapping[str, nn.Module] | None = None,
) -> EndToEnd:
    """Find the fastest way to run each network, then time all in turn.

    Args:
        dense, sparse: in eval mode, on the inputs' device, in `settings.torch_dtype`.
        inputs: keyword arguments of both.
        fuse: makes our fused graph of the dense network, a candidate for the fastest dense version that is also reported
            separately; None where there is none. A sparse network without sparse kernels gets the same candidate.
        low: low precision -> the dense network in it, a separate baseline; the fastest of them is timed.
    Raises:
        RuntimeError: no execution mode can run one of them; or a CUDA timing without a GPU.
    """
    with part(0.5, "dense"):
        execution = find_dense(dense, inputs, settings, fuse)
    has_kernels = any(isinstance(module, SparseLayer) for module in sparse.modules())
    with part(1.0, "sparse"):
        modes = _tried(execution, settings) if current() else None
        sparse_execution = find_execution(sparse, inputs, settings, None if has_kernels else fuse, modes=modes)
    found = _find_low(low or {}, inputs, settings)
    calls = _dense_calls(execution) | _low_calls(found) | {"sparse": sparse_execution}
    samples_ms, clock_mhz = _time(calls, inputs, settings)
    timed = _fastest_dense(execution, samples_ms, inputs)
    timed = replace(timed, clock_mhz=clock_mhz, versions=execution.versions, **_low_fields(found, samples_ms, timed))
    return EndToEnd(
        dense=timed,
        sparse=summarise(sum(samples_ms["sparse"], [])),
        speedup=speedup_of(timed.samples_ms["dense"], samples_ms["sparse"]),
        execution=sparse_execution,
        samples_ms=timed.samples_ms | {"sparse": samples_ms["sparse"]},
    )


def _tried(execution: Execution, settings: Measure) -> list[str]:
    """Execution modes that the dense search had time for; the sparse network is not given any others."""
    names = [
        *execution.medians_ms,
        *(name for name, why in execution.not_timed.items() if not why.startswith(NOT_TRIED)),
    ]
    tried = {name.split(SEPARATOR)[0] for name in names}
    return [mode for mode in settings.execution_modes if mode in tried or execution.known]


def time_against_dense(
    net: nn.Module, dense: Execution, inputs: dict[str, Tensor], settings: Measure
) -> tuple[LatencySummary, LatencySummary]:
    """Find the fastest way to run a network, then time it in turn with the dense versions of `time_pair`: alone, a network that
    does little work would leave the GPU so cool that its clock rises.

    Args:
        dense: from `find_dense`; one serves many networks, since compiled code is kept.
    Returns:
        latency of the network, and of the fastest dense version timed in turn with it.
    Raises:
        as `time_pair`.
    """
    execution = find_execution(net, inputs, settings)
    samples_ms, _ = _time(_dense_calls(dense) | {"sparse": execution}, inputs, settings)
    return summarise(sum(samples_ms["sparse"], [])), _fastest_dense(dense, samples_ms, inputs).latency


def time_size(
    ways: Mapping[str, tuple[nn.Module, Execution]], inputs: dict[str, Tensor], settings: Measure
) -> dict[str, list[list[float]]]:
    """Time networks on another batch size, each in the execution that was fastest at its own, compiled and recorded again.

    Args:
        ways: "dense" or "sparse" -> the network, and its fastest execution.
    Returns:
        side -> samples in milliseconds, one list per repeat, taken in turn.
    Raises:
        NothingRuns: a network fails in this execution mode, or gives a wrong output.
    """
    device = _device(inputs)
    _forget_compiled(inputs)
    calls: dict[str, Callable[[], Any]] = {}
    with shared(device), _within_recompile_limit(device):
        for side, (net, execution) in ways.items():
            yield_gpu(device)
            way = execution.fastest
            found = fastest_execution_mode(
                way.net,
                inputs,
                execution_modes=[way.name],
                device=device,
                dtype=settings.torch_dtype,
                original=None if way.net is net else net,
            )
            calls[side] = found.call
    return _time_calls(calls, device, settings)[0]


def find_dense(net: nn.Module, inputs: dict[str, Tensor], settings: Measure, fuse: Fuse | None = None) -> Execution:
    """The fastest way to run a dense network, to time others next to it; arguments as in `time_alone`."""
    _forget_compiled(inputs)
    return find_execution(net, inputs, settings, fuse)


def rebuild_dense(
    net: nn.Module, inputs: dict[str, Tensor], settings: Measure, versions: Sequence[str], fuse: Fuse | None = None
) -> Execution:
    """Rebuild what `find_dense` found before for such a network; raises as `rebuilt_execution`."""
    _forget_compiled(inputs)
    device = _device(inputs)
    with shared(device), _within_recompile_limit(device):
        return rebuilt_execution(net, inputs, versions, device=device, dtype=settings.torch_dtype, fuse=fuse)


def _forget_compiled(inputs: dict[str, Tensor]) -> None:
    if _device(inputs).type == "cuda":
        torch.compiler.reset()  # earlier points of a sweep count towards the recompile limit


def find_execution(
    net: nn.Module,
    inputs: dict[str, Tensor],
    settings: Measure,
    fuse: Fuse | None = None,
    *,
    modes: Sequence[str] | None = None,
) -> Execution:
    """The fastest way to run one network: `fastest_execution` with the settings of a measurement.

    Args:
        modes: subset of the settings' execution modes to try; None: all.
    """
    device = _device(inputs)
    search = current()
    key = "" if search is None else _search_key(net, inputs, settings, fuse)
    with shared(device), _within_recompile_limit(device):
        known = None if search is None else known_versions.get(key, device)
        if search is not None and known is not None and search.seconds <= seconds_of(known):
            with suppress(DoesNotApply, NothingRuns):
                again = rebuilt_execution(
                    net, inputs, known["versions"], device=device, dtype=settings.torch_dtype, fuse=fuse
                )
                return replace(again, known=True)
        found = fastest_execution(
            net,
            inputs,
            execution_modes=settings.execution_modes if modes is None else modes,
            variants=settings.variants,
            seconds=settings.autotune_seconds,
            device=device,
            dtype=settings.torch_dtype,
            fuse=fuse,
        )
        # on a CPU the math path is the normal one
        if device.type == "cuda" and (slow := math_path_report(found.fastest.net, inputs)) is not None:
            log.warning("%s: %s", type(net).__name__, slow)
    if search is not None:
        known_versions.keep(key, {"versions": list(found.versions)} | good_for(search), device)
    return found


# Results of earlier searches, for library calls that search the same network again: network, inputs and settings ->
# `Execution.versions`, and the longest search that would find the same.
known_versions = SearchCache("modes", ("sparsefront.measure.fastest", "sparsefront.inference.fusion.block_pass"))


def _search_key(net: nn.Module, inputs: dict[str, Tensor], settings: Measure, fuse: Fuse | None) -> str:
    tried = (*settings.execution_modes, *settings.variants, settings.dtype, _fuse_text(fuse))
    sizes = (f"{name} {value.shape if isinstance(value, Tensor) else value}" for name, value in inputs.items())
    return "\n".join((architecture_text(net), *tried, *sizes))


def _fuse_text(fuse: Fuse | None) -> str:
    """The full name of a module-level function, the same in every process; others, by their address, only count in this one."""
    name = getattr(fuse, "__qualname__", "<")
    return str(fuse) if "<" in name else f"{fuse.__module__}.{name}"


def _within_recompile_limit(device: torch.device) -> AbstractContextManager[None]:
    """Make Dynamo raise at its recompile limit, so that the candidate is dropped; by default it silently runs eager code."""
    if device.type != "cuda":
        return nullcontext()
    return torch._dynamo.config.patch(recompile_limit=MOST_RECOMPILES, fail_on_recompile_limit_hit=True)


def _device(inputs: dict[str, Tensor]) -> torch.device:
    return next(iter(inputs.values())).device


def _dense_calls(execution: Execution) -> dict[str, Execution]:
    """The fastest dense version and, if it is not the same, the fused graph."""
    fused = execution.fused
    return {"dense": execution} | ({"fused_dense": fused} if fused and fused.name != execution.name else {})


@dataclass(frozen=True)
class _FoundLow:
    """The fastest low precision by its search's short timing."""

    precision: str
    net: nn.Module
    execution: Execution


def _find_low(low: Mapping[str, nn.Module], inputs: dict[str, Tensor], settings: Measure) -> _FoundLow | None:
    """The fastest low precision; None where there is none, or none can run."""
    found: list[_FoundLow] = []
    for precision, net in low.items():
        try:
            found.append(_FoundLow(precision, net, find_execution(net, inputs, settings)))
        except NothingRuns as error:
            log.warning("the dense network in %s is not timed: %s", precision, error)
    return min(found, key=lambda one: one.execution.fastest.median_ms, default=None)


def _low_calls(found: _FoundLow | None) -> dict[str, Execution]:
    return {} if found is None else {"dense_low": found.execution}


def _low_fields(
    found: _FoundLow | None, samples_ms: dict[str, list[list[float]]], dense: DenseTiming
) -> dict[str, Any]:
    """Fields of `DenseTiming` that a low precision sets."""
    if found is None:
        return {}
    taken = samples_ms["dense_low"]
    over = speedup_of(taken, samples_ms["sparse"]) if "sparse" in samples_ms else None
    latency = summarise(sum(taken, []))
    low = LowTiming(found.precision, found.net, found.execution, latency, over)
    return {"low": low, "samples_ms": dense.samples_ms | {"dense_low": taken}}


def _fastest_dense(
    execution: Execution, samples_ms: dict[str, list[list[float]]], inputs: dict[str, Tensor]
) -> DenseTiming:
    """Report the faster of the two timed versions as dense, whatever the short timings said."""
    sides: list[str] = [side for side in ("dense", "fused_dense") if side in samples_ms]
    latencies = {side: summarise(sum(samples_ms[side], [])) for side in sides}
    fused = latencies.get("fused_dense", latencies["dense"]) if execution.fused else None
    if execution.fused and fused is not None and fused.median_ms < latencies["dense"].median_ms:
        best = replace(execution.fused, fused=execution.fused)
        return _dense_timing(best, fused, {"dense": samples_ms["fused_dense"]}, inputs, fused)
    kept = {side: samples_ms[side] for side in sides}
    return _dense_timing(execution, latencies["dense"], kept, inputs, fused)


def _dense_timing(
    execution: Execution,
    latency: LatencySummary,
    samples_ms: dict[str, list[list[float]]],
    inputs: dict[str, Tensor],
    fused: LatencySummary | None,
) -> DenseTiming:
    return DenseTiming(latency, execution, samples_ms, len(next(iter(inputs.values()))), fused)


def _time(
    executions: dict[str, Execution], inputs: dict[str, Tensor], settings: Measure
) -> tuple[dict[str, list[list[float]]], float | None]:
    """Time in turn: name -> samples in milliseconds, one list per repeat; and the GPU's clock in MHz right after them."""
    calls = {name: execution.fastest.call for name, execution in executions.items()}
    return _time_calls(calls, _device(inputs), settings)


def _time_calls(
    calls: dict[str, Callable[[], Any]], device: torch.device, settings: Measure
) -> tuple[dict[str, list[list[float]]], float | None]:
    samples_ms: dict[str, list[list[float]]] = {name: [] for name in calls}
    with exclusive(device):
        for _ in range(settings.repeats):
            taken = time_interleaved(calls, device=device, warmup=settings.warmup, samples=settings.samples)
            for name, samples in taken.items():
                samples_ms[name].append(samples)
        return samples_ms, clock_under_load(list(calls.values()), device)
