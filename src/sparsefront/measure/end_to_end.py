"""Latency of a sparse network next to its dense baseline: same inputs and process, interleaved, each in its fastest execution."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import Tensor, nn

from sparsefront.errors import failure_reason
from sparsefront.gpu import clock_under_load, exclusive, share_gpu, yield_gpu
from sparsefront.measure.attention import math_path_report
from sparsefront.measure.execution_mode import SEPARATOR, NothingRuns, fastest_execution_mode, within_recompile_limit
from sparsefront.measure.fastest import Execution, ExecutionSearch, rebuild_execution
from sparsefront.measure.search_time import NOT_TRIED, SearchCache, SearchTime, current, part, searching
from sparsefront.measure.settings import Measure
from sparsefront.measure.speedup import Speedup, speedup_of
from sparsefront.measure.timers import LatencySummary, summarize, time_interleaved
from sparsefront.measure.variants import DoesNotApply, Fuse, copy_sharing_weights
from sparsefront.models.linears import as_linears
from sparsefront.networks import architecture_text

log = logging.getLogger(__name__)


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
    """

    precision: str
    net: nn.Module
    execution: Execution
    latency: LatencySummary


@dataclass(frozen=True)
class EndToEnd:
    """Two networks timed side by side.

    Args:
        dense: the fastest dense version; see `DenseTiming`.
        sparse: over the samples of all repeats.
        speedup: dense / sparse with its interval.
        execution: how the sparse network ran.
        samples_ms: as in `DenseTiming`, plus "sparse".
        left_dense: no layer is sparse: the dense network is what runs, and its samples are those of "sparse" too.
    """

    dense: DenseTiming
    sparse: LatencySummary
    speedup: Speedup
    execution: Execution
    samples_ms: dict[str, list[list[float]]]
    left_dense: bool = False

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
    execution, fastest_low = find_dense(net, inputs, settings, fuse), _find_low(low or {}, inputs, settings)
    calls = _versions("dense", execution) | ({} if fastest_low is None else {"dense_low": fastest_low[2]})
    samples_ms, clock_mhz = _time(calls, inputs, settings)
    timed = _fastest_version("dense", execution, samples_ms, inputs)
    return _with_low(replace(timed, clock_mhz=clock_mhz, versions=execution.versions), fastest_low, samples_ms)


def time_pair(
    dense: nn.Module,
    sparse: nn.Module,
    inputs: dict[str, Tensor],
    settings: Measure,
    *,
    fuse: Fuse | None = None,
    low: Mapping[str, nn.Module] | None = None,
) -> EndToEnd:
    """Find the fastest way to run each network, then time all in turn. A network that a swap left dense (`set_left_dense`) is
    not timed apart from the dense one in its precision: zeros in its weights alone would give it a speedup.

    Args:
        dense, sparse: in eval mode, on the inputs' device, in `settings.torch_dtype`.
        inputs: keyword arguments of both.
        fuse: makes our fused graph of the dense network, a candidate for the fastest dense version that is also reported
            separately; None where there is none. A sparse network without sparse kernels gets the same candidate.
        low: low precision -> the dense network in it, a separate baseline; the fastest of them is timed.
    Raises:
        RuntimeError: no execution mode can run one of them; or a CUDA timing without a GPU.
    """
    _forget_compiled(inputs)
    low, left_dense = low or {}, was_left_dense(sparse, dense)
    networks = {"dense": (dense, fuse)}
    if left_dense not in ("none", *low):
        has_kernels = any(isinstance(module, SparseLayer) for module in sparse.modules())
        networks["sparse"] = (sparse, None if has_kernels else fuse)
    executions = _find_executions(networks, inputs, settings)
    fastest_low = _find_low(low, inputs, settings)
    sides = {"none": "dense"} | ({} if fastest_low is None else {fastest_low[0]: "dense_low"})
    side_run = sides.get(left_dense or "", "sparse")
    if side_run == "sparse" and "sparse" not in executions:  # another low precision is faster
        executions["sparse"] = find_execution(sparse, inputs, settings)
    calls = {} if fastest_low is None else {"dense_low": fastest_low[2]}
    for side, execution in executions.items():
        calls |= _versions(side, execution)
    samples_ms, clock_mhz = _time(calls, inputs, settings)
    timed = _fastest_version("dense", executions["dense"], samples_ms, inputs)
    timed = replace(timed, clock_mhz=clock_mhz, versions=executions["dense"].versions)
    timed = _with_low(timed, fastest_low, samples_ms)
    ours: DenseTiming | LowTiming = timed.low if side_run == "dense_low" and timed.low is not None else timed
    all_samples_ms = timed.samples_ms
    if side_run == "sparse":
        ours = fastest = _fastest_version("sparse", executions["sparse"], samples_ms, inputs)
        all_samples_ms = all_samples_ms | {"sparse": fastest.samples_ms["sparse"]}
    samples_ms = all_samples_ms | {"sparse": all_samples_ms[side_run]}
    return EndToEnd(
        dense=timed,
        sparse=ours.latency,
        speedup=speedup_of(samples_ms["dense"], samples_ms["sparse"]),
        execution=ours.execution,
        samples_ms=samples_ms,
        left_dense=side_run != "sparse",
    )


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
    samples_ms, _ = _time(_versions("dense", dense) | {"sparse": execution}, inputs, settings)
    return summarize(sum(samples_ms["sparse"], [])), _fastest_version("dense", dense, samples_ms, inputs).latency


