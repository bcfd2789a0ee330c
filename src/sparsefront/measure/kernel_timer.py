"""How long one layer or block takes on the GPU, alone: graph replays, on operands that no cache still holds."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from sparsefront.measure.latency import cuda_ms
from sparsefront.measure.launch_choice import untried_launches
from sparsefront.measure.memory import stored_bytes

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
    """

    latency_us: float
    eager_because: str | None = None
    launches: tuple[Any, ...] = ()


def time_layer(
    layer: nn.Module,
    x: Tensor,
    *more: Any,
    at_most_us: float = inf,
    launches: Sequence[Any] = (),
    **keywords: Any,
) -> KernelTime:
    """Time layer(x, ...), layout changes and im2col included.

    A graph costs its launch once per replay, eager code once per call, so short kernels are compared fairly only inside
    a graph. As many copies of weight, input and output take turns as fill the L2 cache twice, since in a network other
    layers run between two calls. A kernel whose launch parameters were not measured for such a product yet is timed with
    the most promising ones; the best are used from then on, and kept in the user's table. Kernels are compiled before other
    processes of ours have to leave the GPU alone.

    Args:
        layer: on x's CUDA device; copied for the rotation.
        x, more, keywords: what the layer receives; tensors are copied for the rotation, in their strides.
        at_most_us: what takes longer is not chosen anyway: it is timed once, or a few times.
        launches: launch parameters that were fast for a product like this one; the kernel's own are then not looked for.
    Raises:
        RuntimeError: x is not on a CUDA device.
    """
    if not x.is_cuda:
        raise RuntimeError(f"kernels are timed on a CUDA device, not on {x.device}")
    with torch.inference_mode(), torch.cuda.device(x.device):
        calls = _rotation(layer, (x, *more), keywords)
        tried = None
        if isinstance(layer, SparseLayer):
            output = layer(x, *more, **keywords)
            tried = untried_launches(layer, output, launches)
        if tried is None:
            with alone(x.device):
                return _time(calls, x.device, at_most_us)
        for launch in tried.candidates:
            tried.use(launch)
            calls[0]()  # compiles
        times = {}
        with alone(x.device):
            for launch in tried.candidates:
                tried.use(launch)
                times[launch] = _time(calls, x.device, at_most_us)
        fastest_first = tuple(sorted(times, key=lambda launch: times[launch].latency_us))
        best = fastest_first[0]
        if times[best].latency_us > at_most_us:
            tried.use(best)
        else:
            tried.keep(best, times[best].latency_us)
        most_us = AS_FAST * times[best].latency_us
        return replace(times[best], launches=tuple(one for one in fastest_first if times[one].latency_us <= most_us))


def _time(calls: list[Callable[[], Any]], device: torch.device, at_most_us: float) -> KernelTime:
    try:
        if cuda_ms(calls[0], device) * 1e3 > at_most_us + LAUNCH_US:
            # it may be the processor that takes so long, as in some calls of cuSPARSELt: only a replay tells
            single, _ = record(calls[:1], warmup=0)
            once_us = cuda_ms(single.replay, device) * 1e3
            if once_us > at_most_us + LAUNCH_US:
                return KernelTime(once_us)
        graph, _ = record(calls, warmup=1)
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
    return [_call(one, [_cloned(part) for part in args], keywords) for one in layers]


def _cloned(operand: Any) -> Any:
    return operand.clone() if isinstance(operand, Tensor) else operand


def _call(layer: nn.Module, args: list[Any], keywords: dict[str, Any]) -> Callable[[], Any]:
    return lambda: layer(*args, **keywords)


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
