"""Swap sparse kernels into a pruned network: `sf.swap`, the swap of each layer, and networks that stay dense after all."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from sparsefront_kernels import KernelEntry, families, labeled
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting, keys_of
from sparsefront.export.checkpoint import read_export
from sparsefront.export.packed_layers import PackedWeights, masks_stored_dense, pack_layers
from sparsefront.gpu import sharing
from sparsefront.inference.autotune import (
    Autotuned,
    autotune_layer,
    dense_name,
    find_candidates,
)
from sparsefront.inference.choice import MODES, KernelChoice
from sparsefront.inference.fusion.block_pass import fuse_blocks
from sparsefront.inference.fusion.plan import FusionPlan, FusionReport
from sparsefront.inference.fusion.products import TimedProducts
from sparsefront.inference.low_precision import (
    NOTHING,
    precision_of,
    quantize_others,
    reached_linears,
    try_low_dense,
)
from sparsefront.inference.network_modules import (
    SparseConv2d,
    join_groups,
    leave_fast_path,
    release_formats,
    replace_module,
    shorten_compiler_messages,
)
from sparsefront.inference.precision import (
    CONVOLUTION,
    IN_16_BITS,
    Precision,
    emulation,
    network_dtype,
    require_supported,
)
from sparsefront.inference.swap_report import LayerSwap, SwapReport, fused_layer
from sparsefront.masks.weight_view import as_matrix
from sparsefront.measure.correctness import (
    LOW_PRECISION_ERROR_LIMIT,
    floating_tensors,
    has_low_precision,
    network_error_limit,
    output_error,
)
from sparsefront.measure.memory import stored_bytes
from sparsefront.measure.problems import LayerInput, observe_problems, theoretical_dense_flops, weight_flops
from sparsefront.measure.timers import launch_in_use
from sparsefront.measure.variants import adds_shortcut
from sparsefront.networks import (
    ReadTensors,
    layer_weight,
    load_state,
    modes_back_on_error,
    remove_blocks,
    unwrapped,
)
from sparsefront.progress import bar
from sparsefront.pruning.layers import (
    KEEPS_ALL,
    UNREACHED,
    dense_weights,
    in_groups,
    layer_unsupported_reason,
    nested_tensor_reason,
)
from sparsefront.pruning.masks import Masks, masks_left, require_masks_of
from sparsefront.pruning.narrow import narrow_layers
from sparsefront.tasks.plain_task import inputs_in_words, named_in_errors, named_inputs_on, require_network


def swap_layers(
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
    precision: Precision = IN_16_BITS,
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
        precision: of kernels that may run beside those of 16 bits, also in Linears that are not pruned; the last Linear stays.
    Raises:
        InvalidSetting: a forced kernel runs on none of the pruned layers (key `name` or `family`).
        RuntimeError: the export's weights do not fit the net.
    """
    load_state(net, export.state_dict())
    net.to(device=device, dtype=dtype).eval()
    narrower = {} if choice.swaps_nothing else narrow_layers(net, masks_stored_dense(export))
    if narrower and inputs is not None:
        problems = observe_problems(net, dict(inputs), [*export.manifest.layers, *export.manifest.dense_layers])
    layers: dict[str, LayerSwap] = {}
    dense_layers = dict(export.manifest.dense_layers)
    # as they are before blocks are rewritten
    masked = {name: net.get_submodule(name) for name in export.manifest.layers}
    linears = reached_linears(net, problems, inputs, precision)
    fusion = _fuse(net, export, choice, inputs, plan, timed, precision)
    endings = adds_shortcut(net) if any(isinstance(layer, nn.Conv2d) for layer in masked.values()) else {}
    for name, layer in bar(masked.items(), description="swap", unit="layer"):
        density = export.manifest.layers[name].density
        if (found := fused_layer(fusion, name, density)) is not None:
            layers[name], reason = found
            if reason is not None:
                dense_layers[name] = reason
            continue
        reason = narrower.get(name) or _stays_dense(layer, export, name, choice, called=name in problems)
        reason = reason or nested_tensor_reason(net, name)
        received = problems.get(name)
        if reason is None:
            received, ending = _of_one_product(layer, problems[name]), endings.get(name)
            tuned = _try(layer, export, name, received, choice, plan, precision, adds_shortcut=ending)
        else:
            tuned = try_low_dense(net, name, linears, choice, plan, precision)
        chosen = tuned.fastest(dense_allowed=choice.dense_allowed or reason is not None)
        layers[name] = record_layer(layer, tuned, chosen, received, density=density)
        if chosen is None:
            dense_layers[name] = reason or tuned.why_dense()
        else:
            replace_module(net, layer, tuned.modules[chosen])
            if not layers[name].is_sparse:
                dense_layers[name] = reason or f"{chosen} is faster than its sparse kernels"
    others: dict[str, str] = {}
    low_precision_layers: dict[str, str] = {}
    if precision.is_low:
        others, low_precision_layers = quantize_others(net, linears, {*masked}, fusion, choice, plan, precision)
        low_precision_layers |= {name: precision_of(layer, precision) for name, layer in layers.items()}
        low_precision_layers |= {name: CONVOLUTION for name, layer in masked.items() if isinstance(layer, nn.Conv2d)}
    leave_fast_path(net)
    shorten_compiler_messages()
    _require_forced_kernel_runs(choice, layers)
    if any(
        isinstance(module, SparseConv2d) for module in net.modules()
    ):  # the dense convolutions between them then copy nothing
        net.to(memory_format=torch.channels_last)
    report = SwapReport(
        layers,
        dense_layers,
        *_shares(layers, dense_layers, problems),
        fusion,
        problems,
        precision=precision,
        low_precision_layers=low_precision_layers,
        other_kernels=others,
    )
    return replace(report, sparse_flops_share=None) if narrower else report  # fewer flops, all of them dense


