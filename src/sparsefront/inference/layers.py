"""Swap a single layer: the kernels of a pruned one, and low-precision kernels of one that stays dense."""

from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from sparsefront_kernels import KernelEntry, labeled
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import Tensor, nn

from sparsefront.export.packed_layers import PackedWeights
from sparsefront.inference.autotune import (
    TimedLayers,
    Trial,
    autotune_layer,
    dense_name,
    fast_kernels,
    find_candidates,
    low_dense_candidates,
    most_promising,
)
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion.plan import FusionPlan, FusionReport
from sparsefront.inference.network_modules import join_groups, replace_module
from sparsefront.inference.precision import HEAD_IN_16_BITS, Precision
from sparsefront.inference.recurrent import STEPS
from sparsefront.inference.swap_report import LayerSwap, describe_precision, why_16_bits
from sparsefront.masks.weight_view import as_matrix
from sparsefront.measure.memory import count_bytes
from sparsefront.measure.problems import LayerInput, observe_problems
from sparsefront.measure.timers import launch_in_use
from sparsefront.networks import layer_weight
from sparsefront.pruning.layers import KEEPS_ALL, UNREACHED, explain_nested, heads, in_groups, layer_unsupported_reason

NOTHING = "kernel=none: the masked weight is multiplied densely"


class CalledLinears(NamedTuple):
    """Args:
    inputs: Linear -> its input, in the order of first calls.
    heads: those that give the network's output (`pruning.layers.heads`).
    """

    inputs: dict[str, LayerInput]
    heads: Collection[str]


def observe_called_linears(net: nn.Module, inputs: dict[str, Tensor]) -> CalledLinears:
    """The Linears that one forward calls."""
    names = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    return CalledLinears(observe_problems(net, inputs, names), heads(net, inputs))


def stays_in_16_bits(net: nn.Module, name: str, heads: Container[str], precision: Precision) -> str | None:
    """Why not to try low precision for an unpruned Linear, or None."""
    layer = net.get_submodule(name)
    weight = layer_weight(layer)
    reason = layer_unsupported_reason(layer) or explain_nested(net, name)
    reason = reason or (HEAD_IN_16_BITS if name in heads else None)
    return reason or precision.explain_16_bits([name], (weight.shape[0], weight.shape[1]), weight.dtype)


def quantize_linears(
    net: nn.Module, linears: CalledLinears, known: Container[str], precision: Precision
) -> dict[str, str]:
    """Run every supported Linear in low precision, in place, without timing it.

    Args:
        linears: from `observe_called_linears`, of the network before blocks were rewritten.
        known: Linears to skip.
    Returns:
        Linear that stays in 16 bits -> why.
    """
    reasons = {}
    for name, received in linears.inputs.items():
        if name in known:
            continue
        reason = stays_in_16_bits(net, name, linears.heads, precision)
        if reason is None:
            layer = net.get_submodule(name)
            assert isinstance(layer, nn.Linear)  # by `observe_called_linears`
            plain = not layer.weight.is_cuda
            candidates = low_dense_candidates(layer.weight.detach(), received.problem, precision, plain=plain)
            tuned = autotune_layer(layer, candidates, received, timed=False, x_scale=precision.x_scale([name]))
            chosen = tuned.fastest(dense_allowed=False)
            reason = tuned.why_dense() if chosen is None else None
            if chosen is not None:
                replace_module(net, layer, tuned.modules[chosen])
        if reason is not None:
            reasons[name] = reason
    return reasons


def stays_dense(
    layer: nn.Module, export: PackedWeights, name: str, choice: KernelChoice, *, called: bool
) -> str | None:
    """Why no kernel is tried for a layer, or None."""
    if choice.swaps_nothing:
        return NOTHING
    if export.manifest.layers[name].density == 1:
        return KEEPS_ALL
    if export.manifest.layers[name].family == "dense":
        return f"pattern {export.manifest.pattern} is stored dense"
    reason = layer_unsupported_reason(layer)
    if reason is not None:
        return reason
    return None if called else UNREACHED


