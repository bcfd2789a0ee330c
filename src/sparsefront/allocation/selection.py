"""Picking the groups that survive, from scores and sizes: exact, deterministic, and without sorting the network."""

import math
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from sparsefront.patterns.groups import Groups


def select_in_layer(groups: Groups, numel: int, target: float) -> Tensor:
    """The survivors of one layer on its own: bool, shape of the scores. `numel`: weights of the layer."""
    if groups.keep_of_last is not None:
        return keep_best_of_last(groups.scores, groups.keep_of_last)
    return keep_best([groups], budget([groups], numel, target))[0]


def budget(groups: Sequence[Groups], numel: int, target: float) -> int:
    """How many weights of these groups may go so that at most the fraction `target` of `numel` weights is gone."""
    gone = numel - sum(group.alive_weights() for group in groups)
    # 0.57 * 100 is 56.99999999999999: the last digits of a float must not cost a weight.
    return max(0, math.floor(target * numel + 1e-6) - gone)


def keep_best_of_last(scores: Tensor, n: int) -> Tensor:
    """Keep the n best along the last dimension; ties go to the lower index, -inf is never kept."""
    best = scores.sort(dim=-1, descending=True, stable=True).indices[..., :n]
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, True) & (scores > -math.inf)


def keep_best(groups: Sequence[Groups], allowed: int) -> list[Tensor]:
    """Drop the groups with the lowest scores, all layers ranked together, while their weights may go.

    The order of dropping is ascending score and, among equal scores, descending index, later layers first; it ends at
    the first group that would be too much, so never more than `allowed` weights go.

    Args:
        groups: one per layer, float32 scores on one device.
        allowed: weights that may go, at least 0.
    Returns:
        per layer, bool in the shape of its scores, True = survives.
    """
    gone = int(sum(group.weights_in(group.scores == -math.inf) for group in groups))
    threshold = _threshold(groups, gone + allowed)
    kept = [(group.scores >= threshold).contiguous() for group in groups]
    if threshold == math.inf:  # everything that may go does, and +inf must stay
        return kept
    left = gone + allowed - _weights_below(groups, threshold)
    for group, survives in zip(reversed(groups), reversed(kept), strict=True):
        ties = (group.scores == threshold).flatten().nonzero().flatten().flip(0)
        spent = group.sizes_at(ties).cumsum(0)
        fitting = int((spent <= left).sum())
        survives.view(-1)[ties[:fitting]] = False
        if fitting < len(ties):
            break
        left -= int(spent[-1]) if fitting else 0
    return kept


def _threshold(groups: Sequence[Groups], allowed: int) -> float:
    """The largest float32 t, above -inf, such that the groups with score < t hold at most `allowed` weights.

    Bisects over the float32 numbers themselves: 32 counting passes, whatever the scores are. A sort or a quickselect of
    10^8 scores would need their concatenation and 64-bit indices; this needs neither and runs on any device.
    """
    low, high = _rank_of(-math.inf), _rank_of(math.inf) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if _weights_below(groups, _float_of(middle)) <= allowed:
            low = middle
        else:
            high = middle
    return _float_of(low)


def _weights_below(groups: Sequence[Groups], threshold: float) -> int:
    """Weights in the groups that score below the threshold."""
    return int(sum(group.weights_in(group.scores < threshold) for group in groups))


def _rank_of(value: float) -> int:
    """The place of a float32 among all of them in ascending order, as a whole number around 0."""
    bits = struct.unpack("<i", struct.pack("<f", value))[0]
    return bits if bits >= 0 else -(bits & 0x7FFFFFFF) - 1


def _float_of(rank: int) -> float:
    """The way back from `_rank_of`."""
    bits = rank if rank >= 0 else (-(rank + 1)) | -0x80000000
    return struct.unpack("<f", struct.pack("<i", bits))[0]
