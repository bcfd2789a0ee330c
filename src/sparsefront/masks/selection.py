"""Picking the groups that survive, exact and deterministic, by a threshold found without sorting."""

import math
import struct
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sparsefront.masks.groups import Groups, in_runs

# The score below which groups go: exact, on any device, without sorting or joining the scores of the network.

SAMPLE = 2**16  # scores that are looked at to guess where the threshold lies
SPREAD = 4.0  # how far from the guess it may lie, in standard errors of the sample
SMALL_SHARE = 1 / 32  # of the weights: what is left between two guesses is sorted once it is below this


def find_threshold(groups: Sequence[Groups], allowed: int) -> tuple[float, int]:
    """The largest float32 t, above -inf, such that the groups with score < t hold at most `allowed` weights.

    The threshold is bracketed by two floats. A sample of the scores guesses both; each guess is tested by
    counting the weights below it, and decides nothing by itself: while too much lies between the two, the interval is
    halved, in at most 32 counting passes over all scores. What lies between at last is sorted. A sort or a quickselect of
    all 10^8 scores would need their concatenation and 64-bit indices.

    Args:
        groups: one per layer, float32 scores on one device.
        allowed: at least the weights of the groups at -inf.
    Returns:
        t, and how many weights the groups with score < t hold.
    """
    low, high = rank_of(-math.inf), rank_of(math.inf) + 1  # low <= t < high, as ranks
    below_low, below_high = 0, int(sum(_all_weights(group) for group in groups))
    if sum(group.scores.numel() for group in groups) <= SAMPLE:
        return _by_sorting(groups, allowed, low, high, below_low)
    small = SMALL_SHARE * below_high
    guesses = _guesses(groups, allowed / max(1, below_high))
    while high - low > 1:
        guesses = [guess for guess in guesses if low < guess < high]
        if not guesses and below_high - below_low <= small:
            return _by_sorting(groups, allowed, low, high, below_low)
        middle = guesses.pop() if guesses else (low + high) // 2
        below = _weights_below(groups, float_of(middle))
        if below <= allowed:
            low, below_low = middle, below
        else:
            high, below_high = middle, below
    return float_of(low), below_low


def _guesses(groups: Sequence[Groups], share: float) -> list[int]:
    """Ranks of two scores between which the threshold mostly lies; `share`: of the weights that are below it."""
    # An odd step, so that rows of an even length are not met at the same few columns.
    step = sum(group.scores.numel() for group in groups) // SAMPLE | 1
    sampled = [torch.arange(0, group.scores.numel(), step, device=group.scores.device) for group in groups]
    scores, sizes = _joined(groups, sampled)
    scores, order = scores.sort()
    shares = sizes[order].cumsum(0).double()
    shares /= shares[-1].clone()
    margin = SPREAD * math.sqrt(share * max(0.0, 1 - share) / len(scores)) + 1 / len(scores)
    ends = shares.new_tensor([share - margin, share + margin])
    places = torch.searchsorted(shares, ends).clamp(max=len(scores) - 1)
    lower, upper = scores[places].tolist()
    return [rank_of(upper) + 1, rank_of(lower)]  # with what ties with the upper one


def _by_sorting(groups: Sequence[Groups], allowed: int, low: int, high: int, below_low: int) -> tuple[float, int]:
    """`find_threshold` among the groups whose scores have ranks in [low, high); `below_low`: weights below them."""
    inside = []
    for group in groups:
        scores = group.marked()
        above = scores >= float_of(low)
        if high <= rank_of(math.inf):
            above &= scores < float_of(high)
        inside.append(above.flatten().nonzero().flatten())
    scores, sizes = _joined(groups, inside)
    ascending, order = scores.sort()
    gone = sizes[order].cumsum(0) + below_low
    fitting = int((gone <= allowed).sum())
    # Where all fit, high was never too much: it is the end of the floats, and t is the largest.
    threshold = ascending[fitting].item() if fitting < len(ascending) else math.inf
    before = int((ascending < threshold).sum())
    return threshold, int(gone[before - 1]) if before else below_low


def _joined(groups: Sequence[Groups], places: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Scores and sizes (int64) at some places of each layer's flattened scores, all layers in one."""
    chosen = [group.at(there) for group, there in zip(groups, places, strict=True)]
    return torch.cat([group.marked() for group in chosen]), torch.cat([group.sizes for group in chosen])


def _all_weights(groups: Groups) -> Tensor | int:
    if isinstance(groups.sizes, int):
        return groups.scores.numel() * groups.sizes
    return groups.sizes.expand(groups.scores.shape).sum()


def _weights_below(groups: Sequence[Groups], threshold: float) -> int:
    """Weights in the groups that score below the threshold."""
    return int(sum(group.weights_in(group.marked() < threshold) for group in groups))


def rank_of(value: float) -> int:
    """The place of a float32 among all of them in ascending order, as a whole number around 0."""
    bits = struct.unpack("<i", struct.pack("<f", value))[0]
    return bits if bits >= 0 else -(bits & 0x7FFFFFFF) - 1


def float_of(rank: int) -> float:
    """The way back from `rank_of`."""
    bits = rank if rank >= 0 else (-(rank + 1)) | -0x80000000
    return struct.unpack("<f", struct.pack("<i", bits))[0]


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
