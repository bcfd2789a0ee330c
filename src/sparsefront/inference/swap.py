"""Swap sparse kernels into a pruned network: `sf.swap`, and the swap of each layer."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from sparsefront_kernels import cuda_library
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting, keys_of
from sparsefront.export.checkpoint import read_export
from sparsefront.export.packed_layers import PackedWeights, masks_stored_dense, pack_layers
from sparsefront.gpu import share_gpu
from sparsefront.inference.autotune import TimedLayers
from sparsefront.inference.benchmark import step_inputs
from sparsefront.inference.choice import KernelChoice, kernel_choice
from sparsefront.inference.fusion.block_pass import fuse_blocks
from sparsefront.inference.fusion.plan import FusionPlan, FusionReport
from sparsefront.inference.fusion.product_choice import TimedProducts
from sparsefront.inference.layers import (
    join_problem,
    linear_inputs,
    precision_of,
    quantize_others,
    record_layer,
    stays_dense,
    try_layer,
    try_low_dense,
)
from sparsefront.inference.libraries import build_libraries
from sparsefront.inference.network_modules import (
    SparseConv2d,
    count_recorded_outputs,
    disable_fast_path,
    reject_lost_outputs,
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
from sparsefront.inference.recurrent import swap_lstms
from sparsefront.inference.swap_report import LayerSwap, SwapReport, report_layer
from sparsefront.inference.whole_network import Decision, StoredSwap, SwapSnapshot, swap_key
from sparsefront.masks.weight_view import like_weight
from sparsefront.measure.correctness import (
    LOW_PRECISION_ERROR_LIMIT,
    assume_checked,
    floating_tensors,
    has_low_precision,
    network_error_limit,
    output_error,
)
from sparsefront.measure.end_to_end import NO_LAYER_IS_SPARSE, set_left_dense
from sparsefront.measure.execution_mode import suppress_treespec_warning
from sparsefront.measure.problems import (
    LayerInput,
    collect_problems,
    count_flops,
    observe_problems,
    theoretical_dense_flops,
)
from sparsefront.measure.search_time import LAYER, NETWORKS, SearchTime, Tell, current, searching, time_work, too_late
from sparsefront.measure.settings import Measure
from sparsefront.measure.variants import adds_shortcut
from sparsefront.models.unpadded import fit_tokens, set_lengths, unpad
from sparsefront.networks import (
    ReadTensors,
    architecture_text,
    layer_weight,
    load_state,
    restore_on_error,
    unwrap,
)
from sparsefront.progress import bar, counted
from sparsefront.pruning.layers import dense_weights, explain_nested
from sparsefront.pruning.masks import Masks, masks_left, require_masks_of
from sparsefront.pruning.narrow import narrow_layers
from sparsefront.pruning.preconditions import require_unswapped
from sparsefront.tasks.plain_task import (
    device_of,
    inputs_in_words,
    name_inputs_on,
    require_callable,
    require_finite_weights,
    require_instance,
    require_network,
    translate_errors,
)


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

    Encoder blocks are rewritten as a whole with `choice.fuse` and known inputs (`inference.fusion`); all other layers are
    replaced one by one. Every candidate is compared with the fp64 product of the masked weight; on a CUDA device the correct
    ones are timed, and the fastest that `choice` allows is kept. On a CPU the reference of the pattern's family runs.

    Args:
        net: the architecture that was exported; afterwards on `device`, in `dtype`, in eval mode.
        dtype: None: each weight keeps its own, as in networks whose norms are float32 and whose products are bfloat16.
        problems: inputs of the prunable layers, from `observe_problems`; those that stay dense count in the shares.
        choice: which kernels may run.
        inputs: keyword arguments of the net, the batch that is measured; None: no block is rewritten.
        plan: choices of an earlier swap of these weights (`SwapReport.plan`), which are repeated without timing.
        timed: product times of earlier swaps on this device, extended by those of this one: the same weights under another
            choice of kernels are not timed again.
        precision: of low-precision kernels to try next to 16-bit ones, in unpruned Linears too, except for the head.
    Raises:
        InvalidSetting: a forced kernel runs on none of the pruned layers (key `name` or `family`).
        RuntimeError: the export's weights do not fit the net.
    """
    load_state(net, export.state_dict())
    net.to(device=device, dtype=dtype).eval()
    narrower = {} if choice.swaps_nothing else narrow_layers(net, masks_stored_dense(export))
    if narrower and inputs is not None:
        problems = observe_problems(net, dict(inputs), [*export.manifest.layers, *export.manifest.dense_layers])
    build_libraries(net, export, problems, choice, plan, precision)
    layers: dict[str, LayerSwap] = {}
    dense_layers = dict(export.manifest.dense_layers)
    # the layers before blocks are rewritten
    masked = {name: net.get_submodule(name) for name in export.manifest.layers}
    linears = linear_inputs(net, problems, inputs, precision)
    fusion = _fuse(net, export, choice, inputs, plan, timed, precision)
    relu_after = adds_shortcut(net) if any(isinstance(layer, nn.Conv2d) for layer in masked.values()) else {}
    timed_layers = None if current() is None else TimedLayers(f"{choice.kernels} {precision.name}")
    flops = {name: theoretical_dense_flops(received.problem) for name, received in problems.items()}
    for name in bar(sorted(masked, key=lambda name: -flops.get(name, 0)), description="swap", unit="layer"):
        layer: Any = masked[name]
        density = export.manifest.layers[name].density
        fused = report_layer(fusion, name, density)
        if fused is not None:
            layers[name], reason = fused
            if reason is not None:
                dense_layers[name] = reason
            continue
        reason = narrower.get(name) or stays_dense(layer, export, name, choice, called=name in problems)
        reason = reason or explain_nested(net, name)
        received = problems.get(name)
        if reason is None:
            received, adds_sum = join_problem(layer, problems[name]), relu_after.get(name)
            late = None if plan is not None else too_late(name, LAYER)
            with time_work(LAYER) if late is None else nullcontext():
                tuned = try_layer(
                    layer, export, name, received, choice, plan, precision, timed_layers, late, adds_shortcut=adds_sum
                )
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
    layers = {name: layers[name] for name in masked}
    swap_lstms(net, export, masked, problems, choice, plan, layers, dense_layers)
    others: dict[str, str] = {}
    low_precision_layers: dict[str, str] = {}
    if precision.is_low:
        others, low_precision_layers = quantize_others(net, linears, {*masked}, fusion, choice, plan, precision)
        low_precision_layers |= {name: precision_of(layer, precision) for name, layer in layers.items()}
        low_precision_layers |= {name: CONVOLUTION for name, layer in masked.items() if isinstance(layer, nn.Conv2d)}
    disable_fast_path(net)
    shorten_compiler_messages()
    _require_forced_kernel_runs(choice, layers)
    # so that dense convolutions in between need no copies
    if any(isinstance(module, SparseConv2d) for module in net.modules()):
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
    return replace(report, sparse_flops_share=None) if narrower else report  # narrower layers have fewer, dense flops