def time_size(
    ways: Mapping[str, tuple[nn.Module, Execution]], inputs: dict[str, Tensor], settings: Measure
) -> dict[str, list[list[float]]]:
    """Time networks on another batch size, each in the execution that was fastest at its own, compiled and recorded again.

    Args:
        ways: "dense" or "sparse" -> the network, and its fastest execution.
    Returns:
        side -> samples in milliseconds, one list per repeat, taken in turn; the same for two sides of one execution.
    Raises:
        NothingRuns: a network fails in this execution mode, or gives a wrong output.
    """
    device = _device(inputs)
    _forget_compiled(inputs)
    calls: dict[str, Callable[[], Any]] = {}
    sides: dict[int, str] = {}  # of each execution, the first
    with share_gpu(device), within_recompile_limit(device):
        for side, (net, execution) in ways.items():
            if sides.setdefault(id(execution), side) != side:
                continue
            yield_gpu(device)
            way = execution.fastest
            fastest = fastest_execution_mode(
                way.net,
                inputs,
                execution_modes=[way.name],
                device=device,
                dtype=settings.torch_dtype,
                original=None if way.net is net else net,
            )
            calls[side] = fastest.call
    samples_ms, _ = _time_calls(calls, device, settings)
    return {side: samples_ms[sides[id(execution)]] for side, (_, execution) in ways.items()}


def find_dense(net: nn.Module, inputs: dict[str, Tensor], settings: Measure, fuse: Fuse | None = None) -> Execution:
    """The fastest way to run a dense network, to time others next to it; arguments as in `time_alone`."""
    _forget_compiled(inputs)
    return find_execution(net, inputs, settings, fuse)


def _forget_compiled(inputs: dict[str, Tensor]) -> None:
    if _device(inputs).type == "cuda":
        torch.compiler.reset()  # earlier points of a sweep count towards the recompile limit


def find_execution(net: nn.Module, inputs: dict[str, Tensor], settings: Measure, fuse: Fuse | None = None) -> Execution:
    """The fastest way to run one network: as an earlier search found, or by an `ExecutionSearch` with these settings."""
    return _find_executions({"": (net, fuse)}, inputs, settings)[""]


