"""From importance to masks: a pattern's steps, each decided by an allocation across the layers."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sparsefront.allocation.base import Allocation
from sparsefront.allocation.selection import keep_best_of_last
from sparsefront.importance.finite import refuse_non_finite
from sparsefront.patterns.base import Pattern, refuse_indivisible, refuse_sparsity_out_of_range
from sparsefront.patterns.groups import Groups

Shape = tuple[int, int]


def make_masks(
    importance: Mapping[str, Tensor],
    pattern: Pattern,
    allocation: Allocation,
    sparsity: float,
    *,
    final_sparsity: float | None = None,
    previous: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """The masks of all layers at a sparsity.

    Args:
        importance: layer name -> [N, K], any float dtype, on one device, larger = more worth keeping. Only layers that
            the pattern can divide (`pattern.refusal` is None); sparsity counts their weights.
        pattern: which weights live or die together.
        allocation: how much goes in which layer; balanced patterns leave it nothing to decide.
        sparsity: fraction of zeros, in [0, 1).
        final_sparsity: where a gradual schedule ends, while `sparsity` is only on the way; None: at `sparsity`.
        previous: layer name -> bool, [N, K] or shaped like the weight: masks that this function made earlier in the
            same schedule. The result keeps no weight that they prune. None: everything is still there.
    Returns:
        layer name -> bool [N, K] on importance's device, True = keep; the same input gives the same masks. A free
        pattern prunes at most `sparsity`, short of it by less than one group.
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
    shapes = {layer: (values.shape[0], values.shape[1]) for layer, values in importance.items()}
    scores = {layer: values.float() for layer, values in importance.items()}
    masks = {layer: _starting_mask(layer, values, previous) for layer, values in importance.items()}
    rounds = zip(*(pattern.steps(sparsity, shape, final) for shape in shapes.values()), strict=True)
    for steps in rounds:  # the same step of every layer
        step_of = dict(zip(shapes, steps, strict=True))
        groups = {layer: step.groups(scores[layer], masks[layer]) for layer, step in step_of.items()}
        kept = _survivors(groups, shapes, allocation, steps[0].target)
        del groups  # the scores of the whole network: freed before the masks are expanded
        masks = {layer: step.expand(kept[layer], scores[layer], masks[layer]) for layer, step in step_of.items()}
    return masks


def _survivors(
    groups: dict[str, Groups], shapes: Mapping[str, Shape], allocation: Allocation, target: float
) -> dict[str, Tensor]:
    """Balanced layers decide window by window; the allocation decides the rest together."""
    kept = {
        layer: keep_best_of_last(group.scores, group.keep_of_last)
        for layer, group in groups.items()
        if group.keep_of_last is not None
    }
    free = {layer: group for layer, group in groups.items() if layer not in kept}
    return kept | allocation.select(free, shapes, target) if free else kept


def _starting_mask(layer: str, importance: Tensor, previous: Mapping[str, Tensor] | None) -> Tensor:
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