def _fuse(
    net: nn.Module,
    export: PackedWeights,
    choice: KernelChoice,
    inputs: Mapping[str, Tensor] | None,
    plan: FusionPlan | None,
    timed: TimedProducts | None,
    precision: Precision,
) -> FusionReport:
    """Rewrite blocks, where that is wanted."""
    records = export.manifest.layers.items()
    pruned = [
        name for name, record in records if record.family != "dense" and isinstance(net.get_submodule(name), nn.Linear)
    ]
    if inputs is None or not choice.fuse or choice.swaps_nothing or not (pruned or precision.is_low):
        return FusionReport()
    formats = {name: export.format(name) for name in pruned}
    masks = {name: export.masks[name] for name, record in records if record.family != "dense"}
    return fuse_blocks(net, formats, masks, inputs, choice, plan=plan, timed=timed, precision=precision)


def _stays_dense(
    layer: nn.Module, export: PackedWeights, name: str, choice: KernelChoice, *, called: bool
) -> str | None:
    """Why no kernel is even looked for, or None."""
    if choice.swaps_nothing:
        return NOTHING
    if export.manifest.layers[name].density == 1:
        return KEEPS_ALL
    if export.manifest.layers[name].family == "dense":
        return f"pattern {export.manifest.pattern} is stored dense"
    if (reason := layer_unsupported_reason(layer)) is not None:
        return reason
    return None if called else UNREACHED


def _of_one_product(layer: nn.Module, received: LayerInput) -> LayerInput:
    """What the layer receives, with the inputs of all groups of a convolution: see `join_groups`."""
    if not isinstance(layer, nn.Conv2d):
        return received
    return replace(received, problem=replace(received.problem, k=received.problem.k * layer.groups))


def _try(
    layer: nn.Linear | nn.Conv2d,
    export: PackedWeights,
    name: str,
    received: LayerInput,
    choice: KernelChoice,
    plan: FusionPlan | None,
    precision: Precision,
    *,
    adds_shortcut: bool | None,
) -> Autotuned:
    device = layer.weight.device
    stored, mask = export.format(name).to(device=device, dtype=layer.weight.dtype), export.masks[name].to(device)
    if isinstance(layer, nn.Conv2d) and in_groups(layer):
        stored, mask = join_groups(stored, as_matrix(mask), layer.groups, layer.weight[0, 0].numel())
    wants = partial(choice.wants, canonical=stored.family, device=device)
    if plan is not None:
        planned = plan.layers.get(name, dense_name(layer))
        if planned == dense_name(layer):
            return Autotuned(dense_name(layer), unsupported={"the others": "dense was chosen before"})
        wants = partial(_is_planned, *labeled(planned))
    low, x_scale = precision.kernels(), None
    reasons: dict[str, str] = {}
    if isinstance(layer, nn.Conv2d):
        low = ()
    elif (reason := precision.unsupported_layer([name], stored.shape, stored.dtype)) is not None:
        reasons = {kernel.name: reason for kernel in low if wants(kernel, "row_major")}
        low = ()
    else:
        x_scale = precision.x_scale([name])
    candidates = find_candidates(stored, mask, received.problem, wants, low)
    candidates.unsupported.update(reasons)
    return autotune_layer(layer, candidates, received, timed=plan is None, adds_shortcut=adds_shortcut, x_scale=x_scale)


