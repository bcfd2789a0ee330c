"""Tied pruning of whole attention heads and hidden features across the layers that share them (`patterns.ties`).

Biases of pruned units are never read. The result is a narrower dense network with the same function (`pruning.narrow`).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from sparsefront.errors import InvalidSetting
from sparsefront.masks.groups import Groups, group_score, keep_best
from sparsefront.patterns.base import Pattern
from sparsefront.patterns.ties import Shapes, Tie, features_of

NOT_FOLLOWED = (
    "its features cannot go: the network returns them, an operation mixes them, or no call without values shows them"
)
NO_TIES = "no tied layers found: its units reach more than layers to prune and operations on each, or its graph cannot be traced"
Select = Callable[[Mapping[str, Groups], Mapping[str, int], float], dict[str, Tensor]]
"""Ranks the groups of all layers together; see `GlobalAllocation.select`."""


def explain_untied(ties: Iterable[Tie], layers: Iterable[str], pattern: Pattern) -> dict[str, str]:
    """The layers without a tie -> why they stay dense."""
    tied = {layer for tie in ties for layer in tie.layers}
    why = NOT_FOLLOWED if pattern.over_norms else NO_TIES
    return {layer: why for layer in layers if layer not in tied}


def units_to_prune(ties: Sequence[Tie], shapes: Shapes, sparsity: float, multiple: int = 1) -> list[int]:
    """Number of units to prune in each tie so that every block loses the same share; at least one unit stays.

    The number of heads is rounded to the nearest integer in each attention: 12 at 0.3 lose 4, or fewer where the hidden size
    loses features too. Hidden features and channels then lose the share that brings the total as close to `sparsity` as
    possible from below.

    Args:
        shapes: layer -> [N, K], for all layers of the ties.
        sparsity: over all weights of these layers, in [0, 1).
        multiple: every width that becomes smaller stays a multiple of it.
    Raises:
        InvalidSetting: a sparsity above 0 that rounds to no unit.
    """

    def units(share: float, of_heads: float) -> list[int]:
        counts = []
        for tie in ties:
            heads, step = tie.attention is not None, tie.step(multiple)
            left = tie.count - math.floor(of_heads * tie.count + 0.5 if heads else share * tie.count)
            left = round(left / step) if heads else math.ceil(left / step)
            counts.append(tie.count - min(tie.count, step * max(1, left)))
        return counts

    def largest(counts_at: Callable[[float], list[int]]) -> float:
        """The largest share that prunes at most `sparsity`."""
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (
                (middle, high) if _sparsity(ties, shapes, counts_at(middle)) <= sparsity + 1e-9 else (low, middle)
            )
        return high if _sparsity(ties, shapes, counts_at(high)) <= sparsity + 1e-9 else low

    crossing = any(tie.parts for tie in ties)  # the layers of heads lose features of the hidden size, too
    of_heads = largest(lambda share: units(share, share)) if crossing else sparsity
    counts = units(largest(lambda share: units(share, of_heads)), of_heads)
    if sparsity > 0 and not any(counts):
        least = min((tie.step(multiple) / tie.count for tie in ties), default=1.0)
        what = "one unit of it" if multiple == 1 else f"a multiple of {multiple}"
        allowed = f"rounds to no change: the smallest share of a layer that goes is {least:.4g}, {what}"
        raise InvalidSetting("sparsity", sparsity, allowed)
    return counts


def plan_sparsities(ties: Sequence[Tie], shapes: Shapes, sparsity: float, multiple: int = 1) -> dict[str, float]:
    """Layer -> its sparsity after `units_to_prune`."""
    return _layer_sparsities(ties, shapes, units_to_prune(ties, shapes, sparsity, multiple))


def _overlap(ties: Sequence[Tie]) -> bool:
    """Whether any layer belongs to two ties, computing units of one and reading those of the other."""
    return any(number > 1 for number in Counter(layer for tie in ties for layer in tie.layers).values())


def _layer_sparsities(ties: Sequence[Tie], shapes: Shapes, gone: Sequence[int]) -> dict[str, float]:
    density = dict.fromkeys(shapes, 1.0)
    for tie, units in zip(ties, gone, strict=True):
        for layer in tie.layers:
            density[layer] *= 1 - units / tie.count
    return {layer: 1 - layer_density for layer, layer_density in density.items()}


def _sparsity(ties: Sequence[Tie], shapes: Shapes, gone: Sequence[int]) -> float:
    own = _layer_sparsities(ties, shapes, gone)
    return sum(share * math.prod(shapes[layer]) for layer, share in own.items()) / sum(map(math.prod, shapes.values()))


def mask_tied(
    importance: Mapping[str, Tensor],
    pattern: Pattern,
    ties: Sequence[Tie],
    sparsity: float,
    final: float,
    allowed: Mapping[str, Tensor],
    select: Select | None,
) -> dict[str, Tensor]:
    """Compute the masks of tied layers: either every block loses the same share, or all units are ranked together. During a
    schedule, every tie has lost the same fraction of what it will lose.

    Args:
        importance: layer -> float [N, K].
        pattern: its `aggregate` scores a unit.
        ties: of these layers; each layer is in one or two.
        sparsity, final: now, and at the end of the schedule.
        allowed: layer -> bool [N, K]: the earlier masks.
        select: ranks all units together; None: every block loses the same share.
    Returns:
        layer -> bool [N, K].
    """
    shapes = {layer: (values.shape[0], values.shape[1]) for layer, values in importance.items()}
    aggregate = getattr(pattern, "aggregate", "rms")
    scores = [
        unit_scores(tie, importance, aggregate).masked_fill_(~units_left(tie, allowed), -math.inf) for tie in ties
    ]
    if select is None:
        pruned_counts = units_to_prune(ties, shapes, final, pattern.multiple_of)
        share = _share_of_way(ties, shapes, pruned_counts, sparsity, final)
        now = [math.floor(units * share + 1e-9) for units in pruned_counts]
        return masks_of_units([(tie, _best_units(*one)) for tie, *one in zip(ties, scores, now, strict=True)], shapes)
    groups = {
        str(place): _unit_groups(tie, own, shapes) for place, (tie, own) in enumerate(zip(ties, scores, strict=True))
    }
    numel = {str(place): tie.count * tie.weights_of_unit(shapes) for place, tie in enumerate(ties)}
    low, high = 0.0, 1.0
    for _ in range(16 if _overlap(ties) else 0):  # losses overlap in a layer of two ties: less than their sum
        middle = (low + high) / 2
        pruned_counts = [int((~units).sum()) for units in select(groups, numel, middle).values()]
        low, high = (middle, high) if _sparsity(ties, shapes, pruned_counts) <= sparsity else (low, middle)
    unit_masks = select(groups, numel, low if _overlap(ties) else sparsity)
    return masks_of_units(list(zip(ties, unit_masks.values(), strict=True)), shapes)


def _share_of_way(ties: Sequence[Tie], shapes: Shapes, gone: Sequence[int], sparsity: float, final: float) -> float:
    """The share of `gone`, units of each tie, that a schedule to `final` has pruned at `sparsity` of all weights."""
    if sparsity == final or not _overlap(ties):
        return sparsity / final if final else 0.0
    low, high = 0.0, 1.0
    for _ in range(16):  # losses overlap in a layer of two ties: less than their sum
        middle = (low + high) / 2
        now = [math.floor(units * middle + 1e-9) for units in gone]
        low, high = (middle, high) if _sparsity(ties, shapes, now) <= sparsity else (low, middle)
    return low


def unit_scores(tie: Tie, importance: Mapping[str, Tensor], aggregate: str) -> Tensor:
    """Score each unit over all of its tied weights; returns float32 [units]. `aggregate`: see `group_score`.

    Args:
        importance: layer -> float [N, K]; the columns of a convolution are ordered (kh, kw, C_in).
    """
    parts = []
    for layer, sizes in tie.outputs.items():
        segments = importance[layer].float().split([tie.count * size for size in sizes])
        parts += [segment.reshape(tie.count, -1) for segment in segments]
    for layer, sizes in tie.inputs.items():
        taps = importance[layer].float().unflatten(1, (-1, tie.count * sum(sizes)))
        for segment in taps.split([tie.count * size for size in sizes], dim=2):
            parts.append(segment.unflatten(2, (tie.count, -1)).permute(2, 0, 1, 3).reshape(tie.count, -1))
    weights = torch.cat(parts, dim=1)
    return group_score(weights, (1,), weights.shape[1], aggregate)


def _unit_groups(tie: Tie, scores: Tensor, shapes: Shapes) -> Groups:
    """The units of a tie as groups for a global ranking; the best one must stay."""
    stays = torch.zeros_like(scores, dtype=torch.bool)
    stays[scores.argmax()] = True
    return Groups(scores, tie.weights_of_unit(shapes), stays=stays)


def _best_units(scores: Tensor, gone: int) -> Tensor:
    """Bool [units]: all but the `gone` lowest, where units at -inf, already pruned, count toward `gone`."""
    before = int((scores == -math.inf).sum())
    (unit_mask,) = keep_best([Groups(scores, 1)], max(0, gone - before))
    return unit_mask


def units_left(tie: Tie, masks: Mapping[str, Tensor]) -> Tensor:
    """Bool [units] that are still alive in masks [N, K]."""
    for layer, (size, *_) in tie.outputs.items():
        return masks[layer][: tie.count * size].reshape(tie.count, -1).any(dim=1)
    layer, (size, *_) = next(iter(tie.inputs.items()))
    return masks[layer].any(dim=0).unflatten(0, (-1, tie.count * size))[0].view(tie.count, -1).any(dim=1)


def masks_of_units(tie_units: Sequence[tuple[Tie, Tensor]], shapes: Shapes) -> dict[str, Tensor]:
    """Build layer -> bool [N, K] from ties, at least one, and their surviving units."""
    device = tie_units[0][1].device
    masks = {layer: torch.ones(shape, dtype=torch.bool, device=device) for layer, shape in shapes.items()}
    for tie, units in tie_units:
        for layer, sizes in tie.outputs.items():
            masks[layer] &= features_of(units, sizes)[:, None]
        for layer, sizes in tie.inputs.items():
            features = features_of(units, sizes)
            masks[layer] &= features.repeat(shapes[layer][1] // len(features))
    return masks