def join_problem(layer: nn.Module, received: LayerInput) -> LayerInput:
    """The layer's input, with K over all groups of a convolution: see `join_groups`."""
    if not isinstance(layer, nn.Conv2d):
        return received
    return replace(received, problem=replace(received.problem, k=received.problem.k * layer.groups))


def try_layer(
    layer: nn.Linear | nn.Conv2d,
    export: PackedWeights,
    name: str,
    received: LayerInput,
    choice: KernelChoice,
    plan: FusionPlan | None,
    precision: Precision,
    timed_layers: TimedLayers | None,
    late: str | None,
    *,
    adds_shortcut: bool | None,
) -> Trial:
    """Check and time the kernels of one layer.

    Args:
        timed_layers: under a time budget: layers that are built, called and stored like one of them only time the kernels that
            were fast there, or none if an earlier search timed it. None: all are timed.
        late: why nothing is timed, or None.
    """
    device = layer.weight.device
    stored, mask = export.format(name).to(device=device, dtype=layer.weight.dtype), export.masks[name].to(device)
    if isinstance(layer, nn.Conv2d) and in_groups(layer):
        stored, mask = join_groups(stored, as_matrix(mask), layer.groups, layer.weight[0, 0].numel())
    wants = partial(choice.wants, canonical=stored.family, device=device)
    if plan is not None:
        planned = plan.layers.get(name, dense_name(layer))
        if planned in (dense_name(layer), STEPS):  # recurrent steps are swapped after all layers
            return Trial(dense_name(layer), unsupported={"the others": "dense was chosen before"})
        wants = partial(_is_planned, *labeled(planned))
    low, x_scale = precision.kernels(), None
    reasons: dict[str, str] = {}
    if isinstance(layer, nn.Conv2d):
        low = ()
    elif (reason := precision.explain_16_bits([name], stored.shape, stored.dtype)) is not None:
        reasons = {kernel.name: reason for kernel in low if wants(kernel, "row_major")}
        low = ()
    else:
        x_scale = precision.x_scale([name])
    density = export.manifest.layers[name].density
    # with the parameters of the format: kernels ask for blocks of some sizes
    shape = repr(layer), received, stored.family, stored.meta(), adds_shortcut
    known, earlier = ({}, False) if timed_layers is None else timed_layers.find(repr(shape), density, device)
    fast = fast_kernels(known) if plan is None else []
    timed = plan is None and late is None and not earlier
    if fast:
        reasons["the others"] = f"not tried: {fast[0]} was faster in a layer like this one"
        wants = partial(_was_fast, fast if timed else fast[:1], wants)
    candidates = find_candidates(stored, mask, received.problem, wants, low)
    candidates.unsupported.update(reasons)
    if late is not None and not fast:
        candidates = most_promising(candidates, density, late, dense_allowed=choice.dense_allowed)
    tuned = autotune_layer(layer, candidates, received, timed=timed, adds_shortcut=adds_shortcut, x_scale=x_scale)
    if not timed and tuned.modules:
        known = {kernel: us for kernel, us in known.items() if kernel in (tuned.dense, *tuned.modules)}
        if (
            plan is None or min(known, key=known.__getitem__, default="") in tuned.modules
        ):  # else times of another choice
            tuned.latencies_us = known
    elif timed_layers is not None and not fast:
        timed_layers.add(repr(shape), density, tuned, device)
    if fast and not tuned.modules:  # what was fast for similar weights may not support these
        return try_layer(
            layer, export, name, received, choice, plan, precision, None, late, adds_shortcut=adds_shortcut
        )
    return tuned


def _was_fast(
    fast: Collection[str], wants: Callable[[KernelEntry, str], bool], kernel: KernelEntry, layout: str
) -> bool:
    return kernel.label(layout) in fast and wants(kernel, layout)


def _is_planned(planned: KernelEntry, planned_layout: str | None, kernel: KernelEntry, layout: str) -> bool:
    return kernel.name == planned.name and layout == (planned_layout or planned.layouts[0])


