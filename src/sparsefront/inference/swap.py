"""Give every pruned layer of a network the kernel that its export, its real problem and the device at hand call for."""

from collections.abc import Mapping
from functools import partial

import torch
from sparsefront_kernels import KernelEntry, labeled
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.export.packed_layers import PackedWeights
from sparsefront.inference.autotune import Autotuned, autotune_layer, dense_name
from sparsefront.inference.candidates import find_candidates
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.compiler_messages import shorten_compiler_messages
from sparsefront.inference.encoder_fast_path import leave_fast_path, nested_tensor_reason
from sparsefront.inference.fusion.fuse import fuse_blocks
from sparsefront.inference.fusion.plan import FusionPlan
from sparsefront.inference.fusion.report import FusionReport
from sparsefront.inference.fusion.timed_products import TimedProducts
from sparsefront.inference.network_modules import replace_module
from sparsefront.inference.sparse_conv import SparseConv2d
from sparsefront.inference.swap_report import KEEPS_ALL, LayerSwap, SwapReport, fused_layer
from sparsefront.inference.unsupported_layer import layer_unsupported_reason
from sparsefront.measure.endings import adds_shortcut
from sparsefront.measure.launch_choice import launch_in_use
from sparsefront.measure.memory import stored_bytes
from sparsefront.measure.problems import LayerInput, theoretical_dense_flops
from sparsefront.progress import bar


def swap(
    net: nn.Module,
    export: PackedWeights,
    problems: Mapping[str, LayerInput],
    choice: KernelChoice,
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    inputs: Mapping[str, Tensor] | None = None,
    plan: FusionPlan | None = None,
    timed: TimedProducts | None = None,
) -> SwapReport:
    """Load the exported weights into the net and replace its pruned layers by kernel calls, in place.

    Encoder blocks are rewritten as a whole where `choice.fuse` and their inputs are known (`inference.fusion`); all other layers
    are replaced one by one. Every candidate is compared with the fp64 product of the masked weight; those that agree are timed
    on a CUDA device and the fastest that `choice` allows stays. On a CPU the reference of the pattern's family runs.

    Args:
        net: the architecture that was exported; afterwards on `device`, in `dtype`, in eval mode.
        dtype: None: each weight keeps its own, as in networks whose norms are float32 and whose products are bfloat16.
        problems: what the prunable layers receive, from `observe_problems`; those that stay dense count in the shares.
        choice: which kernels may run.
        inputs: keyword arguments of the net, the batch that is measured; None: no block is rewritten.
        plan: choices of an earlier swap of these weights (`SwapReport.plan`): the same is done again, and nothing is timed.
        timed: times of products of earlier swaps on this device, to which those of this one are added: the same weights under
            another choice of kernels are not timed again.
    Raises:
        InvalidSetting: a forced kernel runs on none of the pruned layers (key `name` or `family`).
        RuntimeError: the export's weights do not fit the net.
    """
    net.load_state_dict(export.state_dict())
    net.to(device=device, dtype=dtype).eval()
    layers: dict[str, LayerSwap] = {}
    dense_layers = dict(export.manifest.dense_layers)
    # as they are before blocks are rewritten
    masked = {name: net.get_submodule(name) for name in export.manifest.layers}
    fusion = _fuse(net, export, choice, inputs, plan, timed)
    endings = adds_shortcut(net) if any(isinstance(layer, nn.Conv2d) for layer in masked.values()) else {}
    for name, layer in bar(masked.items(), description="swap", unit="layer"):
        density = export.manifest.layers[name].density
        if (found := fused_layer(fusion, name, density)) is not None:
            layers[name], reason = found
            if reason is not None:
                dense_layers[name] = reason
            continue
        reason = _stays_dense(layer, export, name, choice, called=name in problems) or nested_tensor_reason(net, name)
        tuned = (
            Autotuned(dense_name(layer))
            if reason is not None
            else _try(layer, export, name, problems[name], choice, plan, adds_shortcut=endings.get(name))
        )
        chosen = tuned.fastest(dense_allowed=choice.dense_allowed)
        layers[name] = record_layer(layer, tuned, chosen, problems.get(name), density=density)
        if chosen is None:
            dense_layers[name] = reason or tuned.why_dense()
        else:
            replace_module(net, layer, tuned.modules[chosen])
    leave_fast_path(net)
    shorten_compiler_messages()
    _require_forced_kernel_runs(choice, layers)
    if any(
        isinstance(module, SparseConv2d) for module in net.modules()
    ):  # the dense convolutions between them then copy nothing
        net.to(memory_format=torch.channels_last)
    return SwapReport(layers, dense_layers, *_shares(layers, dense_layers, problems), fusion, problems)


