"""Ties of features that cross shortcuts and norms, such as the hidden size of a transformer, from one call without values.

Every dimension of a parameter is followed through the operations of a forward on the meta device. Dimensions that an operation
combines one by one belong together; those that it mixes, or that the network returns, stay.
"""

import copy
import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import is_parametrized
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from sparsefront.networks import PrunableLayer
from sparsefront.patterns.base import Pattern
from sparsefront.patterns.ties import BINARY, UNARY, Tie, find_ties

Axis = tuple[str, int]  # name of a parameter or buffer, and a dimension of it
PASSED = UNARY | frozenset(
    "float half bfloat16 double type type_as detach exp log sqrt rsqrt sin cos erf clamp hardtanh selu logsigmoid "
    "zeros_like ones_like empty_like full_like rand_like".split()
)
COMBINED = BINARY | frozenset("radd rmul rsub rtruediv where masked_fill maximum minimum addcmul lerp".split())
REDUCED = frozenset("mean sum amax amin".split())
MOVED = frozenset(
    "view reshape flatten unflatten permute transpose t swapaxes movedim squeeze unsqueeze expand getitem get select narrow "
    "chunk split unbind cat concat stack repeat roll index_select contiguous clone broadcast_to tile flip".split()
)
POOLED = frozenset("max_pool2d avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d interpolate".split())
RULES = {name: f"_{name}" for name in ("linear", "batch_norm", "embedding", "pad")}
RULES |= {"conv1d": "_convolve", "conv2d": "_convolve", "layer_norm": "_normalize", "rms_norm": "_normalize"}
FILLED = frozenset("new_zeros new_ones new_full new_empty".split())