def _fuse(
    net: nn.Module,
    export: PackedWeights,
    choice: KernelChoice,
    inputs: Mapping[str, Tensor] | None,
    plan: FusionPlan | None,
    timed: TimedProducts | None,
    precision: Precision,
) -> FusionReport:
    """Rewrite blocks if `choice` and the inputs allow it."""
    records = export.manifest.layers.items()
    pruned = [
        name for name, record in records if record.family != "dense" and isinstance(net.get_submodule(name), nn.Linear)
    ]
    if inputs is None or not choice.fuse or choice.swaps_nothing or not (pruned or precision.is_low):
        return FusionReport()
    formats = {name: export.format(name) for name in pruned}
    masks = {name: export.masks[name] for name, record in records if record.family != "dense"}
    return fuse_blocks(net, formats, masks, inputs, choice, plan=plan, timed=timed, precision=precision)


def _require_forced_kernel_runs(choice: KernelChoice, layers: Mapping[str, LayerSwap]) -> None:
    """Raise InvalidSetting if a forced kernel runs on no layer, instead of giving a dense result."""
    if not choice.forced or choice.swaps_nothing or any(layer.is_sparse for layer in layers.values()):
        return
    if all(layer.density == 1 for layer in layers.values()):  # nothing is pruned
        return
    key = "name" if choice.name is not None else "family"
    reasons = {f"{kernel}: {why}" for layer in layers.values() for kernel, why in layer.unsupported.items()}
    raise InvalidSetting(key, getattr(choice, key), f"runs on none of the pruned layers: {'; '.join(sorted(reasons))}")


