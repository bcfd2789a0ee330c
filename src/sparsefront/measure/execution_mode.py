"""Execution modes: ways to run one network on one input, and the fastest mode whose output is correct.

    eager                 operator by operator
    compile               torch.compile, default mode
    cuda_graph            the eager operators recorded once, replayed in one launch
    compile_cuda_graph    the compiled code recorded and replayed
    max_autotune          torch.compile that also times Triton's matrix products against cuBLAS, which takes long
    max_autotune_cuda_graph

Dense and sparse networks are tried in the same modes, so a speedup never comes from the mode instead of the sparsity.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting, failure_reason
from sparsefront.gpu_sharing.access import alone, give_way
from sparsefront.measure.agreement import NETWORK_ERROR_LIMIT, output_error
from sparsefront.measure.compilation import compile_unshared, first_call
from sparsefront.measure.graph_capture import record
from sparsefront.measure.latency import summarise, time_interleaved

log = logging.getLogger(__name__)
EXECUTION_MODES = ("eager", "cuda_graph", "compile", "compile_cuda_graph", "max_autotune", "max_autotune_cuda_graph")
GRAPH_WARMUP = 3  # the first call compiles, the next ones may still tune
TRIAL_WARMUP, TRIAL_SAMPLES = 5, 15  # enough to rank the modes; the reported latency is timed again


@dataclass(frozen=True)
class FastestMode:
    """A network in its fastest execution mode, ready to be timed.

    Args:
        name: the execution mode, one of EXECUTION_MODES.
        net: the network that runs.
        call: runs the network on the inputs it was given, without arguments; graphs return the same tensors each time.
        medians_ms: execution mode -> median of a short timing.
        not_timed: execution mode -> why it is unsupported here, failed or gave a wrong output.
    """

    name: str
    net: nn.Module
    call: Callable[[], Any]
    medians_ms: dict[str, float] = field(default_factory=dict)
    not_timed: dict[str, str] = field(default_factory=dict)

    @property
    def median_ms(self) -> float:
        """Of the short timing."""
        return self.medians_ms[self.name]


class NothingRuns(RuntimeError):
    """No execution mode could run a network; `reasons`: execution mode -> why."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__(
            f"no execution mode could run the network: {'; '.join(f'{name}: {why}' for name, why in reasons.items())}"
        )
        self.reasons = reasons


def is_compiled(mode: str) -> bool:
    """Whether it goes through torch.compile, which takes seconds to minutes."""
    return mode.startswith(("compile", "max_autotune"))


def fastest_execution_mode(
    net: nn.Module,
    inputs: dict[str, Tensor],
    *,
    execution_modes: Sequence[str],
    device: torch.device,
    dtype: torch.dtype,
    original: nn.Module | None = None,
) -> FastestMode:
    """Try the execution modes, drop those that fail or disagree with eager, and keep the fastest.

    Args:
        net: in eval mode on `device`, in `dtype`.
        original: the network that `net` is another form of: all have to agree with it, eager too. None: `net` itself.
        inputs: keyword arguments of the net, on `device`; copied, so that graphs own what they read.
        execution_modes: names out of EXECUTION_MODES, tried in this order.
        dtype: bounds how far a mode's output may lie from eager's.
    Raises:
        NothingRuns: none of them ran; the message holds each one's reason.
        InvalidSetting: the network returns nothing that can be compared.
    """
    with torch.inference_mode():
        static = {name: value.clone() for name, value in inputs.items()}
    ready: dict[str, Callable[[], Any]] = {}
    not_timed: dict[str, str] = {}
    for name in execution_modes:
        give_way(device)
        reason = None if name == "eager" or device.type == "cuda" else "needs a CUDA device"
        if reason is None:
            try:
                with alone(device) if name.startswith("max_autotune") else nullcontext():  # its compiler times kernels
                    ready[name] = call_in_mode(name, net, static)
                    if name != "eager" or original is not None:
                        reason = _disagreement(ready[name], original or net, static, dtype)
            except InvalidSetting:  # nothing to compare is no fault of a mode
                raise
            except Exception as error:  # a compiler or a capture may fail in any way; the reason stands in the result
                reason = failure_reason(error)
                log.warning("execution mode %s failed: %s", name, reason)
        if reason is not None:
            not_timed[name] = reason
            ready.pop(name, None)
    if not ready:
        raise NothingRuns(not_timed)
    taken = time_interleaved(ready, device=device, warmup=TRIAL_WARMUP, samples=TRIAL_SAMPLES)
    medians_ms = {name: summarise(samples).median_ms for name, samples in taken.items()}
    fastest = min(medians_ms, key=medians_ms.__getitem__)
    return FastestMode(fastest, net, ready[fastest], medians_ms, not_timed)


def call_in_mode(name: str, net: nn.Module, static: dict[str, Tensor]) -> Callable[[], Any]:
    """The net in one execution mode, over the tensors in `static`, which are read again at each call."""
    runner: Callable[..., Any] = net
    if name.startswith("max_autotune"):
        runner = torch.compile(net, dynamic=False, mode="max-autotune-no-cudagraphs")
    elif is_compiled(name):
        runner = compile_unshared(net)

    @torch.inference_mode()
    def call() -> Any:
        return runner(**static)

    device = next(iter(static.values())).device
    if is_compiled(name):
        first_call(call, device)
    return _replayed(call, device) if name.endswith("cuda_graph") else call


def _replayed(call: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    graph, (output,) = record([call], device=device, warmup=GRAPH_WARMUP)

    def replay() -> Any:
        graph.replay()
        return output

    # a graph keeps no tensor alive: its inputs, and the weights of a network that was made for it, belong to the call
    replay.reads = call
    return replay


def _disagreement(call: Callable[[], Any], net: nn.Module, static: dict[str, Tensor], dtype: torch.dtype) -> str | None:
    """Why this mode is wrong, or None: it must follow eager on its inputs and, against stale results, on others."""
    eager = call_in_mode("eager", net, static)
    original = {name: value.clone() for name, value in static.items()}
    try:
        for values in (original, {name: _reordered(value) for name, value in original.items()}):
            _fill(static, values)
            expected = eager()
            error = output_error(call(), expected)
            if not error <= NETWORK_ERROR_LIMIT[dtype]:
                return f"relative error {error:.1e} against eager, more than {NETWORK_ERROR_LIMIT[dtype]:.0e}"
    finally:
        _fill(static, original)
    return None


def _reordered(value: Tensor) -> Tensor:
    """Other values that the network accepts as well: the samples in another order, a lone sample back to front."""
    return value.roll(1, dims=0) if value.shape[0] > 1 else value.flip(-1)


@torch.inference_mode()
def _fill(static: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        static[name].copy_(value)
