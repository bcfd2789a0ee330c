"""CUDA graphs for training steps: one launch each for the forward and the backward pass of a network.

Steps with small batches are limited by Python, and even more so with sparse layers, whose kernels are short.
"""

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_flatten, tree_unflatten

log = logging.getLogger(__name__)
MOST_GRAPHS = 64  # maximum number of captured batch sizes


class GraphedForward:
    """The forward of a network in training, captured together with its backward pass for each batch size.

    The first batch of a size runs eagerly, which warms up libraries and caches. The second is captured, and replayed from then
    on. Other calls (eval mode, no gradients, sizes beyond `MOST_GRAPHS`) run eagerly. Graphs see in-place changes of weights by
    masks, optimizers and averages; if weights move in memory, a new graph is captured.

    Args:
        net: its parameters get gradients.
        forward: the function to run.
    """

    def __init__(self, net: nn.Module, forward: Callable[..., Any]) -> None:
        self._net, self._forward = net, forward
        self._seen: set[Hashable] = set()
        self._graphs: dict[Hashable, _Graph] = {}
        self._weights: tuple[int, ...] = ()  # their addresses
        self._failed = False

    def __call__(self, *values: Any, **named: Any) -> Any:
        if self._failed or not self._net.training or not torch.is_grad_enabled():
            return self._forward(*values, **named)
        given, structure = tree_flatten((values, named))
        parameters = [parameter for parameter in self._net.parameters() if parameter.requires_grad]
        if self._weights != (weights := tuple(parameter.data_ptr() for parameter in parameters)):
            self._seen, self._graphs, self._weights = set(), {}, weights
        key = _key(given, structure, self._net)
        graph = self._graphs.get(key)
        if graph is None:
            if key not in self._seen or len(self._graphs) >= MOST_GRAPHS or not parameters:
                self._seen.add(key)
                return self._forward(*values, **named)
            try:
                first = next(iter(self._graphs.values()), None)
                graph = _Graph(self._forward, given, structure, parameters, first)
            except RuntimeError as error:
                self._failed = True
                log.warning("CUDA graphs are left out: %s", str(error).splitlines()[0])
                return self._forward(*values, **named)
            self._graphs[key] = graph
        return graph(given)


def _key(given: Sequence[Any], structure: Any, net: nn.Module) -> Hashable:
    """The cache key of a graph: sizes, non-tensor arguments, autocast dtype, and which modules train."""
    described = tuple(
        (tuple(one.shape), one.stride(), one.dtype, one.device, one.requires_grad)
        if isinstance(one, Tensor)
        else repr(one)
        for one in given
    )
    device = next(net.parameters()).device.type
    autocast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
    return described, str(structure), autocast, tuple(module.training for module in net.modules())


class _Graph:
    """The graph of one batch size.

    Args:
        first: the graph whose memory pools it shares: only one is replayed at a time, and the backward pass uses up what
            the forward pass keeps. Gradients share the first graph's memory, which no forward pass writes, because they
            may be accumulated over further batches.
    Raises:
        RuntimeError: something cannot be captured, such as a value read by Python.
    """

    def __init__(
        self,
        forward: Callable[..., Any],
        given: Sequence[Any],
        structure: Any,
        parameters: list[nn.Parameter],
        first: "_Graph | None",
    ) -> None:
        self.parameters = parameters
        device = parameters[0].device.type
        self._inputs = [one.detach().clone() if isinstance(one, Tensor) else one for one in given]
        values, named = tree_unflatten(self._inputs, structure)

        def run() -> Any:
            # the autocast cache holds weights that were cast earlier, and the graph would not cast them again
            dtype = torch.get_autocast_dtype(device)
            with torch.autocast(device, dtype, enabled=torch.is_autocast_enabled(device), cache_enabled=False):
                return forward(*values, **named)

        output, self._replay_forward, self.forward_pool = record(run, None if first is None else first.forward_pool)
        flat, self._structure = tree_flatten(output)
        differentiable = [one for one in flat if isinstance(one, Tensor) and one.requires_grad]
        if not differentiable:
            raise RuntimeError("the network's output has no gradient")
        self.has_gradient = [one.requires_grad for one in flat if isinstance(one, Tensor)]
        self._outputs = [one.detach() if isinstance(one, Tensor) else one for one in flat]
        self._given = [torch.empty_like(one) for one in differentiable]

        def differentiate() -> Sequence[Tensor | None]:
            found = torch.autograd.grad(differentiable, parameters, self._given, allow_unused=True)
            if first is None:
                return found
            pairs = [(own, new) for own, new in zip(first.gradients, found, strict=True) if own is not None]
            if any(new is None for _, new in pairs) or len(pairs) < sum(new is not None for new in found):
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
        replayed = iter(_Replay.apply(self, *self.parameters))
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
        wanted = [one for one, has_gradient in zip(gradients, self.has_gradient, strict=True) if has_gradient]
        for own, new in zip(self._given, wanted, strict=True):
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
    """Capture a call; returns its output, a function that replays it, and the memory pool.

    Graphs of one pool share memory: only the last one replayed has valid intermediate results.
    """
    graph = torch.cuda.CUDAGraph()
    # other threads, such as data loaders, may call the driver meanwhile
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        returned = run()
    return returned, graph.replay, graph.pool()