def _fuse(
    net: nn.Module,
    export: PackedWeights,
    choice: KernelChoice,
    inputs: Mapping[str, Tensor] | None,
    plan: FusionPlan | None,
    timed: TimedProducts | None,
) -> FusionReport:
    """Rewrite blocks, where that is wanted."""
    records = export.manifest.layers.items()
    pruned = [
        name for name, record in records if record.family != "dense" and isinstance(net.get_submodule(name), nn.Linear)
    ]
    if inputs is None or not choice.fuse or choice.swaps_nothing or not pruned:
        return FusionReport()
    formats = {name: export.format(name) for name in pruned}
    return fuse_blocks(net, formats, export.masks, inputs, choice, plan=plan, timed=timed)


def _stays_dense(
    layer: nn.Module, export: PackedWeights, name: str, choice: KernelChoice, *, called: bool
) -> str | None:
    """Why no kernel is even looked for, or None."""
    if choice.swaps_nothing:
        return "kernel=none: the masked weight is multiplied densely"
    if export.manifest.layers[name].density == 1:
        return KEEPS_ALL
    if export.manifest.layers[name].family == "dense":
        return f"pattern {export.manifest.pattern} is stored dense"
    if (reason := layer_unsupported_reason(layer)) is not None:
        return reason
    return None if called else "not called in the observed forward"


def _try(
    layer: nn.Linear | nn.Conv2d,
    export: PackedWeights,
    name: str,
    received: LayerInput,
    choice: KernelChoice,
    plan: FusionPlan | None,
    *,
    adds_shortcut: bool | None,
) -> Autotuned:
    device = layer.weight.device
    stored = export.format(name).to(device=device, dtype=layer.weight.dtype)
    wants = partial(choice.wants, canonical=stored.family, device=device)
    if plan is not None:
        planned = plan.layers.get(name, dense_name(layer))
        if planned == dense_name(layer):
            return Autotuned(dense_name(layer), unsupported={"the others": "dense was chosen before"})
        wants = partial(_is_planned, *labeled(planned))
    candidates = find_candidates(stored, export.masks[name].to(device), received.problem, wants)
    return autotune_layer(layer, candidates, received, timed=plan is None, adds_shortcut=adds_shortcut)


def _is_planned(planned: KernelEntry, planned_layout: str | None, kernel: KernelEntry, layout: str) -> bool:
    return kernel.name == planned.name and layout == (planned_layout or planned.layouts[0])


def record_layer(
    layer: nn.Module, tuned: Autotuned, chosen: str | None, received: LayerInput | None, *, density: float
) -> LayerSwap:
    """What the report says of a layer.

    Args:
        chosen: kernel of one of the autotuned modules; None = the dense layer stays, whatever it received.
    """
    runs = layer if chosen is None else tuned.modules[chosen]
    return LayerSwap(
        kernel=chosen or tuned.dense,
        family="dense" if chosen is None else runs.format.family,
        density=density,
        weight_bytes=stored_bytes(runs),
        latency_us=tuned.latencies_us.get(chosen or tuned.dense),
        candidates=tuned.latencies_us,
        unsupported=tuned.unsupported,
        notes=tuned.notes,
        launch={} if chosen is None else launch_in_use(runs, received.problem),
        relative_error=None if chosen is None else tuned.errors[chosen],
    )


def _require_forced_kernel_runs(choice: KernelChoice, layers: Mapping[str, LayerSwap]) -> None:
    """A kernel that was asked for by name and runs nowhere is an error, not a dense result."""
    if not choice.forced or choice.swaps_nothing or any(layer.is_sparse for layer in layers.values()):
        return
    if all(layer.density == 1 for layer in layers.values()):  # none of which is pruned
        return
    key = "name" if choice.name is not None else "family"
    reasons = {f"{kernel}: {why}" for layer in layers.values() for kernel, why in layer.unsupported.items()}
    raise InvalidSetting(key, getattr(choice, key), f"runs on none of the pruned layers: {'; '.join(sorted(reasons))}")


def _shares(
    layers: Mapping[str, LayerSwap], dense_layers: Mapping[str, str], problems: Mapping[str, LayerInput]
) -> tuple[float, float]:
    """Share of layers and of dense flops that run a sparse kernel, over all prunable layers."""
    sparse = {name for name, layer in layers.items() if layer.is_sparse}
    prunable = {*layers, *dense_layers}
    flops = {name: theoretical_dense_flops(seen.problem) for name, seen in problems.items() if name in prunable}
    total = sum(flops.values())  # a layer that is not called has none
    return (
        len(sparse) / len(prunable) if prunable else 0.0,
        sum(flops.get(name, 0) for name in sparse) / total if total else 0.0,
    )
