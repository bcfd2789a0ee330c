"""The score below which groups go: exact, on any device, without sorting or joining the scores of the network."""

import math
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from sparsefront.masks.groups import Groups

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