class _Follow(TorchFunctionMode):
    """Joins dimensions of the network's tensors as operations combine them.

    Args:
        net: on the meta device.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
        self.layers: set[int] = set()  # weights of those that are called now
        self.calls: list[Any] = []  # operations, and numbers that enter values: none may depend on the size of features
        self.norms: dict[
            str, tuple[Axis, int]
        ] = {}  # norm -> its features, and where they are in its input, from the end
        self.norm: tuple[str, Tensor] | None = None  # the one that is called now, and its input
        self._joined: dict[Axis, Axis] = {}
        self._lost: dict[Axis, None] = {}
        self._axes: dict[int, dict[int, Axis]] = {}
        self._alive = {id(tensor): tensor for tensor in self.tensors.values()}  # so that no other tensor gets the id
        for name, tensor in self.tensors.items():
            self._set(tensor, {dim: (name, dim) for dim, size in enumerate(tensor.shape) if size > 1})
        for name, module in net.named_modules():
            if isinstance(module, PrunableLayer):
                module.register_forward_pre_hook(lambda layer, _: self.layers.add(id(layer.weight)))
                module.register_forward_hook(lambda layer, *_: self.layers.discard(id(layer.weight)))
            if is_norm(module):
                module.register_forward_pre_hook(partial(self._enter, name))
                module.register_forward_hook(self._leave)
                if not isinstance(module, nn.LayerNorm | nn.RMSNorm):
                    module.forward = partial(_rms_norm, module)

    def _enter(self, name: str, norm: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.norm = name, args[0]

    def _leave(self, *_: Any) -> None:
        self.norm = None

    def components(self) -> list[list[Axis]]:
        """The dimensions that go together, but for those that stay."""
        lost = {self._root(axis) for axis in self._lost}
        parts: dict[Axis, list[Axis]] = {}
        for name, tensor in self.tensors.items():
            for dim, size in enumerate(tensor.shape):
                if size > 1 and (root := self._root((name, dim))) not in lost:
                    parts.setdefault(root, []).append((name, dim))
        return list(parts.values())

    def same(self, one: Axis, other: Axis) -> bool:
        return self._root(one) == self._root(other)

    def lose(self, *values: Any) -> None:
        """Keep all features of these tensors."""
        for value in tree_leaves(values):
            if isinstance(value, Tensor):
                self._lost.update(dict.fromkeys(self._of(value).values()))

    def take(self, inputs: Any) -> None:
        self._alive.update((id(tensor), tensor) for tensor in tree_leaves(inputs))

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.__bool__ and args[0].is_meta and (test := getattr(args[0], "_test", None)):
            return test == "all"  # as of plain inputs: nothing is padded, packed or infinite
        result = func(*args, **kwargs)
        made = [value for value in tree_leaves(result) if isinstance(value, Tensor)]
        read = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        if any(value.is_meta and id(value) not in self._alive for value in read):
            raise RuntimeError("an operation that was not seen made a tensor")
        self._alive.update((id(value), value) for value in made)
        name = getattr(func, "__name__", "").strip("_")
        counted = name in COMBINED or name in PASSED or name in ("tensor", "full")
        numbers = [value for value in tree_leaves((args, kwargs)) if isinstance(value, float | int)]
        self.calls += [name, *(value for value in numbers if counted or isinstance(value, float))]
        if name in ("all", "any"):
            result._test = name
        if not any(map(self._of, read)):
            if name not in PASSED | COMBINED | MOVED | FILLED:
                self.calls += [value.shape for value in read]
            return result
        if not made and name != "setitem":
            return result
        if name in RULES:
            self._set(result, getattr(self, RULES[name])(result, *args, **kwargs))
        elif name in PASSED and len({id(value) for value in read}) == 1:
            self._set(made[0], self._of(read[0]))
        elif name in COMBINED or name in PASSED:
            self._set(made[0], self._combine(made[0], read))
        elif name in REDUCED:
            self._set(made[0], self._reduce(made[0], *args, **kwargs))
        elif name in POOLED:
            self._keep_sizes(made[0], read[0], read[0].dim() - 2)
        elif name in MOVED:
            self._move(func, args, kwargs, made, read)
        elif name not in FILLED:
            self.lose(args, kwargs)
        return result

    def _of(self, tensor: Any) -> dict[int, Axis]:
        return self._axes.get(id(tensor), {})

    def _set(self, tensor: Tensor, axes: Mapping[int, Axis]) -> None:
        self._axes[id(tensor)] = dict(axes)

    def _keep_dims(self, x: Tensor, dims: Iterable[int]) -> dict[int, Axis]:
        """Those of its dimensions that are followed; the others stay."""
        axes, dims = self._of(x), set(dims)
        self._lost.update({axis: None for dim, axis in axes.items() if dim not in dims})
        return {dim: axis for dim, axis in axes.items() if dim in dims}

    def _root(self, axis: Axis) -> Axis:
        while axis in self._joined:
            axis = self._joined[axis]
        return axis

    def _join(self, *axes: Axis | None) -> Axis | None:
        """One set of these dimensions; if features of unknown origin (None) are among them, all stay."""
        known = [axis for axis in axes if axis is not None]
        if len(known) < len(axes):
            self._lost.update(dict.fromkeys(known))
            return None
        first = self._root(known[0])
        for axis in known[1:]:
            if (root := self._root(axis)) != first:
                self._joined[root] = first
        return first

    # Rules: each returns the dimensions of the result that are followed.

    def _linear(self, result: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> dict[int, Axis]:
        dim = x.dim() - weight.dim() + 1  # of the channels of a convolution
        own = weight if id(weight) in self.layers else None  # else no module of it could ignore features
        self._join(self._of(x).get(dim), self._of(own).get(1))
        if own is None:
            self.lose(weight)
        made = self._join(self._of(weight).get(0), *([] if bias is None else [self._of(bias).get(0)]))
        others = self._keep_dims(x, range(dim + 1))
        others.pop(dim, None)
        return others if made is None else others | {dim: made}

    def _convolve(
        self, result: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any, **more: Any
    ) -> dict:
        groups = more.get("groups", rest[3] if len(rest) > 3 else 1)
        if groups == 1:
            return self._linear(result, x, weight, bias)
        dim = x.dim() - weight.dim() + 1
        if groups != weight.shape[0] or groups != x.shape[dim]:
            self.lose(x, weight, bias)
            return {}
        own = [weight] if bias is None else [weight, bias]
        joined = self._join(self._keep_dims(x, [dim]).get(dim), *(self._of(tensor).get(0) for tensor in own))
        return {} if joined is None else {dim: joined}

    def _embedding(self, result: Tensor, ids: Tensor, weight: Tensor, *rest: Any, **more: Any) -> dict[int, Axis]:
        max_norm = more.get("max_norm", rest[1] if len(rest) > 1 else None)
        axis = self._keep_dims(weight, [1] if max_norm is None else []).get(1)
        return {} if axis is None else {result.dim() - 1: axis}

    def _batch_norm(self, result: Tensor, x: Tensor, *rest: Any, **more: Any) -> dict[int, Axis]:
        own = [tensor for tensor in (*rest, *more.values()) if isinstance(tensor, Tensor) and tensor.dim() == 1]
        joined = self._join(self._keep_dims(x, [1]).get(1), *(self._of(tensor).get(0) for tensor in own))
        return {} if joined is None else {1: joined}

    def _pad(self, result: Tensor, x: Tensor, pad: Sequence[int], *_: Any, **more: Any) -> dict[int, Axis]:
        padded = {x.dim() - 1 - place // 2 for place, size in enumerate(pad) if size}
        return self._keep_dims(x, set(range(x.dim())) - padded)

    def _normalize(self, result: Tensor, x: Tensor, shape: Sequence[int], *rest: Any, **more: Any) -> dict[int, Axis]:
        axes, last = self._of(x), x.dim() - 1
        own = [tensor for tensor in (*rest, *more.values()) if isinstance(tensor, Tensor)]
        joined = self._join(axes.get(last), *(self._of(tensor).get(0) for tensor in own)) if len(shape) == 1 else None
        at = None
        if joined is not None and self.norm is not None:
            name, read = self.norm
            at = next((dim - read.dim() for dim, axis in self._of(read).items() if self.same(axis, joined)), None)
        if joined is None or self.norm is None or at is None:
            self.lose(x, own)
            return {}
        earlier, before = self.norms.setdefault(
            self.norm[0], (joined, at)
        )  # it may be called again, for other features
        joined = self._join(joined, earlier if before == at else None)
        return axes if joined is None else axes | {last: joined}

    def _combine(self, result: Tensor, read: Sequence[Tensor]) -> dict[int, Axis]:
        axes: dict[int, Axis] = {}
        for dim in range(result.dim()):
            at = [(tensor, dim - result.dim() + tensor.dim()) for tensor in read]
            sides = [self._of(tensor).get(own) for tensor, own in at if own >= 0 and tensor.shape[own] > 1]
            if any(sides) and (joined := self._join(*sides)) is not None:
                axes[dim] = joined
        return axes

    def _reduce(
        self, result: Tensor, x: Tensor, dim: Any = None, keepdim: bool = False, **more: Any
    ) -> dict[int, Axis]:
        dims = range(x.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
        summed = {one % x.dim() for one in dims}
        left = [one for one in range(x.dim()) if keepdim or one not in summed]
        return {left.index(one): axis for one, axis in self._keep_dims(x, set(range(x.dim())) - summed).items()}

    def _keep_sizes(self, result: Tensor, x: Tensor, dims: int) -> None:
        stays = {dim for dim in range(dims) if result.shape[dim] == x.shape[dim]}
        self._set(result, self._keep_dims(x, stays))

    def _move(self, func: Any, args: Any, kwargs: Any, made: list[Tensor], read: list[Tensor]) -> None:
        """Find where each dimension goes by moving the numbers of its features."""
        places: list[dict[int, list[Axis]]] = [{} for _ in made]
        for dim, size in sorted({(dim, tensor.shape[dim]) for tensor in read for dim in self._of(tensor)}):

            def numbers(tensor: Tensor, dim: int = dim, size: int = size) -> Tensor:
                if tensor.dtype == torch.bool or (not tensor.is_floating_point() and not self._of(tensor)):
                    return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")  # an index
                followed = dim in self._of(tensor) and tensor.shape[dim] == size
                return (
                    _numbers(tensor.shape, dim) if followed else torch.full((1,), -1, device="cpu").expand(tensor.shape)
                )

            own = [self._of(tensor)[dim] for tensor in read if dim in self._of(tensor) and tensor.shape[dim] == size]
            moved = tree_leaves(func(*tree_map_only(Tensor, numbers, args), **tree_map_only(Tensor, numbers, kwargs)))
            for place, result in zip(places, moved, strict=True):
                at = next((at for at in range(result.dim()) if result.equal(_numbers(result.shape, at))), None)
                if at is None or result.shape[at] != size:
                    self._lost.update(dict.fromkeys(own))
                else:
                    place[at] = own
        for result, place in zip(made, places, strict=True):
            self._set(result, {at: joined for at, own in place.items() if (joined := self._join(*own)) is not None})


def _numbers(shape: Sequence[int], dim: int) -> Tensor:
    """int64 of this shape: 0, 1, ... along a dim."""
    return torch.arange(shape[dim], device="cpu").view(-1, *[1] * (len(shape) - dim - 1)).expand(shape)


def find_hidden_ties(net: nn.Module, layers: Iterable[str], others: Sequence[Tie]) -> list[Tie]:
    """Find the ties of features that cross shortcuts or norms, of networks that can be called without values.

    Args:
        net: on any device; may be on the meta device.
        layers: names of the Linear and convolution layers that have masks.
        others: ties of units inside of blocks, which these leave alone.
    """
    follow = _call(net)
    if follow is None:
        return []
    among = set(layers)
    modules = dict(net.named_modules())
    users = Counter(id(own) for module in modules.values() for own in module._parameters.values())
    makes, reads = {one for tie in others for one in tie.outputs}, {one for tie in others for one in tie.inputs}
    ties = []
    for component in follow.components():
        outputs: dict[str, tuple[int, ...]] = {}
        inputs: dict[str, tuple[int, ...]] = {}
        parts: dict[str, tuple[int, ...]] = {}
        for name, dim in component:
            layer, _, key = name.rpartition(".")
            module: Any = modules[layer]
            masked = (
                key == "weight"
                and layer in among
                and users[id(module.weight)] == 1
                and getattr(module, "groups", 1) == 1
            )
            if masked and dim < 2:
                (inputs if dim else outputs)[layer] = (1,)
            else:
                parts[name] = (*parts.get(name, ()), dim)
        parts = {name: dims for name, dims in parts.items() if name.removesuffix(".bias") not in outputs}
        count = follow.tensors[component[0][0]].shape[component[0][1]]
        if not inputs or makes & outputs.keys() or reads & inputs.keys() or (len(component) == 1 and not outputs):
            continue
        norms = {name: at for name, (axis, at) in follow.norms.items() if follow.same(axis, component[0])}
        ties.append(Tie(outputs, inputs, count, parts=parts, norms=norms))
    return ties


def ties_of(net: nn.Module, layers: Iterable[str], pattern: Pattern) -> list[Tie]:
    """The ties that a pattern prunes; empty if it prunes none."""
    if not pattern.tied:
        return []
    layers = list(layers)
    ties = find_ties(net, layers)
    return [*(ties if pattern.in_blocks else ()), *(find_hidden_ties(net, layers, ties) if pattern.over_norms else ())]


def same_call(net: nn.Module, other: nn.Module) -> bool:
    """Whether some inputs fit both networks, which differ in sizes, and no operation or number depends on these."""
    one, another = _call(net), _call(other)
    return one is not None and another is not None and one.calls == another.calls


def _call(net: nn.Module) -> _Follow | None:
    """Follow one call without values; None if no inputs that fit are known, or control flow depends on values."""
    for inputs in _inputs(net):
        follow = _follow(net, inputs)
        if follow is None:
            continue
        if (
            isinstance(inputs, tuple) and inputs[0].dim() == 3
        ):  # of rows: dims have other features if it takes single ones
            return _follow(net, inputs, (inputs[0][:, 0],)) or follow
        return follow
    return None


def _follow(net: nn.Module, *calls: dict[str, Tensor] | tuple[Tensor, ...]) -> _Follow | None:
    copied = without_values(net)
    follow = _Follow(copied)
    for inputs in calls:
        follow.take(inputs)
        try:
            with torch.no_grad(), follow:
                output = copied(**inputs) if isinstance(inputs, dict) else copied(*inputs)
        except Exception:  # whatever the network's code raises for inputs of another kind, or without values
            return None
        follow.lose(list(vars(output).values()) if hasattr(output, "__dict__") else output, output)
    return follow


def is_norm(module: nn.Module) -> bool:
    """Whether it divides by a statistic over its features, of which `weight`, if there is one, has an entry each."""
    kind = type(module).__name__
    if is_parametrized(module):
        return False
    rms = ("RMSNorm" in kind or kind == "T5LayerNorm") and list(module._parameters) == ["weight"]
    return rms or isinstance(module, nn.LayerNorm | nn.RMSNorm)


def _rms_norm(module: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, tuple(module.weight.shape), module.weight)


def without_values(net: nn.Module) -> nn.Module:
    """A copy on the meta device in eval mode, without the hooks of `pruning.unit_hooks`."""
    memo: dict[int, Any] = {}
    for tensor in (*net.parameters(), *net.buffers()):
        empty = torch.empty_like(tensor, device="meta")
        memo[id(tensor)] = nn.Parameter(empty, requires_grad=False) if isinstance(tensor, nn.Parameter) else empty
    copied = copy.deepcopy(net, memo).eval()
    for module in copied.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for key in [key for key, hook in hooks.items() if getattr(hook, "of_units", False)]:
                del hooks[key]
    return copied


SIDES = (32, 64, 224)


def _inputs(net: nn.Module) -> Iterator[dict[str, Tensor] | tuple[Tensor, ...]]:
    """Inputs without values to try: token ids, images or sequences, as the names of the forward's arguments and layers tell."""
    config: Any = getattr(net, "config", None)
    floats: Any = next((tensor.dtype for tensor in net.parameters() if tensor.is_floating_point()), torch.float32)
    empty: Callable[..., Tensor] = partial(torch.empty, device="meta", dtype=floats)
    ids = torch.empty(2, 7, dtype=torch.long, device="meta")
    modules = list(net.modules())
    convolutions = [module for module in modules if isinstance(module, nn.Conv2d)]
    channels = convolutions[0].in_channels if convolutions else 3
    holders = [config, getattr(config, "vision_config", None), *modules]
    known = [getattr(one, key, None) for one in holders for key in ("image_size", "img_size")]
    known += [  # positions of patches, after up to two tokens
        convolutions[0].stride[0] * math.isqrt(parameter.shape[1] - tokens)
        for parameter in net.parameters()
        for tokens in (0, 1, 2)
        if convolutions and parameter.dim() == 3 and len(parameter) == 1 and parameter.shape[1] > tokens
    ]
    sides = dict.fromkeys(
        tuple(one) if isinstance(one, list | tuple) else (one, one) for one in (*known, *SIDES) if one
    )
    names = inspect.signature(net.forward).parameters
    text = {name: ids for name in ("input_ids", "token_type_ids", "decoder_input_ids") if name in names}
    if "input_features" in names and config is not None:
        frames = 2 * getattr(config, "max_source_positions", 8)
        yield {"input_features": empty(2, getattr(config, "num_mel_bins", 80), frames)}
    if "pixel_values" in names:
        for side in sides:
            yield {**text, "pixel_values": empty(2, channels, *side)}
    if text:
        yield text
        yield {name: ids for name in text if name != "token_type_ids"}
        return
    if convolutions:
        for side in sides:
            yield (empty(2, channels, *side),)
    if any(isinstance(module, nn.Embedding) for module in modules):
        yield (ids,)
    features = next((module.in_features for module in modules if isinstance(module, nn.Linear)), None)
    if features is not None:
        yield (empty(2, 7, features),)
        yield (empty(2, features),)