def _find_executions(
    networks: Mapping[str, tuple[nn.Module, Fuse | None]], inputs: dict[str, Tensor], settings: Measure
) -> dict[str, Execution]:
    """The fastest way to run each network. What an earlier search found is rebuilt; of the others first the likely versions
    of all are tried, then others, as far as time allows: the enclosing search's, or else `autotune_seconds` per network.

    Args:
        networks: prefix of its candidates in reports -> the network, and what makes its fused graph.
    """
    if current() is None:
        with searching(SearchTime(len(networks) * settings.autotune_seconds, log.info)):
            return _find_executions(networks, inputs, settings)
    device = _device(inputs)
    executions: dict[str, Execution] = {}
    searches: dict[str, ExecutionSearch] = {}
    keys = {
        side: "\n".join((architecture_text(net), _conditions(inputs, settings, fuse)))
        for side, (net, fuse) in networks.items()
    }
    alike = {key: side for side, key in reversed(keys.items())}  # networks that are built alike run alike
    with share_gpu(device), within_recompile_limit(device):
        for side, (net, fuse) in networks.items():
            if alike[keys[side]] != side:
                continue
            with _part_of(side):
                known = _recall_search(net, keys[side], inputs, settings, fuse)
                rebuilt = _rebuild(net, inputs, settings, fuse, known)
                if rebuilt is not None:
                    executions[side] = rebuilt
                    continue
                searches[side] = ExecutionSearch(
                    net,
                    inputs,
                    execution_modes=settings.execution_modes,
                    variants=settings.variants,
                    device=device,
                    dtype=settings.torch_dtype,
                    fuse=fuse,
                )
                searches[side].try_likely()
        for place, (side, search) in enumerate(searches.items()):
            with _part_of(side, 1 / (len(searches) - place)):
                for other in executions.values():  # modes that there was no time for are not given to one network alone
                    late = {mode: why for mode, why in _late_modes(other).items() if mode in search.slowest}
                    search.slowest = [mode for mode in search.slowest if mode not in late]
                    search.not_timed |= late
                search.try_others()
                executions[side] = search.result()
            # on a CPU the math path is the normal one
            net = networks[side][0]
            if device.type == "cuda" and (slow := math_path_report(executions[side].fastest.net, inputs)) is not None:
                log.warning("%s: %s", type(net).__name__, slow)
            known_searches.keep(keys[side], _to_store(executions[side]), device)
        for side, key in keys.items():
            if side not in executions:
                net, fuse = networks[side]
                known = _to_store(executions[alike[key]])
                rebuilt = _rebuild(net, inputs, settings, fuse, known)
                executions[side] = rebuilt or find_execution(net, inputs, settings, fuse)
    return executions


def _part_of(side: str, share: float = 1.0) -> AbstractContextManager[None]:
    return part(share, side) if side else nullcontext()


def _late_modes(execution: Execution) -> dict[str, str]:
    """The modes that there was no time for, and why."""
    return {name.split(SEPARATOR)[0]: why for name, why in execution.not_timed.items() if why.startswith(NOT_TRIED)}


def _recall_search(
    net: nn.Module, key: str, inputs: dict[str, Tensor], settings: Measure, fuse: Fuse | None
) -> dict[str, Any] | None:
    """What was decided for this network (`set_decided_versions`), or found by an earlier search that had as much time."""
    decided: Mapping[str, Sequence[str]] = vars(net).get(DECIDED, {})
    versions = decided.get(_conditions(inputs, settings, fuse))
    if versions is not None:
        return {"versions": versions, "not_timed": {}}
    known = known_searches.get(key, _device(inputs))
    budget = current()
    in_time = known is not None and (known["seconds"] is None or budget is None or known["seconds"] >= budget.seconds)
    return known if in_time else None


def _to_store(execution: Execution) -> dict[str, Any]:
    """A search's result: its versions, what it did not time, and its limit, None where more time would find the same."""
    budget = current()
    limited = budget is not None and not math.isinf(budget.seconds) and (_late_modes(execution) or budget.left_out)
    return {
        "versions": list(execution.versions),
        "not_timed": execution.not_timed,
        "seconds": budget.seconds if budget is not None and limited else None,
    }


def _rebuild(
    net: nn.Module, inputs: dict[str, Tensor], settings: Measure, fuse: Fuse | None, known: dict[str, Any] | None
) -> Execution | None:
    """`rebuild_execution` of an earlier search; None without one, or where its versions fail here, which is reported."""
    if known is None:
        return None
    device, dtype, versions = _device(inputs), settings.torch_dtype, known["versions"]
    try:
        execution = rebuild_execution(
            net, inputs, versions, device=device, dtype=dtype, fuse=fuse, not_timed=known["not_timed"]
        )
    except (DoesNotApply, NothingRuns) as error:
        why = f"the fastest before, fails now: {failure_reason(error)}"
        log.warning("%s as %s: %s; it is searched again", type(net).__name__, versions[0], why)
        budget = current()
        if budget is not None:
            budget.skip(versions[0], why)
        return None
    log.info("%s runs as %s, as found before", type(net).__name__, execution.name)
    return execution


# Attribute of a swapped network: conditions of a search -> the versions that were decided.
DECIDED = "_decided_versions"


def set_decided_versions(
    net: nn.Module, inputs: dict[str, Tensor], settings: Measure, versions: Sequence[str], fuse: Fuse | None = None
) -> None:
    """Make later searches with this network, these input shapes and settings start with these `Execution.versions`."""
    vars(net).setdefault(DECIDED, {})[_conditions(inputs, settings, fuse)] = tuple(versions)