def _is_planned(planned: KernelEntry, planned_layout: str | None, kernel: KernelEntry, layout: str) -> bool:
    return kernel.name == planned.name and layout == (planned_layout or planned.layouts[0])


def record_layer(
    layer: nn.Module, tuned: Autotuned, chosen: str | None, received: LayerInput | None, *, density: float
) -> LayerSwap:
    """What the report says of a layer.

    Args:
        chosen: kernel of one of the autotuned modules; None = the dense layer stays, whatever it received.
    """
    runs, family, launch = layer, "dense", {}
    if chosen is not None:
        runs = tuned.modules[chosen]
        assert isinstance(runs, SparseLayer) and received is not None  # what it was tuned for
        family, launch = runs.format.family, launch_in_use(runs, received.problem)
    return LayerSwap(
        kernel=chosen or tuned.dense,
        family=family,
        density=density,
        weight_bytes=stored_bytes(runs),
        latency_us=tuned.latencies_us.get(chosen or tuned.dense),
        candidates=tuned.latencies_us,
        unsupported=tuned.unsupported,
        notes=tuned.notes,
        launch=launch,
        relative_error=None if chosen is None else tuned.errors[chosen],
        quantization_error=None if chosen is None else tuned.quantization_errors.get(chosen),
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


# A network that stays dense after all: its kernels were faster layer by layer, and the whole was not.

SLOWEST = 0.98  # speedup over the fastest dense version below which kernel=auto takes no kernels


def why_dense(sparse_ms: float, dense_ms: float) -> str | None:
    """Why a swapped network is given up, or None where it is at most 2 % slower than dense.

    Args:
        sparse_ms, dense_ms: of whole networks, each run in its fastest way.
    """
    if dense_ms >= SLOWEST * sparse_ms:
        return None
    return f"the whole network takes {sparse_ms:.3f} ms with kernels, {dense_ms:.3f} ms dense"


def kept_dense(report: SwapReport, masked: nn.Module, why: str) -> SwapReport:
    """What is said of the network without kernels; times of layers and blocks stay to be read.

    Args:
        report: of the swap that is given up.
        masked: the network that runs instead, with zeros in its dense weights.
        why: the reason that each layer gets.
    """
    layers = {name: _dense(layer, masked.get_submodule(name)) for name, layer in report.layers.items()}
    return replace(
        report,
        layers=layers,
        dense_layers=report.dense_layers | {name: why for name in layers if name not in report.dense_layers},
        sparse_layer_share=0.0,
        sparse_flops_share=0.0,
        fusion=replace(report.fusion, faster_dense={block: why for block in report.fusion.blocks}),
        low_precision_layers=dict.fromkeys(report.low_precision_layers, why),
        other_kernels={},
        quantization_error=None,
    )


def _dense(layer: LayerSwap, module: nn.Module) -> LayerSwap:
    kernel = dense_name(module)
    return replace(
        layer,
        kernel=kernel,
        family="dense",
        weight_bytes=stored_bytes(module),
        latency_us=layer.candidates.get(kernel),
        launch={},
        relative_error=None,
        quantization_error=None,
    )


# A sparse network on disk: its export, and beside it the choices that were made on a GPU.

CHOICES = "choices.json"


def save_choices(report: SwapReport, directory: Path) -> None:
    """Write the kernels and layouts of a swap beside its export."""
    report.plan.save(directory / CHOICES)


def load_sparse(
    net: nn.Module,
    directory: Path,
    inputs: Mapping[str, Tensor],
    *,
    device: torch.device,
    dtype: torch.dtype,
    choices: Path | None = None,
) -> SwapReport:
    """Swap the same kernels into the net again, in place, and time nothing.

    Args:
        net: the architecture that was exported; of a network that whole blocks were taken out of, the one before, which loses
            them here, or the one after.
        directory: of the export.
        inputs: keyword arguments of the net, on `device`: a batch of the size that the choices were made for.
        choices: the file that `save_choices` wrote, where it does not lie in the directory.
    Raises:
        InvalidSetting: the export or the choices are missing or of another format version.
    """
    export, plan = read_export(directory), FusionPlan.load(choices or directory / CHOICES)
    packed: PackedWeights = export
    if export.blocks is not None:  # what is left is dense
        remove_blocks(net, export.blocks)
    load_state(net, export.state_dict())
    if export.blocks is not None:
        packed = _packed(net, Masks(masks_left(net, Masks(export.masks, spec=export.spec))))
    net.to(device=device, dtype=dtype).eval()
    problems = observe_problems(net, dict(inputs), [*packed.manifest.layers, *packed.manifest.dense_layers])
    precision = Precision(plan.precision, plan.calibration)
    require_supported(precision, device, dtype)
    # kernels of the plan are named one by one; what is dense stays dense
    report = swap_layers(
        net,
        packed,
        problems,
        KernelChoice(),
        device=device,
        dtype=dtype,
        inputs=inputs,
        plan=plan,
        precision=precision,
    )
    return report if export.blocks is None else replace(report, sparse_layer_share=None, sparse_flops_share=None)


# Swap sparse kernels into a pruned network.


def swap(
    net: nn.Module,
    masks: Mapping[str, Tensor],
    example_inputs: object,
    *,
    kernel: str | KernelChoice = "auto",
    packed: PackedWeights | None = None,
    precision: str = "none",
    calibration: Mapping[str, float] | None = None,
) -> SwapReport:
    """Replace every masked layer by the kernel that suits it best, in place; the network is then for inference only.

    On a GPU each kernel that can hold a layer's mask is compared with the fp64 product of its masked weight and timed on
    the shapes that the example inputs give it; the fastest stays, dense where that is faster. Encoder blocks may be
    rewritten as a whole. On a CPU the reference of the pattern's family runs, untimed. Tied layers get narrower (`sf.narrow`).

    Args:
        net: pruned; its tensors stay on their device and in their dtypes, and it is in eval mode afterwards.
        masks: from `prune`, `recover` or `load`; or any dict of layer name -> bool mask, whose structure then decides how
            a layer is stored.
        example_inputs: what the network is called with, such as (x,), of the batch size that is wanted; by name a value may be no
            tensor, such as use_cache=False.
        kernel: auto, sparse (never dense), reference, none; the name of a kernel or of a storage family; or a KernelChoice.
        packed: the same layers in their storage formats, as an export holds them; None: they are packed now.
        precision: none, fp8, fp8_static or int8: of kernels that may run beside those of 16 bits, also in Linears that are not
            pruned. Attention, norms, convolutions and the last Linear stay in 16 bits.
        calibration: of fp8_static, Linear -> the largest absolute value that it receives, from
            `inference.precision.activation_amax`; Linears that are not named stay in 16 bits.
    Returns:
        which kernel runs each layer, and what stayed dense and why: `print(report)`.
    Raises:
        InvalidSetting: an argument that cannot be used; a network that returns no floating-point tensor; or a kernel asked
            for by name that runs on none of the layers.
        ValueError: a pruned weight is not zero, or a mask breaks its pattern; names the layer.
        RuntimeError: the network's outputs are not the same after the swap.
    """
    choice, net = kernel_choice(kernel), unwrapped(net)
    chosen = Precision(precision, calibration or {})
    require_network(net)
    if any(isinstance(module, SparseLayer) for module in net.modules()):
        raise InvalidSetting("net", type(net).__name__, "was swapped already: give a copy of the pruned network")
    if packed is not None and not hasattr(packed, "manifest"):
        raise InvalidSetting("packed", type(packed).__name__, "is PackedWeights, such as what sf.save returns, or None")
    smaller = isinstance(masks, Masks) and masks.spec.blocks is not None
    if smaller:  # by whole blocks: what is left is dense
        masks, packed = Masks(masks_left(net, masks)), None
    require_masks_of(net, masks)
    inputs = named_inputs_on(net, example_inputs)
    device = next(iter(inputs.values())).device
    require_supported(chosen, device, network_dtype(net))
    with sharing(device), modes_back_on_error(net):
        report = _swap(net, Masks.of(masks), inputs, choice, packed, chosen)
    return replace(report, sparse_layer_share=None, sparse_flops_share=None) if smaller else report


def _swap(
    net: nn.Module,
    known: Masks,
    inputs: dict[str, Tensor],
    choice: KernelChoice,
    packed: PackedWeights | None,
    precision: Precision,
) -> SwapReport:
    net.eval()
    limit = network_error_limit(net)
    packed = packed or _packed(net, known)
    layers = [*packed.manifest.layers, *packed.manifest.dense_layers]
    with named_in_errors("example_inputs", inputs_in_words(inputs), "the network cannot be called with it"):
        problems = observe_problems(net, inputs, layers)
    read = ReadTensors({name: layer_weight(net.get_submodule(name)) for name in layers if name not in problems})
    others = {found.name: found.why for found in dense_weights(net, set(layers), unchosen="it has no mask")}
    flops = weight_flops(net, inputs)
    parameters: dict[Tensor, str] = {parameter: name for name, parameter in net.named_parameters()}
    weights = {name: parameters[layer_weight(net.get_submodule(name))] for name in packed.manifest.layers}
    with torch.inference_mode(), read:
        expected = floating_tensors(net(**inputs))
    device, recorded = next(iter(inputs.values())).device, _recorded(net)
    with keys_of("kernel"):
        report = swap_layers(
            net, packed, problems, choice, device=device, dtype=None, inputs=inputs, precision=precision
        )
    _refuse_lost(net, recorded)
    release_formats(net)
    quantised = has_low_precision(net)
    with torch.inference_mode():
        outputs = floating_tensors(net(**inputs))
        error = output_error(outputs, expected)
        if quantised:
            report, limit = replace(report, quantization_error=error), LOW_PRECISION_ERROR_LIMIT
            with emulation(net):
                error = output_error(outputs, net(**inputs))
    if not error <= limit:
        likewise = ", quantised likewise" * quantised
        raise RuntimeError(
            f"the swapped network disagrees with the masked one{likewise}: relative error {error:.1e}, at most "
            f"{limit:.0e} is rounding; nothing is measured"
        )
    return report.counting(flops, weights, read.names, others)


# Networks of transformers record hidden states and attentions of modules of some classes, when a call asks for them. Of blocks
# that were rewritten there are none left, and it would return an empty tuple.


def _recorded(net: nn.Module) -> dict[tuple[str, str], int]:
    """(network in `net` that records, argument that asks for it) -> of how many modules it records."""
    found: dict[tuple[str, str], int] = {}
    for name, module in net.named_modules():
        for what, recorder in (getattr(module, "_can_record_outputs", None) or {}).items():
            classes = [
                getattr(one, "target_class", one) for one in (recorder if isinstance(recorder, list) else [recorder])
            ]
            kinds = tuple(one for one in classes if isinstance(one, type))
            asks = "output_attentions" if what.endswith("attentions") else f"output_{what}"
            count = sum(isinstance(part, kinds) for part in module.modules())
            found[name, asks] = found.get((name, asks), 0) + count
    return found


def _refuse_lost(net: nn.Module, before: Mapping[tuple[str, str], int]) -> None:
    """Calls that ask for what is no longer recorded of every module end with an error."""
    after = _recorded(net)
    for (name, asks), count in before.items():
        if name in dict(net.named_modules()) and after.get((name, asks), 0) < count:
            net.get_submodule(name).register_forward_pre_hook(partial(_require_not_asked, asks), with_kwargs=True)


def _require_not_asked(asks: str, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    asked = kwargs.get(asks)
    if asked or (asked is None and getattr(getattr(module, "config", None), asks, False)):
        raise RuntimeError(
            f"{asks}: sf.swap has rewritten blocks whose outputs this network would have returned; swap a copy with "
            f"config.{asks}=True, or with kernel=sf.KernelChoice(fuse=False)"
        )


def kernel_choice(kernel: str | KernelChoice) -> KernelChoice:
    """What argument `kernel` means.

    Raises:
        InvalidSetting: a name that nobody knows.
    """
    if isinstance(kernel, KernelChoice):
        return kernel
    offered = ", ".join((*MODES, *families()))
    unknown = InvalidSetting("kernel", kernel, f"is one of {offered}, the name of a kernel, or a KernelChoice")
    if not isinstance(kernel, str):
        raise unknown
    if kernel in MODES:
        return KernelChoice(kernel)
    if kernel in families():
        return KernelChoice("sparse", family=kernel)
    try:
        labeled(kernel)
    except ValueError:
        raise unknown from None
    return KernelChoice("sparse", name=kernel)


def _packed(net: nn.Module, masks: Masks) -> PackedWeights:
    pruning, spec = masks.pruning, masks.spec
    return pack_layers(
        net,
        masks,
        pattern=None if pruning is None else pruning.pattern,
        sparsity=masks.sparsity if pruning is None else pruning.sparsity,
        permutations=spec.permutations,
        sparsities=spec.sparsities,
        patterns=spec.patterns,
        dense_reasons=masks.ignored,
    )