def _shares(
    layers: Mapping[str, LayerSwap], dense_layers: Mapping[str, str], problems: Mapping[str, LayerInput]
) -> tuple[float, float]:
    """Fraction of prunable layers, and of their dense flops, that run a sparse kernel."""
    sparse = {name for name, layer in layers.items() if layer.is_sparse}
    prunable = {*layers, *dense_layers}
    flops = {name: theoretical_dense_flops(seen.problem) for name, seen in problems.items() if name in prunable}
    total = sum(flops.values())  # a layer that is not called has none
    return (
        len(sparse) / len(prunable) if prunable else 0.0,
        sum(flops.get(name, 0) for name in sparse) / total if total else 0.0,
    )


CHOICES = "choices.json"


def save_choices(report: SwapReport, directory: Path) -> None:
    """Write the kernels and layouts of a swap next to its export."""
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
    """Swap the same kernels into the net again, in place, without timing.

    Args:
        net: the architecture that was exported; what was removed from it is removed here, unless it was before.
        directory: of the export.
        inputs: keyword arguments of the net, on `device`: a batch of the size that the choices were made for.
        choices: the file that `save_choices` wrote; None: the one in `directory`.
    Raises:
        InvalidSetting: the export or the choices are missing or of another format version.
    """
    export, plan = read_export(directory), FusionPlan.load(choices or directory / CHOICES)
    packed: PackedWeights = export
    export.spec.shrink(net)
    load_state(net, export.state_dict())
    if export.blocks is not None:
        packed = _pack(net, Masks(masks_left(net, Masks(export.masks, spec=export.spec))))
    net.to(device=device, dtype=dtype).eval()
    problems = observe_problems(net, dict(inputs), [*packed.manifest.layers, *packed.manifest.dense_layers])
    precision = Precision(plan.precision, plan.calibration)
    require_supported(precision, device, dtype)
    # the plan names each kernel; all other layers stay dense
    report = swap_layers(
        net, packed, problems, KernelChoice(), device=device, dtype=dtype, inputs=inputs, plan=plan, precision=precision
    )
    return report if export.blocks is None else replace(report, sparse_layer_share=None, sparse_flops_share=None)