def record_layer(
    layer: nn.Module, tuned: Trial, chosen: str | None, received: LayerInput | None, *, density: float
) -> LayerSwap:
    """The report of a layer.

    Args:
        chosen: kernel of one of the autotuned modules; None = the dense layer stays.
    """
    runs, family, launch = layer, "dense", {}
    if chosen is not None:
        runs = tuned.modules[chosen]
        assert isinstance(runs, SparseLayer) and received is not None  # it was tuned
        family, launch = runs.format.family, launch_in_use(runs, received.problem)
    return LayerSwap(
        kernel=chosen or tuned.dense,
        family=family,
        density=density,
        weight_bytes=count_bytes(runs),
        latency_us=tuned.latencies_us.get(chosen or tuned.dense),
        candidates=tuned.latencies_us,
        unsupported=tuned.unsupported,
        notes=tuned.notes,
        launch=launch,
        relative_error=None if chosen is None else tuned.errors[chosen],
        quantization_error=None if chosen is None else tuned.quantization_errors.get(chosen),
    )


# Low-precision dense kernels in a swap, which keeps the fastest.


def linear_inputs(
    net: nn.Module, problems: Mapping[str, LayerInput], inputs: Mapping[str, Tensor] | None, precision: Precision
) -> CalledLinears:
    """The called Linears if low precision is allowed; else none."""
    if not precision.is_low:
        return CalledLinears({}, ())
    if inputs is not None:
        return observe_called_linears(net, dict(inputs))
    linears = {name: seen for name, seen in problems.items() if isinstance(net.get_submodule(name), nn.Linear)}
    return CalledLinears(linears, heads(net, None))


def try_low_dense(
    net: nn.Module,
    name: str,
    linears: CalledLinears,
    choice: KernelChoice,
    plan: FusionPlan | None,
    precision: Precision,
) -> Trial:
    """Autotune dense low-precision kernels for a layer; the result has no module where the layer stays unchanged."""
    layer = net.get_submodule(name)
    if name not in linears.inputs:
        return Trial(dense_name(layer))
    reason = NOTHING if choice.swaps_nothing else stays_in_16_bits(net, name, linears.heads, precision)
    if reason is not None:
        return Trial(dense_name(layer), unsupported={kernel.name: reason for kernel in precision.kernels()[:1]})
    assert isinstance(layer, nn.Linear)  # by `observe_called_linears`
    plain = choice.mode == "reference" or not layer.weight.is_cuda
    candidates = low_dense_candidates(layer.weight.detach(), linears.inputs[name].problem, precision, plain=plain)
    if plan is not None:
        planned = plan.layers.get(name, dense_name(layer))
        candidates = replace(candidates, usable=[one for one in candidates.usable if one.label == planned])
    scale = precision.x_scale([name])
    return autotune_layer(layer, candidates, linears.inputs[name], timed=plan is None, x_scale=scale)


def quantize_others(
    net: nn.Module,
    linears: CalledLinears,
    pruned: Container[str],
    fusion: FusionReport,
    choice: KernelChoice,
    plan: FusionPlan | None,
    precision: Precision,
) -> tuple[dict[str, str], dict[str, str]]:
    """Swap low-precision kernels into unpruned Linears outside of rewritten blocks, in place.

    Returns:
        Linear that was swapped -> kernel; every unpruned Linear -> its precision, or why it stays in 16 bits.
    """
    kernels, precisions = {}, {}
    unchanged = {layer: product for block in fusion.faster_dense for layer, product in fusion.layers_of(block).items()}
    for name in linears.inputs:
        if name in pruned:
            continue
        product = fusion.product_of.get(name)
        if product is not None:
            precisions[name] = describe_precision(product, precision)
        elif name in unchanged:
            precisions[name] = "its block stays as it is, which is faster"
        else:
            layer = net.get_submodule(name)
            tuned = try_low_dense(net, name, linears, choice, plan, precision)
            chosen = tuned.fastest(dense_allowed=True)
            precisions[name] = precision.name if chosen is not None else why_16_bits(tuned, precision)
            if chosen is not None:
                kernels[name] = chosen
                replace_module(net, layer, tuned.modules[chosen])
    return kernels, precisions


def precision_of(layer: LayerSwap, precision: Precision) -> str:
    """The precision of a pruned layer, or why it stays in 16 bits."""
    return precision.name if layer.quantization_error is not None else why_16_bits(layer, precision)
