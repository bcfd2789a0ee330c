"""How long one layer or block takes on the GPU, alone: graph replays, on operands that no cache still holds."""

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from statistics import median
from typing import Any

import torch
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import Tensor, nn

from sparsefront.errors import failure_reason
from sparsefront.gpu_sharing.access import alone
from sparsefront.measure.agreement import floating_tensors
from sparsefront.measure.graph_capture import record
from sparsefront.measure.host_time import require_prompt
from sparsefront.measure.latency import cuda_ms
from sparsefront.measure.launch_choice import LaunchChoice, untried_launches
from sparsefront.measure.memory import stored_bytes

log = logging.getLogger(__name__)
SAMPLES, FEWEST = 20, 3
BUDGET_MS = 100.0
MOST_COPIES = 64
WARMUP = 3
AS_FAST = 1.05  # times the fastest launch: such launches may be the fastest for a product like this one
LAUNCH_US = 2000.0  # what a call may take beside its kernels: a library's, several of them


@dataclass(frozen=True)
class KernelTime:
    """Median latency of one call.

    `eager_because`: why it had to be timed launch by launch; None where a graph was replayed.
    `launches`: of the launch parameters that were tried those that are AS_FAST, the fastest first.
    `relative_error`: of the result with the launch parameters that are in use now; None where it was not checked here.
    `left_out`: launch parameters that failed or gave a wrong result -> why.
    """

    latency_us: float
    eager_because: str | None = None
    launches: tuple[Any, ...] = ()
    relative_error: float | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)


Check = Callable[[nn.Module], tuple[float | None, str | None]]  # layer -> relative error, and why it is wrong or None


def unchecked(layer: nn.Module) -> tuple[None, None]:
    """The check of what was checked before, or is right anyway."""
    return None, None


def time_layer(
    layer: nn.Module,
    x: Tensor,
    *more: Any,
    at_most_us: float = inf,
    launches: Sequence[Any] = (),
    check: Check = unchecked,
    **keywords: Any,
) -> KernelTime:
    """Time layer(x, ...), layout changes and im2col included.

    A graph costs its launch once per replay, eager code once per call, so short kernels are compared fairly only inside
    a graph. As many copies of weight, input and output take turns as fill the L2 cache twice, since in a network other
    layers run between two calls. A kernel whose launch parameters were not measured for such a product yet is timed with
    the most promising ones; the best are used from then on, and kept in the user's table. One that fails or gives a wrong
    result is left out, as is one that keeps the processor busy. Kernels are compiled and checked before other processes of
    ours have to leave the GPU alone.

    Args:
        layer: on x's CUDA device; copied for the rotation.
        x, more, keywords: what the layer receives; tensors are copied for the rotation, in their strides.
        at_most_us: what takes longer is not chosen anyway: it is timed once, or a few times.
        launches: launch parameters that were fast for a product like this one; the kernel's own are then not looked for.
        check: layer -> relative error, and why its result is wrong or None: asked with all launch parameters that are timed.
    Raises:
        RuntimeError: x is not on a CUDA device, or all launch parameters fail, give a wrong result or keep the processor busy.
    """
    if not x.is_cuda:
        raise RuntimeError(f"kernels are timed on a CUDA device, not on {x.device}")
    with torch.inference_mode(), torch.cuda.device(x.device):
        calls = _rotation(layer, (x, *more), keywords)
        if not isinstance(layer, SparseLayer) or layer.tunable[0] is None:
            if isinstance(layer, SparseLayer):
                require_prompt(calls[0], x.device)
            with alone(x.device):
                return _time(calls, x.device, at_most_us)
        tried = untried_launches(layer, layer(x, *more, **keywords), launches)
        if tried is not None:
            return _time_launches(tried, layer, calls, x.device, at_most_us, check)
        # its launch may have been chosen since it was checked, in another layout of the kernel
        error, wrong = check(layer)
        if wrong is not None:
            raise RuntimeError(wrong)
        require_prompt(calls[0], x.device)
        with alone(x.device):
            return replace(_time(calls, x.device, at_most_us), relative_error=error)


