"""Which layers are pruned, and why the others stay dense."""

import fnmatch
import math
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from sparsefront.errors import InvalidSetting
from sparsefront.models.recurrent import GateLinear, unsplit_reason
from sparsefront.networks import (
    PrunableLayer,
    ReadTensors,
    before_forward,
    first_argument,
    has_forward_hooks,
    in_eval_mode,
    layer_weight,
)
from sparsefront.patterns.base import Pattern, label
from sparsefront.patterns.hidden import same_call, ties_of, without_values
from sparsefront.patterns.ties import Tie
from sparsefront.patterns.width import explain_untied, units_to_prune
from sparsefront.pruning.structure import remove_units


@dataclass(frozen=True)
class PruningPlan:
    """Args:
    shapes: every prunable layer -> [N, K] of its weight matrix, in the network's order.
    dense_reasons: prunable layers that stay dense -> why.
    ties: ties between layers, for patterns that need them.
    """

    shapes: dict[str, tuple[int, int]]
    dense_reasons: dict[str, str]
    ties: tuple[Tie, ...] = ()

    @property
    def layers(self) -> list[str]:
        """The layers to prune."""
        return [name for name in self.shapes if name not in self.dense_reasons]

    @property
    def pruned_shapes(self) -> dict[str, tuple[int, int]]:
        """Layer to prune -> [N, K]."""
        return {name: self.shapes[name] for name in self.layers}


def plan_pruning(
    net: nn.Module,
    prunable: list[str],
    *,
    pattern: Pattern,
    sparsity: float,
    ignored: Mapping[str, str],
    reads_inputs: str | None = None,
) -> PruningPlan:
    """Split the prunable layers into those to prune and those that stay dense.

    Args:
        net: may be on the meta device: only shapes are read.
        prunable: names of Linear and Conv2d layers.
        ignored: prunable layers that the user keeps dense -> why.
        reads_inputs: the option that reads layer inputs, such as "importance=wanda": see `_check_groups`.
    Raises:
        InvalidSetting: the pattern ties layers, and the sparsity removes nothing from any of them.
    """
    shapes: dict[str, tuple[int, int]] = {}
    reasons: dict[str, str] = {}
    for name in prunable:
        module = net.get_submodule(name)
        weight = layer_weight(module)
        shapes[name] = (weight.shape[0], weight[0].numel())
        if name in ignored:
            reasons[name] = ignored[name]
        elif not has_own_weight(module):
            reasons[name] = "its weight is computed from other parameters"  # zeros would be overwritten
        elif in_groups(module) and (reason := _check_groups(module, pattern, reads_inputs)) is not None:
            reasons[name] = reason
        elif (reason := pattern.unsupported_reason(shapes[name], sparsity)) is not None:
            reasons[name] = reason
    if not pattern.tied:
        return PruningPlan(shapes, reasons)
    fitting = [name for name in shapes if name not in reasons]
    ties = ties_of(net, fitting, pattern)
    if pattern.over_norms and not _runs_without(net, [tie for tie in ties if tie.parts]):
        ties = []
    plan = PruningPlan(shapes, reasons | explain_untied(ties, fitting, pattern), tuple(ties))
    if ties:
        units_to_prune(ties, plan.pruned_shapes, sparsity, pattern.multiple_of)
    return plan