# Attribute of a swapped network without a sparse layer -> `architecture_text` before the swap, and the precision it runs in.
LEFT_DENSE = "_left_dense"
NO_LAYER_IS_SPARSE = "no layer is sparse: the dense network is what runs"


def set_left_dense(net: nn.Module, architecture: str | None, precision: str = "none") -> None:
    """Make `time_pair` report the dense network of this architecture, in this precision if that is timed, for this one, in which
    a swap left no layer sparse; None: some layer is.
    """
    vars(net)[LEFT_DENSE] = None if architecture is None else (architecture, precision)


def was_left_dense(net: nn.Module, dense: nn.Module) -> str | None:
    """The precision in which this network, or the one that it is a part of, runs what the dense one does; None: it does not."""
    others = dict(dense.named_modules())
    for name, module in net.named_modules():
        left = vars(module).get(LEFT_DENSE)
        if left is not None and name in others:
            return left[1] if left[0] == describe_pruned(others[name]) else None
    return None


def describe_pruned(dense: nn.Module) -> str:
    """`architecture_text` of a network as it is when it was pruned."""
    as_pruned = copy_sharing_weights(dense)
    as_linears(as_pruned, copies=True)
    return architecture_text(as_pruned)


# Results of earlier searches, of other points of a sweep and other processes too: network, inputs and settings -> `_to_store`.
known_searches = SearchCache("modes", ("sparsefront.measure.fastest", "sparsefront.inference.fusion.block_pass"))


def _conditions(inputs: dict[str, Tensor], settings: Measure, fuse: Fuse | None) -> str:
    """Text of all that a search depends on besides the network."""
    tried = (*settings.execution_modes, *settings.variants, settings.dtype, _fuse_text(fuse))
    sizes = (f"{name} {value.shape if isinstance(value, Tensor) else value}" for name, value in inputs.items())
    return "\n".join((*tried, *sizes))


def _fuse_text(fuse: Fuse | None) -> str:
    """The full name of a module-level function, the same in every process; others, by their address, only count in this one."""
    name = getattr(fuse, "__qualname__", "<")
    return str(fuse) if "<" in name else f"{fuse.__module__}.{name}"


def _device(inputs: dict[str, Tensor]) -> torch.device:
    return next(iter(inputs.values())).device


def _versions(side: str, execution: Execution) -> dict[str, Execution]:
    """The fastest version of a network and, if it is not the same, its fused graph."""
    fused = execution.fused
    return {side: execution} | ({f"fused_{side}": fused} if fused and fused.name != execution.name else {})


def _find_low(
    low: Mapping[str, nn.Module], inputs: dict[str, Tensor], settings: Measure
) -> tuple[str, nn.Module, Execution] | None:
    """The fastest low precision by its search's short timing, its network and execution; None where none can run."""
    candidates = []
    for precision, net in low.items():
        try:
            candidates.append((precision, net, find_execution(net, inputs, settings)))
        except NothingRuns as error:
            log.warning("the dense network in %s is not timed: %s", precision, error)
    return min(candidates, key=lambda one: one[2].fastest.median_ms, default=None)


def _with_low(
    dense: DenseTiming, low: tuple[str, nn.Module, Execution] | None, samples_ms: dict[str, list[list[float]]]
) -> DenseTiming:
    if low is None:
        return dense
    samples = {"dense_low": samples_ms["dense_low"]}
    timed = LowTiming(*low, summarize(sum(samples["dense_low"], [])))
    return replace(dense, low=timed, samples_ms=dense.samples_ms | samples)


def _fastest_version(
    side: str, execution: Execution, samples_ms: dict[str, list[list[float]]], inputs: dict[str, Tensor]
) -> DenseTiming:
    """Report the faster of a network's two timed versions under the name `side`, whatever the short timings said."""
    timed = {name: samples_ms[name] for name in (side, f"fused_{side}") if name in samples_ms}
    latencies = {name: summarize(sum(samples, [])) for name, samples in timed.items()}
    latency, fused = latencies[side], latencies.get(f"fused_{side}", latencies[side]) if execution.fused else None
    if execution.fused and fused is not None and fused.median_ms < latency.median_ms:
        execution, latency = replace(execution.fused, fused=execution.fused), fused
        timed = {side: samples_ms[f"fused_{side}"]}
    return DenseTiming(latency, execution, timed, len(next(iter(inputs.values()))), fused)


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
