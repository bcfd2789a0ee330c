"""What the error of a product does to the loss: by that, errors of products are added."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from torch import Tensor

from sparsefront.allocation.choice_table import Item, Option
from sparsefront.latency_search.candidate_masks import CandidateMasks

FLOOR = 0.05  # of the median weight: a rise that noise hides is no reason to prune a product for nothing

Loss = Callable[[Mapping[str, Tensor]], float]
"""Masks of some layers -> the loss of the network on calibration batches; the other layers are dense."""


def weighed(items: Sequence[Item], masks: CandidateMasks, loss: Loss) -> list[Item]:
    """The items with each error times the rise of the loss per error, as seen where the product alone is pruned.

    Two options of each item are tried, those a third and two thirds up in its errors. On digits (vit_small, 60
    drawn assignments) the sum of weighed errors ranks the better half of them as the held-out loss does with a correlation of
    0.85 to 0.87; without weights 0.72 to 0.73.

    Args:
        items: with the relative errors of `errors.output_error`.
    """
    base = loss({})
    found = [_weight(item, masks, loss, base) for item in items]
    positive = [weight for weight in found if weight is not None and weight > 0]
    if not positive:  # the loss tells nothing: all alike
        return list(items)
    least = FLOOR * median(positive)
    weights = [least if weight is None else max(weight, least) for weight in found]
    return [_scaled(item, weight) for item, weight in zip(items, weights, strict=True)]


def _weight(item: Item, masks: CandidateMasks, loss: Loss, base: float) -> float | None:
    """Rise of the loss per error; None of an item that no option changes."""
    ranked = sorted((option for option in item.options if option.error > 0), key=lambda option: option.error)
    tried = (
        {id(option): option for option in (ranked[len(ranked) // 3], ranked[2 * len(ranked) // 3])} if ranked else {}
    )
    if not tried:
        return None
    rises = sum(loss(_masks_of(item, option, masks)) - base for option in tried.values())
    return rises / sum(option.error for option in tried.values())


def _masks_of(item: Item, option: Option, masks: CandidateMasks) -> dict[str, Tensor]:
    return {layer: masks.mask(layer, option.pattern, option.sparsity) for layer in item.layers}


def _scaled(item: Item, weight: float) -> Item:
    return replace(item, options=[replace(option, error=weight * option.error) for option in item.options])
