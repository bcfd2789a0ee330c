"""Execution modes of a network, such as compiled or in a CUDA graph, and the fastest one whose output is correct."""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from sparsefront.errors import InvalidSetting, failure_reason
from sparsefront.gpu import exclusive, release_gpu, share_gpu, yield_gpu
from sparsefront.measure.attention import skip_mask_creation, without_full_masks
from sparsefront.measure.correctness import (
    LOW_PRECISION_ERROR_LIMIT,
    NETWORK_ERROR_LIMIT,
    has_low_precision,
    output_error,
)
from sparsefront.measure.graph_capture import record
from sparsefront.measure.timers import summarize, time_interleaved
from sparsefront.models.unpadded import fit_tokens

# torch.compile that lets other processes time on the GPU while it traces and generates code, which takes seconds.


def compile_unshared(net: nn.Module) -> Callable[..., Any]:
    """`torch.compile(net, dynamic=False)` that claims the GPU, shared, only when generated code runs; see `first_call`."""
    return torch.compile(net, dynamic=False, backend=_inductor)


MOST_RECOMPILES = 1024  # of code that networks share, such as the forward of a rewritten block


def within_recompile_limit(device: torch.device) -> AbstractContextManager[None]:
    """Raise Dynamo's recompile limit, and make it raise there: by default it silently runs eager code, timed as compiled."""
    if device.type != "cuda":
        return nullcontext()
    return torch._dynamo.config.patch(
        recompile_limit=MOST_RECOMPILES, accumulated_recompile_limit=MOST_RECOMPILES, fail_on_recompile_limit_hit=True
    )


def first_call(call: Callable[[], Any], device: torch.device) -> Any:
    """Make the first call of a compiled network, which compiles it; other processes may time on the GPU meanwhile."""
    with release_gpu(device), suppress_treespec_warning():
        return call()


@contextmanager
def suppress_treespec_warning() -> Iterator[None]:
    """Silence the deprecation warning that torch 2.11 raises when it copies its own tree specs."""
    with warnings.catch_warnings():
        pattern = r".isinstance\(treespec, LeafSpec\). is deprecated"
        warnings.filterwarnings("ignore", message=pattern, category=FutureWarning, module="copyreg")
        yield


