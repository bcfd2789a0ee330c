"""CUDA graphs: one launch each for the forward and the backward pass of a network in training, and for the passes of a teacher or
of a network that is evaluated.

Small batches are limited by Python, and even more so with sparse layers, whose kernels are short.
"""

import logging
import random
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_flatten, tree_unflatten

from sparsefront.gpu import end_rng_capture
from sparsefront.processes import gc_disabled

log = logging.getLogger(__name__)
T = TypeVar("T")
MOST_GRAPHS = 64  # maximum number of captured batch sizes
COPIES = "Cannot copy between CPU and CUDA tensors during CUDA graph capture"


class HiddenStates:
    """Records the outputs of named modules during one forward pass, also of a pass that a CUDA graph replays.

    Args:
        net: the network; hooks stay on it until `remove`.
        names: of modules that return a tensor, or a tuple whose first entry is the hidden state.
    """

    def __init__(self, net: nn.Module, names: list[str]) -> None:
        self._names = names
        self._outputs: dict[str, Tensor] = {}
        self.listening = False
        self._handles = [net.get_submodule(name).register_forward_hook(self._keep(name)) for name in names]

    def listen(self) -> None:
        """Discard recorded states and record the next forward pass."""
        self._outputs.clear()
        self.listening = True

    def take(self) -> list[Tensor]:
        """Return the hidden states since `listen`, in the order of `names`, and discard them.

        Recomputation in the backward pass (gradient checkpointing) is not recorded.
        """
        self.listening = False
        return [self._outputs.pop(name) for name in self._names]

    def put(self, states: Sequence[Tensor]) -> None:
        """Record the states of a replayed pass, in the order of `names`."""
        self._outputs = dict(zip(self._names, states, strict=True))

    def remove(self) -> None:
        """Remove the hooks from the network."""
        for handle in self._handles:
            handle.remove()

    @property
    def hooks(self) -> set[int]:
        """The ids of its hooks."""
        return {handle.id for handle in self._handles}

    def _keep(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if self.listening:
                self._outputs[name] = output[0] if isinstance(output, tuple) else output

        return hook


class HostCopies:
    """Copies from the CPU by `Tensor.to` and `torch.tensor`, such as of position ids and constants, in an eager call; a capture
    of the same call reads them again. Replays read them too, as they could not see other values.
    """

    def __init__(self) -> None:
        self._copies: list[tuple[Tensor, Tensor]] = []  # (source, copy)

    @contextmanager
    def patch(self, *, capturing: bool) -> Iterator[None]:
        """Context for the eager call, or for its capture.

        Raises:
            RuntimeError: while capturing, if the call copies other values than the eager one.
        """
        move, make, thread, copies = Tensor.to, torch.tensor, threading.get_ident(), iter(list(self._copies))

        def to(source: Tensor, *values: Any, **named: Any) -> Tensor:
            if source.device.type != "cpu" or threading.get_ident() != thread or not _moves(values, named):
                return move(source, *values, **named)
            if not capturing:
                copy = move(source, *values, **named)
                self._copies.append((source.clone(), copy))
                return copy
            known, copy = next(copies, (None, source))
            if known is None or not torch.equal(known, source):
                raise RuntimeError("the forward copies other values from the CPU at each call")
            return copy.clone()

        def tensor(data: Any, *, device: Any = None, **named: Any) -> Tensor:
            made = make(data, **named)
            return made if device is None else to(made, device)

        Tensor.to, torch.tensor = to, tensor  # type: ignore[method-assign, assignment]
        try:
            with nullcontext() if capturing else _branches_of_a_capture():
                yield
        finally:
            Tensor.to, torch.tensor = move, make  # type: ignore[method-assign]


@contextmanager
def _branches_of_a_capture() -> Iterator[None]:
    """Context in which transformers builds masks as in a capture, which cannot look into them. In other calls it leaves out a
    mask that masks nothing, and so copies other values from the CPU.
    """
    transformers, name = sys.modules.get("transformers.utils.import_utils"), "is_cuda_stream_capturing"
    asks = getattr(transformers, name, None)
    if asks is None:
        yield
        return
    setattr(transformers, name, lambda: True)
    try:
        yield
    finally:
        setattr(transformers, name, asks)


def _moves(values: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether arguments of `Tensor.to` name a device other than the CPU."""
    target = next((one for one in (*values, *named.values()) if isinstance(one, str | torch.device | Tensor)), None)
    device = target.device if isinstance(target, Tensor) else target
    return device is not None and torch.device(device).type != "cpu"


class GraphedForward:
    """The forward of a network in training, captured together with its backward pass for each batch size, and without one for
    its validation; or that of a teacher or of a network that is evaluated.

    The first batch of a size runs eagerly, which warms up libraries and caches. The second is captured, and replayed from then
    on. Other calls (sizes beyond `MOST_GRAPHS`; in eval mode with gradients, or in training mode without) run eagerly. Graphs
    see in-place changes of weights by masks, optimizers and averages; if weights move in memory, a new graph is captured.

    Args:
        net: its parameters get gradients.
        forward: the function to run.
        states: hidden states that hooks in `net` record; the graphs return them too.
        trains: False captures only calls in eval mode without gradients.
    Attributes:
        replays: number of calls that replayed a graph; `captures`: of those that captured it before.
        failed: whether a capture failed twice, after which all calls run eagerly.
    """

    def __init__(
        self, net: nn.Module, forward: Callable[..., Any], *, states: HiddenStates | None = None, trains: bool = True
    ) -> None:
        self._net, self._forward, self._states, self._trains = net, forward, states, trains
        self._validation = GraphedForward(net, forward, trains=False) if trains else forward
        self._seen: dict[Hashable, HostCopies] = {}
        self._graphs: dict[Hashable, _Graph] = {}
        self._modules: list[nn.Module] = []
        self._weights: tuple[int, ...] = ()  # their addresses
        self._copies = False  # whether it copies from the CPU
        self._fails = self.failed = False
        self.replays = self.captures = 0

    def __call__(self, *values: Any, **named: Any) -> Any:
        if self.failed or not self._net.training == torch.is_grad_enabled() == self._trains:
            validates = not self.failed and not self._net.training and not torch.is_grad_enabled()
            return (self._validation if validates else self._forward)(*values, **named)
        flat_inputs, structure = tree_flatten((values, named))
        if not self._modules:  # the walk through a network takes milliseconds
            self._modules = list(self._net.modules())
        owned = (one for module in self._modules for one in module._parameters.values() if one is not None)
        parameters = [one for one in dict.fromkeys(owned) if one.requires_grad or not self._trains]
        weights = tuple(parameter.data_ptr() for parameter in parameters)
        if self._weights != weights:
            self._seen, self._graphs, self._weights = {}, {}, weights
        listens = self._states is not None and self._states.listening
        device = next((one.device.type for one in (*parameters, *flat_inputs) if isinstance(one, Tensor)), "cpu")
        key = _key(flat_inputs, structure, self._modules, device), listens
        graph = self._graphs.get(key)
        if graph is None:
            if key not in self._seen or len(self._graphs) >= MOST_GRAPHS or (self._trains and not parameters):
                self._seen[key] = HostCopies()
                # a capture launches no kernel for the first time: branches that only a capture takes run here
                with self._seen[key].patch(capturing=False) if self._copies else _branches_of_a_capture():
                    return self._forward(*values, **named)
            try:
                first = next(iter(self._graphs.values()), None)
                run = self._forward_with_states if listens else self._forward
                # the copies stay in `_seen`, as the graph reads them
                with self._seen[key].patch(capturing=True) if self._copies else nullcontext():
                    graph = _Graph(run, flat_inputs, structure, parameters, first, device, trains=self._trains)
            except RuntimeError as error:
                if COPIES in str(error) and not self._copies:
                    self._copies, self._seen = True, {}
                    return self._forward(*values, **named)
                # not everything that runs for the first time can be captured, and a failed capture runs some of it first
                self._fails, self.failed = True, self._fails
                if self.failed:
                    log.warning("CUDA graphs are left out: %s", str(error).splitlines()[0])
                return self._forward(*values, **named)
            self._graphs[key] = graph
            self.captures += 1
            if len(self._graphs) == MOST_GRAPHS:
                log.info("CUDA graphs: %d sizes of batches are captured, further ones are launched", MOST_GRAPHS)
        output = graph(flat_inputs)
        self.replays += 1
        if self._states is not None and listens:
            output, states = output
            self._states.put(states)
        return output

    def _forward_with_states(self, *values: Any, **named: Any) -> tuple[Any, list[Tensor]]:
        assert self._states is not None
        output = self._forward(*values, **named)
        states = self._states.take()
        self._states.listening = True  # as the caller expects, also if this recording fails
        return output, states


@contextmanager
def capture_passes(
    net: nn.Module, *, states: HiddenStates | None = None, trains: bool = False, enabled: bool = True
) -> Iterator[GraphedForward | None]:
    """Context in which the network runs as a `GraphedForward`; as before, with a line in the log, if an `obstacle` is in it.

    Args:
        states, trains: as in `GraphedForward`.
        enabled: False changes nothing.
    """
    reason = obstacle(net, but=set() if states is None else states.hooks) if enabled else None
    if reason is not None:
        log.warning("CUDA graphs are left out: the network has %s", reason)
    if reason is not None or not enabled:
        yield None
        return
    before = vars(net).get("forward")
    net.forward = graphed = GraphedForward(net, net.forward, states=states, trains=trains)  # type: ignore[method-assign]
    try:
        yield graphed
    finally:
        if before is None:
            del net.forward
        else:
            net.forward = before


def obstacle(module: nn.Module, but: Set[int] = frozenset()) -> str | None:
    """What prevents captures and compilation; hooks on the module itself do not, because they run outside of it.

    Args:
        but: ids of hooks that are no obstacle.
    """
    for name, part in module.named_modules():
        if parametrize.is_parametrized(part):
            return f"a parametrized weight in {name}"
        if name and (part._forward_hooks.keys() - but or part._forward_pre_hooks):
            return f"a hook on {name}"
    return None


def _key(given: Sequence[Any], structure: Any, modules: Sequence[nn.Module], device: str) -> Hashable:
    """The cache key of a graph: sizes, non-tensor arguments, autocast dtype, inference mode, and which modules train."""
    described = tuple(
        (tuple(one.shape), one.stride(), one.dtype, one.device, one.requires_grad)
        if isinstance(one, Tensor)
        else repr(one)
        for one in given
    )
    autocast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
    return (
        described,
        str(structure),
        autocast,
        torch.is_inference_mode_enabled(),
        tuple(one.training for one in modules),
    )


class _Graph:
    """The graph of one batch size.

    Args:
        first: the graph whose memory pools it shares: only one is replayed at a time, and the backward pass uses up what
            the forward pass keeps. Gradients share the first graph's memory, which no forward pass writes, because they
            may be accumulated over further batches.
        device: type of the device, whose autocast settings hold.
        trains: False captures the forward pass alone.
    Raises:
        RuntimeError: something cannot be captured, such as a value read by Python or a random number drawn on the CPU.
    """

    def __init__(
        self,
        forward: Callable[..., Any],
        given: Sequence[Any],
        structure: Any,
        parameters: list[nn.Parameter],
        first: "_Graph | None",
        device: str,
        *,
        trains: bool = True,
    ) -> None:
        self.parameters, self._trains = parameters, trains
        self._inputs = [one.detach().clone() if isinstance(one, Tensor) else one for one in given]
        values, keywords = tree_unflatten(self._inputs, structure)

        def run() -> Any:
            # the autocast cache holds weights that were cast earlier, and the graph would not cast them again
            dtype = torch.get_autocast_dtype(device)
            with torch.autocast(device, dtype, enabled=torch.is_autocast_enabled(device), cache_enabled=False):
                return forward(*values, **keywords)

        draws = _cpu_generators()
        output, self._replay_forward, self.forward_pool = record(run, None if first is None else first.forward_pool)
        if _cpu_generators() != draws:  # as LayerDrop does: a replay would repeat this call's choice
            raise RuntimeError("the forward draws random numbers on the CPU")
        flat, self._structure = tree_flatten(output)
        self._outputs = [one.detach() if isinstance(one, Tensor) else one for one in flat]
        if not trains:
            return
        differentiable = [one for one in flat if isinstance(one, Tensor) and one.requires_grad]
        if not differentiable:
            raise RuntimeError("the network's output has no gradient")
        self.has_gradient = [one.requires_grad for one in flat if isinstance(one, Tensor)]
        self._given = [torch.empty_like(one) for one in differentiable]

        def differentiate() -> Sequence[Tensor | None]:
            gradients = torch.autograd.grad(differentiable, parameters, self._given, allow_unused=True)
            if first is None:
                return gradients
            pairs = [(own, new) for own, new in zip(first.gradients, gradients, strict=True) if own is not None]
            if any(new is None for _, new in pairs) or len(pairs) < sum(new is not None for new in gradients):
                raise RuntimeError("other weights have gradients than for batches of another size")
            torch._foreach_copy_(*map(list, zip(*pairs, strict=True)))
            return first.gradients

        self.gradients, self._replay_backward, self.backward_pool = record(
            differentiate, None if first is None else first.backward_pool
        )

    def __call__(self, given: Sequence[Any]) -> Any:
        for own, new in zip(self._inputs, given, strict=True):
            if isinstance(own, Tensor):
                own.copy_(new)
        replayed = iter(_Replay.apply(self, *self.parameters) if self._trains else self.forward())
        outputs = [next(replayed) if isinstance(one, Tensor) else one for one in self._outputs]
        return tree_unflatten(outputs, self._structure)

    def forward(self) -> tuple[Tensor, ...]:
        """Copies of the outputs, which the next replay overwrites."""
        self._replay_forward()
        return tuple(one.clone() for one in self._outputs if isinstance(one, Tensor))

    def backward(self, gradients: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """Gradients of the parameters, in memory that the next replay overwrites.

        Args:
            gradients: of the tensor outputs.
        """
        output_gradients = [one for one, has_gradient in zip(gradients, self.has_gradient, strict=True) if has_gradient]
        for own, new in zip(self._given, output_gradients, strict=True):
            if new is None:
                own.zero_()
            else:
                own.copy_(new)
        for parameter, written in zip(self.parameters, self.gradients, strict=True):
            held = parameter.grad  # from accumulated batches, and perhaps in the replay's own memory
            if held is not None and written is not None and held.data_ptr() == written.data_ptr():
                parameter.grad = held.clone()
        self._replay_backward()
        return tuple(None if one is None else one.detach() for one in self.gradients)


def _cpu_generators() -> tuple[Any, ...]:
    """States of the generators from which a forward may draw without the GPU, to be compared."""
    name, keys, *rest = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), keys.tobytes(), tuple(rest)


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: _Graph, *parameters: Tensor) -> tuple[Tensor, ...]:
        copies = graph.forward()
        ctx.graph = graph
        constant = (one for one, has_gradient in zip(copies, graph.has_gradient, strict=True) if not has_gradient)
        ctx.mark_non_differentiable(*constant)
        ctx.set_materialize_grads(False)
        return copies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, *ctx.graph.backward(given)


def record(run: Callable[[], Any], pool: Any) -> tuple[Any, Callable[[], None], Any]:
    """`capture`; returns the call's output, a function that replays it, and the memory pool."""
    graph = torch.cuda.CUDAGraph()
    return capture(run, graph, pool), graph.replay, graph.pool()


def capture(run: Callable[[], T], graph: torch.cuda.CUDAGraph, pool: Any = None) -> T:
    """Capture a call on the current device; returns its output, which every replay overwrites.

    Args:
        pool: of an earlier graph, to share its memory: only the last one replayed has valid intermediate results.
    Raises:
        RuntimeError: something cannot be captured; the current stream and the random generator are then as before.
    """
    current, stream = torch.cuda.current_stream(), _capture_stream(torch.cuda.current_device())
    reasons: list[Exception] = []
    try:
        # A failed capture can leave its own stream current; the outer context restores ours. Collecting an earlier graph frees
        # GPU memory, which aborts a capture; other threads, such as data loaders, may call the driver meanwhile.
        with (
            gc_disabled(),
            torch.cuda.stream(current),
            torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
        ):
            try:
                return run()
            except Exception as error:
                reasons.append(error)
                raise
    except Exception as error:
        end_rng_capture()
        if reasons:  # the error at the end of the capture says only that there was one
            raise reasons[0] from error
        raise


@cache
def _capture_stream(index: int) -> torch.cuda.Stream:
    """One for each device: torch's default belongs to the device of the first capture.

    Not one that warm-ups use, so that a library's workspace for it is allocated in the graph's memory pool.
    """
    return torch.cuda.Stream(index)
