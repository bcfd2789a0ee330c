"""`sf.prune`: scores become masks, and pruned weights become zero."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from numbers import Integral, Real

import torch
from torch import Tensor, nn

from sparsefront.allocation.base import Allocation, MeasuringAllocation, PerLayerAllocation
from sparsefront.errors import InvalidSetting, keys_of
from sparsefront.importance.base import Importance
from sparsefront.masks.weight_view import like_weight
from sparsefront.models.linears import as_linears, conv1d_layers
from sparsefront.networks import require_finite, unwrap
from sparsefront.options import option
from sparsefront.patterns.base import Pattern
from sparsefront.patterns.depth import Depth
from sparsefront.patterns.width import plan_sparsities
from sparsefront.progress import counted
from sparsefront.pruning.block_by_block import require_chain
from sparsefront.pruning.calibration import Batches, open_calibration, score_weights
from sparsefront.pruning.collapse import collapse_warning, has_budget, misses
from sparsefront.pruning.layers import (
    KEEPS_ALL,
    DenseWeight,
    Layers,
    PruningPlan,
    choose_layers,
    count_weights,
    dense_at_swap,
    dense_weights,
    match_ignored,
    narrower_than_tiles,
    nothing_fits,
    plan_pruning,
    require_whole_groups,
    weight_of,
)
from sparsefront.pruning.make_masks import LayoutSearch, PruningSettings, make_masks
from sparsefront.pruning.mask_spec import fix_spec
from sparsefront.pruning.masked_weights import require_none_dense, require_none_shared, require_one_sparsity
from sparsefront.pruning.masks import Masks
from sparsefront.pruning.preconditions import require_effect, require_storable, require_unswapped
from sparsefront.pruning.prune_blocks import prune_blocks, removable_blocks
from sparsefront.pruning.structure import record_zeros, require_no_zeros, structure_of
from sparsefront.pruning.unit_hooks import hook_units
from sparsefront.schedule.base import Schedule
from sparsefront.tasks.base import Task
from sparsefront.tasks.plain_task import (
    Loss,
    PlainTask,
    inputs_in_words,
    name_inputs_on,
    require_callable,
    require_finite_weights,
    require_network,
    translate_errors,
)

log = logging.getLogger(__name__)


def prune(
    net: nn.Module,
    pattern: str | Pattern,
    sparsity: float,
    *,
    granularity: int | str | None = None,
    importance: str | Importance = "magnitude",
    allocation: str | Allocation = "per_layer",
    schedule: str | Schedule = "one_shot",
    calibration: Batches | None = None,
    loss: Loss | None = None,
    layers: Layers | None = None,
    ignore: str | Sequence[str] | Mapping[str, str] = (),
    example_inputs: object = None,
    task: Task | None = None,
    search: LayoutSearch | None = None,
    device: str | torch.device | None = None,
    tell: Callable[[str], None] = print,
) -> Masks:
    """Select weights and set them to zero in place; with pattern depth, select whole blocks and remove them.

    Args:
        net: any network with Linear or Conv2d layers, on any device; `torch.compile`, DataParallel and
            DistributedDataParallel are unwrapped, as in all functions here. Conv1D of transformers, nn.MultiheadAttention,
            nn.LSTM, nn.GRU and transposed convolutions are converted to Linears.
        pattern: name of a pattern, or an instance with settings: `sf.patterns.TileWise(64)`.
        sparsity: fraction of zeros over the pruned layers, in [0, 1).
        granularity: for a pattern given by name: size of a group that is kept or pruned together; None = its default.
        importance: name or instance: how weights are scored. Some need `calibration`; taylor and fisher also a `loss`.
        allocation: name or instance: how much to prune in each layer.
        schedule: name or instance; the result has its first masks, and `recover` continues from there.
        calibration: batches as in a training loop: (inputs, target), inputs only, or dicts by name; or a function that opens
            a loader of them.
        loss: (output, target) -> scalar; None if the network returns its own.
        layers: names, glob patterns, or a predicate of (name, module); None = every Linear and Conv2d but the first
            convolution and the heads, which alone give an output of the network, that the example inputs reach.
        ignore: names or glob patterns of layers that stay dense; or a dict of them -> why.
        example_inputs: arguments of the network, such as (x,); dicts may contain other values, such as use_cache=False.
            None: the first batch of `calibration`; without that, module order is taken as call order.
        task: replaces `loss` for tasks of this package.
        search: times and evaluates networks for allocations that measure, such as `sf.Search()`; unused by others.
        device: for causal language models of transformers: where scores from inputs are computed, with one block there at
            a time; None = where the network is.
        tell: receives a line at the start (number of pruned layers, what was left out, what will run dense after a swap)
            and one at the end (sparsity of the pruned layers and of all weights, other dense weights by kind). More during
            a search.
    Returns:
        layer name -> bool mask, shaped like the weight and on its device, True = keep. A dict that also knows its pattern.
    Raises:
        InvalidSetting: an invalid argument; names it, its value and what is allowed. Also a layer that still has the units that
            pattern channel with tied channels pruned: `sf.narrow` takes them out.
    """
    net = unwrap(net)
    require_network(net)
    require_unswapped(net)
    require_finite_weights(net)
    pruning = pruning_settings(pattern, sparsity, granularity, importance, allocation, schedule)
    sparsity = pruning.sparsity
    if not pruning.pattern.prunes:
        raise InvalidSetting("pattern", pruning.pattern.name, "takes no weights away: leave the network as it is")
    _require_types(loss, layers, tell, task, search)
    # the result of depth is a plain network of the same classes, but for Conv1D, whose state dict stays the same
    as_linears(net, conv1d_layers(net) if type(pruning.pattern) is Depth else None)
    most = pruning.importance.count_batches(pruning.allocation, pruning.pattern)
    open_loader = open_calibration(net, calibration, pruning.importance, most)
    inputs = None if example_inputs is None else name_inputs_on(net, example_inputs)
    if inputs is None and layers is None and calibration is not None:
        inputs = open_loader.first_inputs()
    argument = "calibration" if example_inputs is None else "example_inputs"
    calling = partial(translate_errors, argument, inputs_in_words(inputs or {}), "the network cannot be called with it")
    with calling() if layers is None else nullcontext():
        chosen, left_out = choose_layers(net, layers, inputs)
    kept_dense = match_ignored(chosen, ignore)
    plan = check_pruning(net, chosen, pruning, kept_dense, ignore)
    ignored = left_out | plan.dense_reasons
    task = PlainTask(net, loss, argument="calibration") if task is None else task
    if pruning.pattern.takes_blocks:
        batches = None if calibration is None else open_loader
        return prune_blocks(task, pruning, plan.layers, list(kept_dense), ignored, batches, tell)
    with calling():
        stays = dense_at_swap(net, plan.layers, None if layers is None else inputs)
    tell(_sum_up(pruning, len(plan.layers), ignored, stays))
    narrower = narrower_than_tiles(plan, pruning.pattern)
    if narrower is not None:
        tell(f"prune: {narrower}")
    scores = score_weights(
        task,
        plan.layers,
        importance=pruning.importance,
        open_loader=open_loader,
        masks_of=partial(make_masks, pattern=pruning.pattern, allocation=pruning.allocation, sparsity=sparsity),
        device=None if device is None else torch.device(device),
    )
    require_finite(scores)
    weights = {name: weight_of(net, name) for name in plan.layers}
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    record = None
    if isinstance(pruning.allocation, MeasuringAllocation):
        if search is None:
            allowed = f"allocation={pruning.allocation.name} measures the network: give it search=sf.Search()"
            raise InvalidSetting("search", None, allowed)
        spec, record = search.spec(task, scores, pruning, open_loader, inputs, tell)
    else:
        spec = fix_spec(scores, pruning.pattern, pruning.allocation, sparsity, weight_shapes=shapes)
        if plan.ties and spec.sparsities is not None:
            multiple = pruning.pattern.multiple_of
            spec = replace(spec, sparsities=plan_sparsities(plan.ties, plan.pruned_shapes, sparsity, multiple))
        require_one_sparsity(net, plan.layers, pruning.allocation.name, spec.sparsities)
    spec = replace(spec, structure=structure_of(net))
    first = pruning.first_sparsity
    made = make_masks(
        scores,
        pruning.pattern,
        pruning.allocation,
        first,
        final_sparsity=sparsity,
        nested=pruning.schedule.masks_nest,
        spec=spec,
        ties=plan.ties,
    )
    masks = {name: like_weight(mask, weights[name]) for name, mask in made.items()}
    with torch.no_grad():
        for name, mask in masks.items():
            weights[name].masked_fill_(~mask, 0.0)
    if pruning.pattern.tied:
        record_zeros(net, masks)
        hook_units(net, plan.ties, masks)
    sparsities = {name: 1 - int(mask.sum()) / mask.numel() for name, mask in masks.items()}
    warning = collapse_warning(sparsities, first, pruning.allocation.name)
    if warning:
        log.warning("prune: %s", warning)  # immediately: the following steps may train for hours
    dense = dense_weights(net, {*masks, *ignored})
    whole = [name for name, rate in sparsities.items() if rate == 0 and first == sparsity]  # later masks may prune them
    tell(_describe(net, masks, dense, whole, None if has_budget(pruning.allocation) else first))
    others = {dense_weight.name: dense_weight.why for dense_weight in dense}
    return Masks(masks, pruning=pruning, spec=spec, ignored=ignored, dense=others, search=record)


def pruning_settings(
    pattern: object, sparsity: float, granularity: object, importance: object, allocation: object, schedule: object
) -> PruningSettings:
    """Build the pruning settings from arguments and check all that does not need the network.

    Raises:
        InvalidSetting: names the argument.
    """
    if isinstance(sparsity, bool) or not isinstance(sparsity, Real) or not 0 <= sparsity < 1:
        shown = sparsity if isinstance(sparsity, Real) else " ".join(repr(sparsity).split())
        raise InvalidSetting("sparsity", shown, "is the fraction of zeros, in [0, 1)")
    sparsity = float(sparsity)  # accept NumPy scalars
    if isinstance(granularity, Integral) and not isinstance(granularity, bool):
        granularity = int(granularity)
    made = PruningSettings(
        pattern=option("pattern", pattern, Pattern, granularity=granularity),
        sparsity=sparsity,
        importance=option("importance", importance, Importance),
        allocation=option("allocation", allocation, Allocation),
        schedule=option("schedule", schedule, Schedule),
    )
    made.allocation.check_pattern(made.pattern)
    made.pattern.check_sparsity(sparsity)
    made.allocation.check_sparsity(sparsity)
    made.schedule.check_sparsity(sparsity)
    made.schedule.check_rounds(sparsity)
    made.schedule.check_pattern(made.pattern)
    made.schedule.check_blocks(made.pattern, sparsity)
    made.importance.check(made)
    return made


def _require_types(loss: object, layers: object, tell: object, task: object, search: object) -> None:
    """Raise InvalidSetting for values that cannot be called as needed, and for tasks or searches of another type."""
    if loss is not None:
        require_callable("loss", loss, "output", "target", allowed="is a function (output, target) -> scalar, or None")
    if callable(layers):
        allowed = "is names, glob patterns, or a predicate of (name, module)"
        require_callable("layers", layers, "name", "module", allowed=allowed)
    require_callable("tell", tell, "line", allowed="is a function that takes a line, such as print")
    if task is not None and not isinstance(task, Task):
        raise InvalidSetting("task", type(task).__name__, "is a task of sparsefront, or None")
    if isinstance(search, type) or not hasattr(search, "spec") and search is not None:
        actual = search.__name__ if isinstance(search, type) else repr(search)
        raise InvalidSetting("search", actual, "is a sf.Search(...), or None")


def check_pruning(
    net: nn.Module, layers: list[str], pruning: PruningSettings, ignored: Mapping[str, str], ignore: object
) -> PruningPlan:
    """Plan which layers are pruned, and check all that follows from the architecture, before anything is trained.

    Args:
        net: may be on the meta device.
        layers: names of the prunable Linear and Conv2d layers.
        ignored: those that stay dense -> why.
        ignore: the argument that they come from, for messages.
    Raises:
        InvalidSetting: nothing would be pruned, or not as asked; names the setting.
    """
    pattern, allocation, sparsity = pruning.pattern, pruning.allocation, pruning.sparsity
    plan = plan_pruning(
        net, layers, pattern=pattern, sparsity=sparsity, ignored=ignored, reads_inputs=pruning.reads_inputs
    )
    require_whole_groups(plan, pattern, ignored)
    if not plan.layers:
        raise nothing_fits(plan, pattern, ignored, ignore)
    require_none_dense(net, plan.layers, "ignore", ignore)
    if not pattern.tied:
        require_no_zeros(net, plan.layers)
    with keys_of("allocation"):
        allocation.check_layers(pattern, plan.pruned_shapes, sparsity)
    if isinstance(pattern, Depth):
        removable_blocks(net, plan.layers, ignored, pattern, sparsity)
        return plan
    require_chain(pruning.importance, net, plan.layers)
    weight_shapes = {name: tuple(weight_of(net, name).shape) for name in plan.layers}
    require_effect(pattern, allocation, weight_shapes, sparsity)
    if isinstance(allocation, MeasuringAllocation):
        require_none_shared(net, plan.layers, allocation.name)
    if isinstance(allocation, PerLayerAllocation) and not (allocation.fixed_by_first_scores or plan.ties):
        sparsities = allocation.layer_sparsities(weight_shapes, sparsity, lambda layer, level: 0.0)
        require_one_sparsity(net, plan.layers, allocation.name, sparsities)
    require_storable(pattern, plan.pruned_shapes.values(), sparsity)
    return plan


def _sum_up(pruning: PruningSettings, pruned: int, ignored: Mapping[str, str], stays: Mapping[str, str]) -> str:
    """One line: what is pruned, the layers left out by reason, and what a swap will leave dense."""
    left_out = f"; left out: {_by_reason(ignored)}" if ignored else ""
    if stays:
        left_out += f"; pruned, but run dense after a swap: {_by_reason(stays)}"
    first, name = pruning.first_sparsity, pruning.schedule.name
    rising = f", rising to {pruning.sparsity:.4g} (schedule={name})," if first != pruning.sparsity else ""
    layers = counted(pruned, "layer")
    return f"prune: {pruning.pattern.name} at {first:.4g}{rising} in {layers}{left_out}"


def _by_reason(reasons: Mapping[str, str]) -> str:
    layers_of: dict[str, list[str]] = {}
    for name, why in reasons.items():
        layers_of.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(names)} ({why})" for why, names in layers_of.items())


def _describe(
    net: nn.Module,
    masks: Mapping[str, Tensor],
    dense: Sequence[DenseWeight],
    whole: Sequence[str],
    target: float | None,
) -> str:
    """One line: the sparsity of the pruned layers and of all weights, other dense weights by kind, masks that prune nothing.

    Args:
        target: the requested sparsity, which is reported if the pattern's groups miss it; None: there is only a ceiling.
    """
    once = {id(weight_of(net, name)): mask for name, mask in masks.items()}  # layers may share a weight
    pruned, total = (sum(count) for count in zip(*((int((~m).sum()), m.numel()) for m in once.values()), strict=True))
    kinds = Counter(weight.kind for weight in dense)
    others = f"; dense: {', '.join(f'{count} {kind}' for kind, count in kinds.items())}" if kinds else ""
    if whole:
        others += f"; dense after a swap: {_by_reason(dict.fromkeys(whole, KEEPS_ALL))}"
    layers, share = counted(len(masks), "layer"), pruned / count_weights(net)
    missed = target is not None and misses(pruned / total, target)
    zeros = f"are zero where {target:.1%} was asked for" if missed else "are zero"
    return f"prune: {pruned / total:.1%} of the weights in {layers} {zeros}, {share:.1%} of all in the network{others}"