def swap(
    net: nn.Module,
    masks: Mapping[str, Tensor],
    example_inputs: object,
    *,
    kernel: str | KernelChoice = "auto",
    packed: PackedWeights | None = None,
    precision: str = "none",
    calibration: Mapping[str, float] | None = None,
    lengths: Sequence[int] | Tensor | None = None,
    settings: Measure | None = None,
    seconds: float = 60.0,
    reuse: bool = True,
    tell: Tell = print,
) -> SwapReport:
    """Replace every masked layer by its fastest kernel, in place; the network is then for inference only.

    On a GPU each kernel that can store a layer's mask is compared with the fp64 product of its masked weight and timed on
    the shapes of the example inputs; the fastest is kept, dense if that is faster. Encoder blocks may be rewritten as a
    whole. With kernel="auto" the whole network is then timed next to the dense one, each in its fastest execution mode, and
    made dense again, in low precision if that is allowed and faster, if it is more than 2 % slower. On a CPU the reference of
    the pattern's family runs, untimed. Tied layers become narrower (`sf.narrow`).

    Args:
        net: pruned; its tensors keep their device and dtypes, and it is in eval mode afterwards.
        masks: from `prune`, `recover` or `load`; or any dict of layer name -> bool mask, whose structure then decides how
            a layer is stored.
        example_inputs: arguments of the network, such as (x,), in the batch size to optimize for; in a dict, values may be
            non-tensors, such as use_cache=False.
        kernel: auto, sparse (never dense), reference, none; the name of a kernel or of a storage family; or a KernelChoice.
        packed: the same layers in their storage formats, as in an export; None: they are packed now.
        precision: none, fp8, fp8_static or int8: of low-precision kernels to try next to 16-bit ones, in unpruned Linears too.
            Attention, norms, convolutions and the head stay in 16 bits.
        calibration: for fp8_static, Linear -> largest absolute value of its inputs, from
            `inference.precision.activation_amax`; other Linears stay in 16 bits.
        lengths: real tokens of each row of the example inputs, which come first: the network then computes no padding, in
            any batch, and kernels are chosen for their sum. BERT, RoBERTa and MPNet.
        settings: those of `sf.benchmark`, for the execution modes and variants of whole networks. With mode="decode" the
            example input is a prompt, `input_ids` [B, T], and kernels are chosen for single-token steps after it.
        seconds: time budget of the search on a GPU, without the builds of CUDA libraries, which come first, once per machine:
            work that is not expected to finish in time is skipped, and untimed layers take the kernel that was fastest in a
            similar one, or that usually is. Another call with the same masks and input shapes reuses the result, or goes on
            where this one ran out of time, in later processes on such a GPU too.
        reuse: False times the kernels anew whatever an earlier call found, so that the report has all times.
        tell: called with a line of text when a search begins, and when it ends: its duration, and what was skipped.
    Returns:
        the kernel of each layer, why others stayed dense, and what took the time: `print(report)`.
    Raises:
        InvalidSetting: an argument that cannot be used; a network that returns no floating-point tensor; or a forced kernel
            that runs on none of the layers.
        ValueError: a pruned weight is not zero, or a mask breaks its pattern; names the layer.
        RuntimeError: the network's outputs differ after the swap. After any error the network is what it was before.
    """
    search, choice, net = SearchTime(seconds, tell), kernel_choice(kernel), unwrap(net)
    _require_swappable(net, masks)
    require_callable("tell", tell, "line", allowed="is a function that takes a line, such as print")
    require_instance("settings", settings, Measure)
    chosen_precision = Precision(precision, calibration or {})
    if packed is not None and not hasattr(packed, "manifest"):
        raise InvalidSetting("packed", type(packed).__name__, "is PackedWeights, such as what sf.save returns, or None")
    settings, inputs = settings or Measure(), name_inputs_on(net, example_inputs)
    if lengths is not None:
        inputs = set_lengths(net, inputs, lengths)
    called = step_inputs(net, inputs, settings)
    require_supported(chosen_precision, next(iter(called.values())).device, network_dtype(net))
    with restore_on_error(net):
        if lengths is not None:
            unpad(net, key="lengths", value=lengths)
        arguments = net, masks, called, choice, packed, chosen_precision
        if device_of(net).type != "cuda" or choice.swaps_nothing:
            return _swap_network(*arguments)
        compares = choice.dense_allowed
        before = SwapSnapshot.of(net, compared=compares)
        with searching(search), suppress_treespec_warning():
            what = "kernels, then the whole network beside the dense one" if before and compares else "kernels"
            tell(
                f"swap: {counted(len(masks), 'layer')} on {torch.cuda.get_device_name(device_of(net))}: {what}, {search.limit()}"
            )
            device, tokens = device_of(net), fit_tokens(net, inputs)
            compared = settings.mode, settings.execution_modes, settings.variants, *([] if tokens is None else [tokens])
            key = swap_key(net, masks, inputs, (choice, precision, calibration, compared))
            stored = StoredSwap.of(key, device) if reuse else None
            if stored is not None and stored.left_out:
                tell(
                    f"swap: goes on where a search ran out of time, with {counted(len(stored.left_out), 'thing')} left out"
                )
                stored = None
            known = nullcontext() if stored is None else assume_checked()
            with search.part(KERNELS_SHARE if before and compares else 1.0, "kernels"), known:
                report = _swap_network(*arguments, None if stored is None else stored.plan)
            left_out = tuple(search.left_out)
            decision = None if stored is None else stored.decision
            changed = report.sparse_flops_share or report.fusion.rewritten or has_low_precision(net)
            if before is not None and not compares and report.sparse_flops_share == 0 and changed:
                decision = Decision(NO_LAYER_IS_SPARSE, NO_LAYER_IS_SPARSE, low=has_low_precision(net))
            elif before is not None and decision is None and compares and changed:
                with search.spending(NETWORKS):
                    decision = before.compare(inputs, settings, report.precision)
            if stored is None:
                StoredSwap(report.plan, decision, left_out).keep(key, device)
            if decision is not None:
                tell(f"swap: {decision.text}")
                report = replace(report, whole_network=decision.text)
                decision.apply(net, inputs, settings)
                if decision.why_dense is not None and before is not None:
                    keeps = decision.why_dense != NO_LAYER_IS_SPARSE
                    why = decision.why_dense + '; kernel="sparse" keeps its kernels' * keeps
                    report = before.undo(report, why, called, low=decision.low)
            tell(f"swap: {search.summary()}{'' if stored is None else ', as found before'}")
    return replace(report, seconds=search.taken)