def _inductor(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    """The default backend. One function for all networks, since Dynamo recompiles for another backend."""
    from torch._inductor.compile_fx import compile_fx

    compiled: Any = compile_fx(graph, inputs)
    return _FirstRunShared(compiled)


class _FirstRunShared:
    """Shares the GPU during the first run, which loads and tunes kernels; later runs, which are timed, have no overhead."""

    def __init__(self, compiled: Callable[..., Any]) -> None:
        self._compiled, self._ran = compiled, False

    def __call__(self, *values: Any) -> Any:
        if self._ran:
            return self._compiled(*values)
        tensors = (value for value in values if isinstance(value, Tensor))
        device = next((tensor.device for tensor in tensors if tensor.is_cuda), torch.device("cpu"))
        with share_gpu(device):
            output = self._compiled(*values)
        self._ran = True
        return output


# The execution modes:
#
#     eager                 operator by operator
#     compile               torch.compile, default mode
#     cuda_graph            the eager operators recorded once, replayed in one launch
#     compile_cuda_graph    the compiled code recorded and replayed
#     max_autotune          torch.compile that also times Triton's matrix products against cuBLAS, which is slow to compile
#     max_autotune_cuda_graph
#
# Dense and sparse networks are tried in the same modes, so a speedup never comes from the mode instead of the
# sparsity.

log = logging.getLogger(__name__)
EXECUTION_MODES = ("eager", "cuda_graph", "compile", "compile_cuda_graph", "max_autotune", "max_autotune_cuda_graph")
SEPARATOR = "+"  # between the execution mode and the variants of a candidate
GRAPH_WARMUP = 3  # the first call compiles, the next ones may still tune
TRIAL_WARMUP, TRIAL_SAMPLES = 5, 15  # enough to rank the modes; the reported latency is timed again


@dataclass(frozen=True)
class FastestMode:
    """A network in its fastest execution mode, ready to be timed.

    Args:
        name: the execution mode, one of EXECUTION_MODES.
        net: the network that runs.
        call: takes no arguments and runs the network on its inputs; CUDA graphs return the same tensors each time.
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
        """Median of the short timing, in milliseconds."""
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
        original: the network that `net` is a variant of; every mode, eager too, must agree with it. None: `net` itself.
        inputs: keyword arguments of the net, on `device`; copied, so that CUDA graphs own what they read.
        execution_modes: names out of EXECUTION_MODES, tried in this order.
        dtype: sets the allowed error against eager; networks with low-precision layers get a wider bound.
    Raises:
        NothingRuns: no mode ran; the message gives the reason of each.
        InvalidSetting: the network returns nothing that can be compared.
    """
    with torch.inference_mode():
        static = {name: value.clone() if isinstance(value, Tensor) else value for name, value in inputs.items()}
    for one in (net, *([original] if original else [])):
        fit_tokens(one, static)
    limit = LOW_PRECISION_ERROR_LIMIT if has_low_precision(net) else NETWORK_ERROR_LIMIT[dtype]
    # eager code drops masks of ones itself
    looks = all(name == "eager" for name in execution_modes) or device.type != "cuda"
    needed = static if looks else without_full_masks(original or net, static, limit)
    ready: dict[str, Callable[[], Any]] = {}
    not_timed: dict[str, str] = {}
    for name in execution_modes:
        yield_gpu(device)
        reason = None if name == "eager" or device.type == "cuda" else "needs a CUDA device"
        if reason is None:
            try:
                # the compiler of max_autotune times kernels
                with exclusive(device) if name.startswith("max_autotune") else nullcontext():
                    ready[name] = call_in_mode(name, net, static if name == "eager" else needed)
                    if name != "eager" or original is not None:
                        reason = _disagreement(ready[name], original or net, static, limit)
            except InvalidSetting:  # no mode is to blame when there is nothing to compare
                raise
            except Exception as error:  # a compiler or a capture may fail in any way; the result reports the reason
                reason = failure_reason(error)
                log.warning("execution mode %s failed: %s", name, reason)
        if reason is not None:
            not_timed[name] = reason
            ready.pop(name, None)
    if not ready:
        raise NothingRuns(not_timed)
    taken = time_interleaved(ready, device=device, warmup=TRIAL_WARMUP, samples=TRIAL_SAMPLES)
    medians_ms = {name: summarize(samples).median_ms for name, samples in taken.items()}
    fastest = min(medians_ms, key=medians_ms.__getitem__)
    return FastestMode(fastest, net, ready[fastest], medians_ms, not_timed)


def call_in_mode(name: str, net: nn.Module, static: dict[str, Tensor]) -> Callable[[], Any]:
    """A call of the net in one execution mode; it reads the tensors in `static` anew each time."""
    masks = nullcontext if name == "eager" else partial(skip_mask_creation, packed="position_ids" in static)
    runner: Callable[..., Any] = net
    if name.startswith("max_autotune"):
        runner = torch.compile(net, dynamic=False, mode="max-autotune-no-cudagraphs")
    elif is_compiled(name):
        runner = compile_unshared(net)

    @torch.inference_mode()
    def call() -> Any:
        with masks():
            return runner(**static)

    device = next(iter(static.values())).device
    if is_compiled(name):
        first_call(call, device)
    return _replay_graph(call, device, eager=not is_compiled(name)) if name.endswith("cuda_graph") else call


def _replay_graph(call: Callable[[], Any], device: torch.device, *, eager: bool) -> Callable[[], Any]:
    graph, (output,) = record([call], device=device, warmup=GRAPH_WARMUP, eager=eager)

    def replay() -> Any:
        graph.replay()
        return output

    # a CUDA graph keeps no tensor alive: its inputs, and the weights of a variant made for it, belong to the call
    replay.reads = call  # type: ignore[attr-defined]
    return replay


def _disagreement(call: Callable[[], Any], net: nn.Module, static: dict[str, Tensor], limit: float) -> str | None:
    """Why this mode is wrong, or None: it must match eager on its inputs and, to detect stale results, on others."""
    eager = call_in_mode("eager", net, static)
    original = {name: value.clone() for name, value in static.items() if isinstance(value, Tensor)}
    try:
        for values in (original, {name: _reorder(value) for name, value in original.items()}):
            _fill(static, values)
            expected = eager()
            error = output_error(call(), expected)
            if not error <= limit:
                return f"relative error {error:.1e} against eager, more than {limit:.0e}"
    finally:
        _fill(static, original)
    return None


def _reorder(value: Tensor) -> Tensor:
    """Other valid inputs: the samples in another order, a single sample reversed along its last dim; a scalar is unchanged."""
    if value.dim() == 0:
        return value
    return value.roll(1, dims=0) if value.shape[0] > 1 else value.flip(-1)


@torch.inference_mode()
def _fill(static: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        static[name].copy_(value)
