"""Picking the groups that survive, from scores and sizes: exact, deterministic, and without sorting the network."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sparsefront.masks.groups import Groups
from sparsefront.masks.runs import in_runs
from sparsefront.masks.threshold import find_threshold

# Members of a group up to which comparing all pairs beats sorting.
FEW = 16
JOINED = 2**23  # groups in all, up to which they are ranked in one list: 100 MB with their sizes


def select_in_layer(groups: Groups, numel: int, target: float) -> Tensor:
    """The survivors of one layer on its own: bool, shape of the scores. `numel`: weights of the layer."""
    if groups.keep_of_last is not None:
        return keep_best_of_last(groups.scores, groups.keep_of_last)
    ranked = follow_guides([groups], numel, target)
    return keep_best(ranked, budget(ranked, numel, target))[0]


def follow_guides(groups: Sequence[Groups], numel: int, target: float) -> list[Groups]:
    """The groups of all layers with what their guides decide marked: as gone, or as staying. See `Guide`."""
    if not groups or groups[0].guide is None:
        return list(groups)
    share, start = groups[0].guide.share, groups[0].guide.start
    guides = [replace(group, scores=group.guide.scores, guide=None) for group in groups]
    first = keep_best(guides, budget(guides, numel, start + share * (target - start)))
    last = keep_best(guides, budget(guides, numel, 1 - share * (1 - target)))
    decided = []
    for group, survives, stays in zip(groups, first, last, strict=True):
        goes = ~survives & (group.scores < math.inf)
        scores = group.scores.masked_fill(stays & ~goes, math.inf).masked_fill_(goes, -math.inf)
        decided.append(replace(group, scores=scores, guide=None))
    return decided


def budget(groups: Sequence[Groups], numel: int, target: float) -> int:
    """How many weights of these groups may go so that at most the fraction `target` of `numel` weights is gone."""
    gone = numel - int(sum(group.alive_weights() for group in groups))
    # 0.57 * 100 is 56.99999999999999: the last digits of a float must not cost a weight.
    return max(0, math.floor(target * numel + 1e-6) - gone)


def keep_best_of_last(scores: Tensor, n: int) -> Tensor:
    """Keep the n best along the last dimension; ties go to the lower index, -inf is never kept."""
    if n == 1:  # one pass and one index per group: a transposable tile has 90 candidates
        best = scores.argmax(dim=-1, keepdim=True)
    elif scores.shape[-1] <= FEW:
        return _fewer_than_n_are_better(scores, n) & (scores > -math.inf)
    else:
        best = scores.sort(dim=-1, descending=True, stable=True).indices[..., :n]
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, True) & (scores > -math.inf)


def _fewer_than_n_are_better(scores: Tensor, n: int) -> Tensor:
    """Every score against each of its group: on short groups 3 to 5 times faster than sorting them all, on a CPU."""
    members = [member.contiguous() for member in scores.unbind(dim=-1)]
    better = [torch.zeros_like(member, dtype=torch.uint8) for member in members]
    for i, lower in enumerate(members):
        for j in range(i + 1, len(members)):
            wins = lower >= members[j]  # ties go to the lower index
            better[j] += wins
            better[i] += wins.logical_not_()
    return torch.stack([count < n for count in better], dim=-1)


def keep_best(groups: Sequence[Groups], allowed: int) -> list[Tensor]:
    """Drop the groups with the lowest scores, all layers ranked together, while their weights may go.

    The order of dropping is ascending score and, among equal scores, descending index, later layers first; it ends at
    the first group that would be too much, so never more than `allowed` weights go. Groups that survive in multiples
    are ranked and dropped as runs (see `Runs`).

    Args:
        groups: one per layer, float32 scores on one device.
        allowed: weights that may go, at least 0.
    Returns:
        per layer, bool in the shape of its scores, True = survives.
    """
    if not groups:
        return []
    if any(group.multiple > 1 for group in groups):
        runs = [in_runs(group) for group in groups]
        kept = keep_best([run.groups for run in runs], allowed)
        return [run.survivors(survive) for run, survive in zip(runs, kept, strict=True)]
    if len(groups) > 1 and sum(group.scores.numel() for group in groups) <= JOINED:
        return _keep_best_joined(groups, allowed)
    gone = int(sum(group.weights_in(group.marked() == -math.inf) for group in groups))
    threshold, below = find_threshold(groups, gone + allowed)
    kept = [(group.marked() >= threshold).contiguous() for group in groups]
    if threshold == math.inf:  # everything that may go does, and +inf must stay
        return kept
    left = gone + allowed - below
    for group, survives in zip(reversed(groups), reversed(kept), strict=True):
        if left == 0:  # at once, where scores do not tie
            break
        ties = (group.marked() == threshold).flatten().nonzero().flatten().flip(0)
        spent = group.sizes_at(ties).cumsum(0)
        fitting = int((spent <= left).sum())
        survives.view(-1)[ties[:fitting]] = False
        if fitting < len(ties):
            break
        left -= int(spent[-1]) if fitting else 0
    return kept


def _keep_best_joined(groups: Sequence[Groups], allowed: int) -> list[Tensor]:
    """`keep_best` with all layers in one list: where groups are few, a GPU waits longer for calls than for numbers."""
    sizes = [torch.as_tensor(group.sizes, device=group.scores.device).expand(group.scores.shape) for group in groups]
    joined = Groups(
        torch.cat([group.marked().flatten() for group in groups]), torch.cat([size.flatten() for size in sizes])
    )
    (kept,) = keep_best([joined], allowed)
    parts = kept.split([group.scores.numel() for group in groups])
    return [part.view(group.scores.shape) for part, group in zip(parts, groups, strict=True)]
