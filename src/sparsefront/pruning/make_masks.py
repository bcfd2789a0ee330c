"""From importance to masks: a pattern's steps, each decided by an allocation across the layers."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sparsefront.allocation.base import Allocation, Ranked
from sparsefront.allocation.selection import select_in_layer
from sparsefront.importance.finite import refuse_non_finite
from sparsefront.patterns.base import Pattern, expand, offer, refuse_indivisible, refuse_sparsity_out_of_range
from sparsefront.patterns.groups import Groups
from sparsefront.pruning.structure import Structure, settle


def make_masks(
    importance: Mapping[str, Tensor],
    pattern: Pattern,
    allocation: Allocation,
    sparsity: float,
    *,
    final_sparsity: float | None = None,
    previous: Mapping[str, Tensor] | None = None,
    structure: Structure | None = None,
    weight_shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, Tensor]:
    """The masks of all layers at a sparsity.

    Args:
        importance: layer name -> [N, K], any float dtype, on one device, larger = more worth keeping. Only layers that
            the pattern can divide (`pattern.refusal` is None); sparsity counts their weights.
        pattern: which weights live or die together.
        allocation: how much goes in which layer.
        sparsity: fraction of zeros, in [0, 1).
        final_sparsity: where a schedule ends, while `sparsity` is only on the way; None: at `sparsity`.
        previous: layer name -> bool, [N, K] or shaped like the weight: masks that this function made earlier in the
            same schedule. The result keeps no weight that they prune. None: everything is still there.
        structure: what was settled for the whole schedule; None: it is settled now, from this importance.
        weight_shapes: layer name -> the weight's own shape, where it is not [N, K]: convolutions.
    Returns:
        layer name -> bool [N, K] on importance's device, in the network's order, True = keep; the same input gives the
        same masks. A free pattern prunes at most `sparsity`, short of it by less than one group.
    Raises:
        InvalidSetting: a sparsity out of range, or one that the settings of pattern or allocation cannot express.
        ValueError: importance that is not finite, or a layer that the pattern cannot divide; names the layer.
    """
    final = sparsity if final_sparsity is None else final_sparsity
    refuse_sparsity_out_of_range(sparsity)
    refuse_sparsity_out_of_range(final)
    pattern.check_sparsity(final)
    allocation.check_sparsity(final)
    _refuse_indivisible(importance, pattern, final)
    refuse_non_finite(importance)
    if structure is None:
        structure = settle(importance, pattern, allocation, final, weight_shapes=weight_shapes)
    if isinstance(allocation, Ranked):
        return _ranked_together(importance, pattern, allocation, sparsity, final, previous, structure)
    return {
        layer: _on_its_own(layer, values, pattern, sparsity, final, previous, structure)
        for layer, values in importance.items()
    }


def _on_its_own(
    layer: str,
    importance: Tensor,
    pattern: Pattern,
    sparsity: float,
    final: float,
    previous: Mapping[str, Tensor] | None,
    structure: Structure,
) -> Tensor:
    """The mask of a layer whose sparsity is assigned. On the way every layer has gone the same part of its way."""
    layer_final = structure.sparsity_of(layer, final)
    allowed = _allowed(layer, importance, previous)
    if layer_final == 0:
        return allowed
    now = layer_final if sparsity == final else layer_final * sparsity / final
    arrangement = structure.arrangement(layer)
    scores = arrangement.arrange(importance.float())
    return arrangement.restore(pattern.layer_mask(scores, arrangement.arrange(allowed), now, layer_final))


def _ranked_together(
    importance: Mapping[str, Tensor],
    pattern: Pattern,
    allocation: Ranked,
    sparsity: float,
    final: float,
    previous: Mapping[str, Tensor] | None,
    structure: Structure,
) -> dict[str, Tensor]:
    """The masks of all layers, each step decided over the whole network."""
    arrange = {layer: structure.arrangement(layer).arrange for layer in importance}
    scores = {layer: arrange[layer](values.float()) for layer, values in importance.items()}
    allowed = {layer: arrange[layer](_allowed(layer, values, previous)) for layer, values in importance.items()}
    numel = {layer: values.numel() for layer, values in importance.items()}
    masks = dict(allowed)
    per_layer = (pattern.steps(sparsity, (values.shape[0], values.shape[1]), final) for values in importance.values())
    for steps in zip(*per_layer, strict=True):  # the same step of every layer
        step_of = dict(zip(scores, steps, strict=True))
        groups: dict[str, Groups] = {}
        for layer, step in step_of.items():
            offered = offer(step, scores[layer], masks[layer], allowed[layer])
            if offered.keep_of_last is None:
                groups[layer] = offered
            else:  # windows are decided one by one: nothing to rank, and no need to hold the scores of other layers
                survivors = select_in_layer(offered, numel[layer], step.target)
                masks[layer] = expand(step, survivors, scores[layer], masks[layer], allowed[layer])
        kept = allocation.select(groups, numel, steps[0].target) if groups else {}
        ranked = list(groups)
        del groups  # the scores of the whole network: freed before the masks are expanded
        for layer in ranked:
            masks[layer] = expand(step_of[layer], kept.pop(layer), scores[layer], masks[layer], allowed[layer])
    return {layer: structure.arrangement(layer).restore(mask) for layer, mask in masks.items()}


def _allowed(layer: str, importance: Tensor, previous: Mapping[str, Tensor] | None) -> Tensor:
    """What is still there before the first step: bool [N, K]."""
    if previous is None:
        return torch.ones_like(importance, dtype=torch.bool)
    return previous[layer].reshape(importance.shape).to(importance.device)


def _refuse_indivisible(importance: Mapping[str, Tensor], pattern: Pattern, sparsity: float) -> None:
    """Raise ValueError naming the first layer that the pattern cannot divide."""
    for layer, values in importance.items():
        try:
            refuse_indivisible(pattern, tuple(values.shape), sparsity)
        except ValueError as error:
            raise ValueError(f"layer {layer}: {error}") from None
