"""Low-precision dense kernels: for Linears that are not pruned, and for all Linears of a dense baseline."""

from collections.abc import Container, Mapping
from dataclasses import replace

from sparsefront_kernels.dense.format import DenseFormat
from torch import Tensor, nn

from sparsefront.inference.autotune import Autotuned, Candidate, Candidates, autotune_layer, dense_name
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion.plan import FusionPlan, FusionReport
from sparsefront.inference.network_modules import replace_module
from sparsefront.inference.precision import LAST, Precision
from sparsefront.inference.swap_report import LayerSwap, fused_precision, why_16_bits
from sparsefront.measure.problems import LayerInput, observe_problems
from sparsefront.networks import layer_weight
from sparsefront.pruning.layers import layer_unsupported_reason, nested_tensor_reason

NOTHING = "kernel=none: the masked weight is multiplied densely"


def called_linears(net: nn.Module, inputs: dict[str, Tensor]) -> dict[str, LayerInput]:
    """Linears that one forward calls -> their inputs, in the order of their first calls."""
    names = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    return observe_problems(net, inputs, names)


def stays_in_16_bits(net: nn.Module, name: str, last: str | None, precision: Precision) -> str | None:
    """Why not to try low precision for an unpruned Linear, or None.

    Args:
        last: the Linear that is called last.
    """
    layer = net.get_submodule(name)
    weight = layer_weight(layer)
    reason = layer_unsupported_reason(layer) or nested_tensor_reason(net, name)
    reason = reason or (LAST if name == last else None)
    return reason or precision.unsupported_layer([name], (weight.shape[0], weight.shape[1]), weight.dtype)


def low_dense_candidates(layer: nn.Linear, received: LayerInput, precision: Precision, *, plain: bool) -> Candidates:
    """Usable dense low-precision kernels, and why others are not.

    Args:
        plain: whether references run.
    """
    weight = layer.weight.detach()
    stored, problem = DenseFormat((weight.shape[0], weight.shape[1]), weight), received.problem
    kernels = [kernel for kernel in precision.kernels() if kernel.family == "dense" and kernel.is_reference == plain]
    reasons = {kernel: kernel.unsupported_reason(stored, problem) for kernel in kernels}
    usable = [Candidate(kernel, "row_major", stored) for kernel, reason in reasons.items() if reason is None]
    return Candidates(usable, {kernel.name: reason for kernel, reason in reasons.items() if reason is not None})


def quantize_linears(
    net: nn.Module, linears: dict[str, LayerInput], known: Container[str], precision: Precision
) -> dict[str, str]:
    """Run every supported Linear in low precision, in place, without timing it.

    Args:
        linears: from `called_linears`, of the network before blocks were rewritten.
        known: Linears to skip.
    Returns:
        Linear that stays in 16 bits -> why.
    """
    last, reasons = next(reversed(linears), None), {}
    for name, received in linears.items():
        if name in known:
            continue
        if (reason := stays_in_16_bits(net, name, last, precision)) is None:
            layer = net.get_submodule(name)
            assert isinstance(layer, nn.Linear)  # by `called_linears`
            candidates = low_dense_candidates(layer, received, precision, plain=not layer.weight.is_cuda)
            tuned = autotune_layer(layer, candidates, received, timed=False, x_scale=precision.x_scale([name]))
            chosen = tuned.fastest(dense_allowed=False)
            reason = tuned.why_dense() if chosen is None else None
            if chosen is not None:
                replace_module(net, layer, tuned.modules[chosen])
        if reason is not None:
            reasons[name] = reason
    return reasons


# The same in a swap, which keeps the fastest.


def observed_linears(
    net: nn.Module, problems: Mapping[str, LayerInput], inputs: Mapping[str, Tensor] | None, precision: Precision
) -> dict[str, LayerInput]:
    """Inputs of all Linears in the order of their calls if low precision is allowed; else empty."""
    if not precision.is_low:
        return {}
    if inputs is not None:
        return called_linears(net, dict(inputs))
    return {name: seen for name, seen in problems.items() if isinstance(net.get_submodule(name), nn.Linear)}


def try_low_dense(
    net: nn.Module,
    name: str,
    linears: dict[str, LayerInput],
    choice: KernelChoice,
    plan: FusionPlan | None,
    precision: Precision,
) -> Autotuned:
    """Autotune dense low-precision kernels for a layer; the result has no module where the layer stays unchanged."""
    layer = net.get_submodule(name)
    if name not in linears:
        return Autotuned(dense_name(layer))
    reason = NOTHING if choice.swaps_nothing else stays_in_16_bits(net, name, next(reversed(linears)), precision)
    if reason is not None:
        return Autotuned(dense_name(layer), unsupported={kernel.name: reason for kernel in precision.kernels()[:1]})
    assert isinstance(layer, nn.Linear)  # by `called_linears`
    plain = choice.mode == "reference" or not layer.weight.is_cuda
    candidates = low_dense_candidates(layer, linears[name], precision, plain=plain)
    if plan is not None:
        planned = plan.layers.get(name, dense_name(layer))
        candidates = replace(candidates, usable=[one for one in candidates.usable if one.label == planned])
    scale = precision.x_scale([name])
    return autotune_layer(layer, candidates, linears[name], timed=plan is None, x_scale=scale)


def quantize_others(
    net: nn.Module,
    linears: dict[str, LayerInput],
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
    for name in linears:
        if name in pruned:
            continue
        if (product := fusion.product_of.get(name)) is not None:
            precisions[name] = fused_precision(product, precision)
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