KERNELS_SHARE = 0.5  # of the search's time; the rest is for whole networks


def _require_swappable(net: nn.Module, masks: Mapping[str, Tensor]) -> None:
    require_network(net)
    cuda_library.triton_alone()  # raises at a wrong value of SPARSEFRONT_KERNELS
    require_unswapped(net)
    require_finite_weights(net)
    left = masks_left(net, masks)
    require_masks_of(net, left)
    for name, mask in left.items():
        weight = layer_weight(net.get_submodule(name)).detach()
        revived = int(weight.masked_fill(like_weight(mask, weight).to(weight.device), 0.0).count_nonzero())
        if revived:
            raise ValueError(f"{name}: {revived} pruned weights are not zero; apply the masks first")


def _swap_network(
    net: nn.Module,
    masks: Mapping[str, Tensor],
    inputs: dict[str, Tensor],
    choice: KernelChoice,
    packed: PackedWeights | None,
    precision: Precision,
    plan: FusionPlan | None = None,
) -> SwapReport:
    """`swap` by layers and blocks, without timing the whole network.

    Args:
        plan: of an earlier swap of these weights, which is repeated without timing.
    """
    smaller = isinstance(masks, Masks) and masks.spec.blocks is not None
    if smaller:  # without its blocks the remaining network is dense
        masks, packed = Masks(masks_left(net, masks)), None
    with share_gpu(next(iter(inputs.values())).device):
        report = _swap(net, Masks.of(masks), inputs, choice, packed, precision, plan)
    return replace(report, sparse_layer_share=None, sparse_flops_share=None) if smaller else report


def _swap(
    net: nn.Module,
    known: Masks,
    inputs: dict[str, Tensor],
    choice: KernelChoice,
    packed: PackedWeights | None,
    precision: Precision,
    plan: FusionPlan | None,
) -> SwapReport:
    net.eval()
    limit, architecture = network_error_limit(net), architecture_text(net)
    packed = packed or _pack(net, known)
    layers = [*packed.manifest.layers, *packed.manifest.dense_layers]
    read = ReadTensors({name: layer_weight(net.get_submodule(name)) for name in layers})
    with (
        translate_errors("example_inputs", inputs_in_words(inputs), "the network cannot be called with it"),
        count_flops(net) as flops,
        collect_problems(net, layers) as problems,
        read,
        torch.inference_mode(),
    ):
        output = net(**inputs)
    expected = floating_tensors(output)
    others = {weight.name: weight.why for weight in dense_weights(net, set(layers), unchosen="it has no mask")}
    parameters: dict[Tensor, str] = {parameter: name for name, parameter in net.named_parameters()}
    weights = {name: parameters[layer_weight(net.get_submodule(name))] for name in packed.manifest.layers}
    device, recorded = next(iter(inputs.values())).device, count_recorded_outputs(net)
    with keys_of("kernel"):
        report = swap_layers(
            net, packed, problems, choice, device=device, dtype=None, inputs=inputs, plan=plan, precision=precision
        )
    reject_lost_outputs(net, recorded)
    release_formats(net)
    quantized = has_low_precision(net)
    with torch.inference_mode():
        outputs = floating_tensors(net(**inputs))
        error = output_error(outputs, expected)
        if quantized:
            report, limit = replace(report, quantization_error=error), LOW_PRECISION_ERROR_LIMIT
            with emulation(net):
                error = output_error(outputs, net(**inputs))
    if not error <= limit:
        likewise = ", quantized likewise" * quantized
        raise RuntimeError(
            f"the swapped network disagrees with the masked one{likewise}: relative error {error:.1e}, at most "
            f"{limit:.0e} is rounding; nothing is measured"
        )
    report = report.counting(flops, weights, read.names, others)
    runs_in = precision.name if quantized else "none"
    set_left_dense(net, architecture if report.sparse_flops_share == 0 else None, runs_in)
    return report


def _pack(net: nn.Module, masks: Masks) -> PackedWeights:
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