def _time_launches(
    tried: LaunchChoice,
    layer: nn.Module,
    calls: list[Callable[[], Any]],
    device: torch.device,
    at_most_us: float,
    check: Check,
) -> KernelTime:
    """Time the candidates whose result is right, and use the best from now on.

    Raises:
        RuntimeError: there is none; what was used before is used again.
    """
    errors: dict[Any, float | None] = {}
    times: dict[Any, KernelTime] = {}
    left_out: dict[str, str] = {}
    try:
        for launch in tried.candidates:
            with _left_out_where_it_fails(launch, left_out):
                tried.use(launch)
                calls[0]()  # compiles
                require_prompt(calls[0], device)
                error, wrong = check(layer)
                if wrong is not None:
                    raise RuntimeError(wrong)
                errors[launch] = error
        with alone(device):
            for launch in errors:
                with _left_out_where_it_fails(launch, left_out):
                    tried.use(launch)
                    times[launch] = _time(calls, device, at_most_us)
        if not times:
            raise RuntimeError("; ".join(f"{launch}: {why}" for launch, why in left_out.items()))
    except BaseException:
        tried.use_none()
        raise
    fastest_first = tuple(sorted(times, key=lambda launch: times[launch].latency_us))
    best = fastest_first[0]
    if times[best].latency_us > at_most_us:
        tried.use(best)
    else:
        tried.keep(best, times[best].latency_us)
    most_us = AS_FAST * times[best].latency_us
    as_fast = tuple(one for one in fastest_first if times[one].latency_us <= most_us)
    return replace(times[best], launches=as_fast, relative_error=errors[best], left_out=left_out)


@contextmanager
def _left_out_where_it_fails(launch: Any, left_out: dict[str, str]) -> Iterator[None]:
    """Another launch does the work then."""
    try:
        yield
    except Exception as error:  # a kernel may fail in any way
        left_out[str(launch)] = failure_reason(error)
        log.warning("%s is left out: %s", launch, left_out[str(launch)])


def _time(calls: list[Callable[[], Any]], device: torch.device, at_most_us: float) -> KernelTime:
    try:
        if cuda_ms(calls[0], device) * 1e3 > at_most_us + LAUNCH_US:
            # it may be the processor that takes so long, as in some calls of cuSPARSELt: only a replay tells
            single, _ = record(calls[:1], device=device, warmup=0)
            once_us = cuda_ms(single.replay, device) * 1e3
            if once_us > at_most_us + LAUNCH_US:
                return KernelTime(once_us)
        graph, _ = record(calls, device=device, warmup=1)
    except Exception as error:  # a library that synchronizes or allocates by itself cannot be recorded
        torch.cuda.synchronize()
        reason = f"cannot be recorded in a CUDA graph ({failure_reason(error)})"
        return KernelTime(_median_us(calls[0], device, per_sample=1), reason)
    return KernelTime(_median_us(graph.replay, device, per_sample=len(calls), at_most_us=at_most_us))


def _rotation(layer: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> list[Callable[[], Any]]:
    """One call per copy of the operands."""
    operands = floating_tensors([*args, *keywords.values(), layer(*args, **keywords)])
    moved = stored_bytes(layer) + sum(operand.nbytes for operand in operands)
    wanted = 2 * torch.cuda.get_device_properties(args[0].device).L2_cache_size
    copies = min(MOST_COPIES, -(-wanted // max(1, moved)))
    layers = [layer, *(copy.deepcopy(layer) for _ in range(copies - 1))]
    return [_call(one, args, keywords) for one in layers]


def _call(layer: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> Callable[[], Any]:
    """With tensors of its own."""
    own, named = [_cloned(part) for part in args], {name: _cloned(part) for name, part in keywords.items()}
    return lambda: layer(*own, **named)


def _cloned(operand: Any) -> Any:
    return operand.clone() if isinstance(operand, Tensor) else operand


def _median_us(
    function: Callable[[], object], device: torch.device, *, per_sample: int, at_most_us: float = inf
) -> float:
    """Median over SAMPLES, or over fewer (FEWEST at least) once BUDGET_MS is spent or none took less than `at_most_us`: what
    is that slow is not chosen anyway.
    """
    taken: list[float] = []
    spent_ms = 0.0
    for turn in range(WARMUP + SAMPLES):
        duration_ms = cuda_ms(function, device)
        spent_ms += duration_ms
        if turn >= WARMUP or spent_ms > BUDGET_MS:
            taken.append(duration_ms)
        hopeless = len(taken) >= FEWEST and min(taken) * 1e3 / per_sample > at_most_us
        if (spent_ms > BUDGET_MS and len(taken) >= FEWEST) or hopeless:
            break
    return median(taken) * 1e3 / per_sample