def _runs_without(net: nn.Module, ties: Iterable[Tie]) -> bool:
    """Whether there are units, and the network computes the same with about half of them: some networks' code holds or reads
    their number. Ties lose different numbers, so that none fits another's by chance.
    """
    smaller = without_values(net)
    for place, tie in enumerate(ties):
        remove_units(smaller, tie, torch.arange(tie.count) < max(1, (tie.count + 1) // 2 - place))
    return bool(ties) and same_call(net, smaller)


def in_groups(module: nn.Module) -> bool:
    """Whether a module is a grouped convolution."""
    return getattr(module, "groups", 1) != 1


def _check_groups(module: Any, pattern: Pattern, reads_inputs: str | None) -> str | None:
    """Why a grouped convolution stays dense; None if each of its groups [N / groups, K] can obey the pattern."""
    outputs, what = module.out_channels // module.groups, f"convolution in {module.groups} groups"
    if pattern.takes_blocks:
        return what
    if module.in_channels == module.groups:
        return f"{what} of one input channel"
    if reads_inputs is not None:
        return f"{what}, whose inputs {reads_inputs} does not tell apart"
    together = pattern.outputs_together
    if together is None:
        return f"{what}, whose outputs read different inputs and cannot go together in pattern {pattern.name}"
    return f"{what} of {outputs} outputs, which {together} do not divide" if outputs % together else None


def require_no_groups(net: nn.Module, layers: Iterable[str], recovery: str) -> None:
    """Raise InvalidSetting if a recovery that reads layer inputs would get a pruned grouped convolution.

    Args:
        layers: names of the pruned layers.
        recovery: name of the recovery.
    """
    grouped = [name for name in layers if in_groups(net.get_submodule(name))]
    if grouped:
        more = f" and {len(grouped) - 1} more" if len(grouped) > 1 else ""
        allowed = (
            f"looks at the inputs of layers, and does not tell those of convolution groups apart ({grouped[0]}{more})"
        )
        raise InvalidSetting(
            "recovery", recovery, f"{allowed}: leave these dense, by recipe.ignore, or take another recovery"
        )


def has_own_weight(module: nn.Module) -> bool:
    """Whether `weight` is a parameter, not computed by weight_norm, spectral_norm or another parametrization."""
    return "weight" in module._parameters


def nothing_fits(plan: PruningPlan, pattern: Pattern, ignored: Mapping[str, str], ignore: object) -> InvalidSetting:
    """The error for a plan that prunes nothing: each reason once, with its first layer and the number of others.

    Args:
        ignored: layers that the user keeps dense.
        ignore: the argument that names them.
    """
    if not plan.shapes:
        return InvalidSetting("pattern", pattern.name, "finds no layer: prunable of the model names none")
    layers_of: dict[str, list[str]] = {}
    for name, reason in plan.dense_reasons.items():
        layers_of.setdefault(reason, []).append(name)
    reasons = []
    for reason, (first, *others) in layers_of.items():
        more = f" and {len(others)} more" if others else ""
        reasons.append(f"{first} {list(plan.shapes[first])}{more}: {reason}")
    if plan.dense_reasons.keys() <= ignored.keys():
        names = ignore if isinstance(ignore, str) or not isinstance(ignore, Iterable) else f"[{','.join(ignore)}]"
        return InvalidSetting("ignore", names, f"keeps all {len(plan.shapes)} prunable layers dense: nothing is left")
    key: str
    value: object
    key, value = "pattern", pattern.name
    granularity = getattr(pattern, "granularity", None)
    if granularity is not None:
        key, value = "granularity", granularity
    elif (m := getattr(pattern, "m", None)) is not None:
        key, value = "pattern.m", m
    return InvalidSetting(key, value, f"fits no prunable layer ({'; '.join(reasons)})")


def require_whole_groups(plan: PruningPlan, pattern: Pattern, ignored: Iterable[str]) -> None:
    """Check that some layer is at least as large as a group (for a mixed pattern, a group of each candidate).

    Args:
        ignored: layers that the user keeps dense.
    Raises:
        InvalidSetting: key `granularity`, `pattern.m` or `pattern.candidates`: no layer is that large; names the largest.
    """
    names = plan.layers or [name for name in plan.shapes if name not in set(ignored)]
    shapes = {name: plan.shapes[name] for name in names}
    for part in pattern.parts or (pattern,):
        for setting, size in part.sizes.items():
            if not shapes or any(_holds(shape, size) for shape in shapes.values()):
                continue
            side = next((side for side in (0, 1) if size[side] > max(shape[side] for shape in shapes.values())), None)
            largest = max(shapes, key=lambda name: (side is not None and shapes[name][side], math.prod(shapes[name])))
            limit = "" if side is None else f": at most {shapes[largest][side]} {('outputs', 'inputs')[side]}"
            allowed = f"is larger than every layer; the largest is {largest} {list(shapes[largest])}{limit}"
            if part is pattern:
                key = setting if setting == "granularity" else f"pattern.{setting}"
                raise InvalidSetting(key, getattr(pattern, setting), allowed)
            raise InvalidSetting("pattern.candidates", label(part), f"{setting}={getattr(part, setting)} {allowed}")


def narrower_than_tiles(plan: PruningPlan, pattern: Pattern) -> str | None:
    """One line about pruned layers that are smaller than a group, which tiles allow; None if there are none."""
    size = pattern.sizes.get("granularity")
    narrower = [name for name in plan.layers if size is not None and not _holds(plan.shapes[name], size)]
    if not narrower:
        return None
    note = f"{len(narrower)} of {len(plan.layers)} pruned layers have fewer outputs: each of them is one narrower tile"
    return f"granularity={pattern.granularity}: {note}"  # type: ignore[attr-defined]


def _holds(shape: tuple[int, int], size: tuple[int, int]) -> bool:
    return shape[0] >= size[0] and shape[1] >= size[1]


def require_matches(ignore: Iterable[str], net: nn.Module, prunable: list[str]) -> None:
    """Check that each expression of layers to ignore matches a layer of the network.

    An expression that matches only layers that are never pruned (an embedding, the head) is allowed.

    Args:
        ignore: regular expressions, as in `recipe.ignore`.
        net: may be on the meta device: only names are read.
        prunable: names of prunable layers, for the message.
    Raises:
        InvalidSetting: an expression matches nothing; lists the layers.
    """
    layers = [name for name, module in net.named_modules() if getattr(module, "weight", None) is not None]
    for expression in ignore:
        if not any(re.search(expression, name) for name in layers):
            allowed = f"finds no layer; there are {', '.join(merge_numbered(prunable))} (N: the number of a block)"
            raise InvalidSetting("ignore", expression, allowed)


def merge_numbered(names: list[str]) -> list[str]:
    """The distinct names with block numbers replaced by N: `blocks.N.attn.q`."""
    return list(dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.|$)", "N", name) for name in names))


Layers = str | Sequence[str] | Callable[[str, nn.Module], bool]
"""Layer names or glob patterns, or a predicate of (name, module)."""

FIRST_CONVOLUTION = "the first convolution, which reads the input"
HEAD = "the head, which gives the network's output"
UNREACHED = "the example inputs do not reach it"
READ = "its weight is read without a call of it"
UNCHOSEN = "not among the layers to prune"
KEEPS_ALL = "it keeps every weight"
NAMED_AT_MOST = 8


def choose_layers(
    net: nn.Module, layers: Layers | None, inputs: dict[str, Tensor] | None
) -> tuple[list[str], dict[str, str]]:
    """Select the Linear, Conv1d and Conv2d layers that `layers` describes, in network order.

    Args:
        layers: None = all but the first convolution and the heads (`heads`) that the inputs reach.
        inputs: keyword arguments of one forward; None: module order is taken as call order.
    Returns:
        the chosen layers; and, for layers=None only, the others -> why they were left out.
    Raises:
        InvalidSetting: a name or pattern matches no layer, or no layer is left.
    """
    weighted = weighted_layers(net)
    if layers is None:
        return _default(net, weighted, inputs)
    if callable(layers):
        selected = [name for name in weighted if layers(name, net.get_submodule(name))]
        if not selected:
            raise InvalidSetting("layers", getattr(layers, "__name__", layers), f"chooses no layer of {_few(weighted)}")
        return selected, {}
    patterns = [layers] if not isinstance(layers, Iterable) or isinstance(layers, str) else list(layers)
    chosen: dict[str, None] = {}
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise InvalidSetting("layers", pattern, "is a name, a glob pattern, a list of them, or a predicate")
        matches = [pattern] if pattern in weighted else fnmatch.filter(weighted, pattern)
        if not matches:
            raise InvalidSetting("layers", pattern, f"finds no Linear or convolution; there are {_few(weighted)}")
        chosen.update(dict.fromkeys(matches))
    if not patterns:
        raise InvalidSetting("layers", layers, f"names no layer; there are {_few(weighted)}")
    return [name for name in weighted if name in chosen], {}


def weighted_layers(net: nn.Module) -> list[str]:
    """Names of all Linear, Conv1d and Conv2d modules in network order; a module with two parents is listed once."""
    return [name for name, module in net.named_modules() if isinstance(module, PrunableLayer)]


def weight_of(net: nn.Module, name: str) -> Tensor:
    """The weight of a layer: Linear [N, K], Conv2d [C_out, C_in, kh, kw]."""
    return layer_weight(net.get_submodule(name))


def trace_layers(net: nn.Module, inputs: dict[str, Tensor]) -> list[str]:
    """The Linear and Conv2d layers in the order of their first call in one forward, without side effects."""
    modules = {name: net.get_submodule(name) for name in weighted_layers(net)}
    called: dict[str, None] = {}
    with in_eval_mode(net), before_forward(modules, lambda name, *_: called.setdefault(name)), torch.no_grad():
        net(**inputs)
    return list(called)


def _read_layers(net: nn.Module, layers: Iterable[str], inputs: dict[str, Tensor]) -> set[str]:
    """The layers whose weight is read by an operation of one forward, without side effects."""
    read = ReadTensors({name: weight_of(net, name) for name in layers})
    with in_eval_mode(net), torch.no_grad(), read:
        net(**inputs)
    return read.names


def _default(net: nn.Module, weighted: list[str], inputs: dict[str, Tensor] | None) -> tuple[list[str], dict[str, str]]:
    called = weighted if inputs is None else trace_layers(net, inputs)
    convolutions = [name for name in called if isinstance(net.get_submodule(name), nn.Conv1d | nn.Conv2d)]
    uncalled = [name for name in weighted if name not in called]
    read = set() if inputs is None or not uncalled else _read_layers(net, uncalled, inputs)
    reasons = {name: READ if name in read else UNREACHED for name in uncalled}
    if convolutions:
        reasons[convolutions[0]] = FIRST_CONVOLUTION
    reasons |= dict.fromkeys(heads(net, inputs), HEAD)
    chosen = [name for name in weighted if name not in reasons]
    if not chosen:
        left_out = "; ".join(f"{name}: {why}" for name, why in reasons.items()) or "it has no Linear and no convolution"
        kinds = Counter((weight.kind, weight.why) for weight in dense_weights(net, set(reasons)))
        left_out += "".join(f"; {count} {kind}: {why}" for (kind, why), count in kinds.items())
        advice = "; name those to prune" if any(_could_be_pruned(net, name) for name in reasons) else ""
        raise InvalidSetting("layers", None, f"leaves no layer to prune ({left_out}){advice}")
    return chosen, reasons


def _last_layer(net: nn.Module, layers: Sequence[str]) -> list[str]:
    """The last layer, which is taken for the head if no inputs are known, unless it lies in one of several alike blocks."""
    if not layers or isinstance(net.get_submodule(layers[-1]), GateLinear):
        return []
    for name in accumulate(layers[-1].split(".")[:-1], "{}.{}".format):
        kind, parent = type(net.get_submodule(name)), net.get_submodule(name.rpartition(".")[0])
        alike = [block for block in parent.children() if type(block) is kind]
        if isinstance(parent, nn.ModuleList) or (isinstance(parent, nn.Sequential) and len(alike) > 1):
            return []
    return [layers[-1]]


def heads(net: nn.Module, inputs: dict[str, Tensor] | None) -> list[str]:
    """The layers that give an output of the network: all that reaches it goes through them, and no other layer reads them.

    The last Linear of a block is none, because a residual connection reaches the output beside it. Followed in the autograd
    graph of one forward without side effects; its tensors are not stored, and nothing is computed backward.

    Args:
        inputs: keyword arguments of the forward; None: module order is taken as call order.
    """
    weighted = {name: net.get_submodule(name) for name in weighted_layers(net)}
    if inputs is None:
        return _last_layer(net, list(weighted))
    cuts: dict[
        Any, str | None
    ] = {}  # node of the graph -> the layer that starts there; None: an input, or another weight

    def cut(layer: str | None, x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        x = x.detach().requires_grad_().clone()
        cuts[x.grad_fn] = layer
        return x

    def cut_after(layer: str | None) -> Callable[..., Any]:
        return lambda module, args, output: cut(layer, output)

    def origins(tensor: Any) -> set[str | None]:
        """Where the parts of the graph before a tensor start."""
        starts, seen, nodes = set(), set(), [getattr(tensor, "grad_fn", None)]
        while nodes:
            node = nodes.pop()
            if node in cuts:
                starts.add(cuts[node])
            elif node is not None and node not in seen:
                seen.add(node)
                nodes += [before for before, _ in node.next_functions]
        return starts

    read: set[str | None] = set()
    others = [
        module
        for module in net.modules()
        if not any(module.children())
        and any(map(_is_weight, module._parameters.values()))
        and module not in weighted.values()
    ]
    hooks = [module.register_forward_hook(cut_after(name)) for name, module in weighted.items()]
    hooks += [module.register_forward_hook(cut_after(None)) for module in others]
    nothing_saved = torch.autograd.graph.saved_tensors_hooks(lambda x: None, lambda x: x)
    reads = before_forward(weighted, lambda name, args, kwargs: read.update(origins(first_argument(args, kwargs))))
    try:
        with in_eval_mode(net), torch.enable_grad(), nothing_saved, reads:
            output = net(**tree_map_only(Tensor, partial(cut, None), inputs))
    finally:
        for hook in hooks:
            hook.remove()
    tensors = [output] if isinstance(output, Tensor) else output.values() if isinstance(output, Mapping) else output
    starts = [origins(tensor) for tensor in tensors] if isinstance(tensors, Iterable) else []
    alone = dict.fromkeys(next(iter(start)) for start in starts if len(start) == 1)
    return [
        layer
        for layer in alone
        if layer is not None and layer not in read and not isinstance(weighted[layer], GateLinear)
    ]


def _could_be_pruned(net: nn.Module, name: str) -> bool:
    """Whether a layer has its own weight that no module of another kind, such as an embedding, reads too."""
    module = net.get_submodule(name)
    others = (other for other in net.modules() if not isinstance(other, PrunableLayer))
    return has_own_weight(module) and all(
        parameter is not module.weight for other in others for parameter in other._parameters.values()
    )


def _few(names: list[str]) -> str:
    more = len(names) - NAMED_AT_MOST
    return ", ".join(names[:NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "") or "none"


def match_ignored(chosen: Sequence[str], ignore: str | Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """The chosen layers that stay dense nevertheless -> why.

    Args:
        ignore: names or glob patterns, or a dict of them -> why.
    Raises:
        InvalidSetting: a name or pattern matches none of the chosen layers.
    """
    names = [ignore] if not isinstance(ignore, Iterable) or isinstance(ignore, str) else ignore
    reasons = ignore if isinstance(ignore, Mapping) else {pattern: f"ignore={pattern}" for pattern in names}
    ignored: dict[str, str] = {}
    for pattern, why in reasons.items():
        if not isinstance(pattern, str):
            raise InvalidSetting(
                "ignore", pattern, "is a name, a glob pattern, a list of them, or a dict of them -> why"
            )
        matches = [pattern] if pattern in chosen else fnmatch.filter(chosen, pattern)
        if not matches:
            raise InvalidSetting("ignore", pattern, f"finds none of the layers to prune: {_few(list(chosen))}")
        ignored |= dict.fromkeys(matches, why)
    return ignored


METHODS: dict[type[nn.Module], tuple[str, ...]] = {nn.Linear: ("forward",), nn.Conv2d: ("forward", "_conv_forward")}


def layer_unsupported_reason(layer: nn.Module) -> str | None:
    """Why no kernel can replace this layer; None if one can.

    Kernels compute exactly what Linear and Conv2d do. Subclasses may do more, such as LoRA's second product or custom padding,
    and hooks may read or change the output.
    """
    name = type(layer).__name__
    kind = next((kind for kind in METHODS if isinstance(layer, kind)), None)
    if kind is None:
        return f"no kernel is there for a {name}, which is neither Linear nor Conv2d"
    for method in METHODS[kind]:
        if method in vars(layer) or getattr(type(layer), method) is not getattr(kind, method):
            return f"a {name} with a {method} of its own may compute something else than {kind.__name__}"
    if has_forward_hooks(layer):
        return f"a {name} with forward hooks, which a kernel would not call"
    return conv_unsupported_reason(layer) if isinstance(layer, nn.Conv2d) else None


def conv_unsupported_reason(layer: nn.Conv2d) -> str | None:
    """Why this convolution cannot run as one matrix product; None if it can."""
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return (
            f"convolution with padding {layer.padding} of mode {layer.padding_mode}: only zeros, given as numbers, work"
        )
    return None


def explain_nested(net: nn.Module, layer: str) -> str | None:
    """Why a layer needs the fast path, the only one that reads the nested tensors of nn.TransformerEncoder; or None."""
    for name in accumulate(layer.split(".")[:-1], "{}.{}".format, initial=""):
        encoder = net.get_submodule(name.removeprefix("."))
        if isinstance(encoder, nn.TransformerEncoder) and encoder.use_nested_tensor:
            return "its nn.TransformerEncoder makes nested tensors of padded inputs: build it with enable_nested_tensor=False"
    return None


def dense_at_swap(net: nn.Module, layers: Sequence[str], inputs: dict[str, Tensor] | None) -> dict[str, str]:
    """The layers to prune that `swap` will leave dense in any case -> why.

    Args:
        inputs: keyword arguments of one forward; None: all layers are assumed to be called.
    """
    reasons: dict[str, str] = {}
    for name in layers:
        why = layer_unsupported_reason(net.get_submodule(name)) or explain_nested(net, name)
        if why is not None:
            reasons[name] = why
    if inputs is None:
        return reasons
    called = trace_layers(net, inputs)
    uncalled = [name for name in layers if name not in called]
    read = _read_layers(net, uncalled, inputs) if uncalled else set()
    return {name: READ if name in read else UNREACHED for name in uncalled if name not in reasons} | reasons


class DenseWeight(NamedTuple):
    """A module, or a parameter of one, that stays dense: its name, the module's type, and why."""

    name: str
    kind: str
    why: str


def dense_weights(net: nn.Module, known: Container[str], *, unchosen: str = UNCHOSEN) -> list[DenseWeight]:
    """All modules and parameters with weights other than the known layers, in network order.

    A parameter counts as a weight if at least two of its dims are larger than 1, which excludes biases, norms and scales.

    Args:
        net: may be on the meta device.
        known: layers that are pruned, or known to stay dense.
        unchosen: why other Linear and Conv2d layers stay dense.
    """
    dense: list[DenseWeight] = []
    for name, module in net.named_modules():
        kind = type(module).__name__
        weights = [own for own, parameter in module._parameters.items() if _is_weight(parameter)]
        if isinstance(module, nn.utils.parametrize.ParametrizationList):
            continue  # listed as the weight that is computed from it
        if nn.utils.parametrize.is_parametrized(module):
            kind = nn.utils.parametrize.type_before_parametrizations(module).__name__
            computed = module.parametrizations.items()
            weights += [own for own, made in computed if any(map(_is_weight, made._parameters.values()))]
        if isinstance(module, PrunableLayer):
            if name not in known:
                dense.append(DenseWeight(name, kind, unchosen))
            if not has_own_weight(module):
                continue
            weights = [own for own in weights if own != "weight"]
        elif weights == ["weight"] or (weights and _of_torch(module)):
            dense.append(DenseWeight(name, kind, _why_no_kernel(name, module, kind)))
            continue
        for own in weights:
            why = f"a parameter of {kind} itself, and not the weight of a Linear or convolution"
            dense.append(DenseWeight(f"{name}.{own}".removeprefix("."), kind, why))
    return dense


def _why_no_kernel(name: str, module: nn.Module, kind: str) -> str:
    if isinstance(module, nn.LSTM | nn.GRU):
        if not name:
            what = "an LSTM" if isinstance(module, nn.LSTM) else "a GRU"
            return f"{what} that is the whole network is not split into Linears: put it into a module"
        why = unsplit_reason(module)
        if why:
            return why
    return f"no kernel is there for a module of its kind, {kind}"


def count_weights(net: nn.Module) -> int:
    """Number of weights in everything that `dense_weights` may list, shared ones counted once."""
    weights = {
        id(parameter): parameter.numel()
        for module in net.modules()
        for own, parameter in module._parameters.items()
        if parameter is not None and (_is_weight(parameter) or (own == "weight" and isinstance(module, PrunableLayer)))
    }
    return sum(weights.values())


def _is_weight(parameter: Tensor | None) -> bool:
    if parameter is None or nn.parameter.is_lazy(parameter):
        return False
    return sum(size > 1 for size in parameter.shape) >= 2


def _of_torch(module: nn.Module) -> bool:
    """Whether PyTorch defines this module and calls it (attention reads a parameter for its input projections instead)."""
    return type(module).__module__.startswith("torch.nn.") and not isinstance(module, nn.MultiheadAttention)
