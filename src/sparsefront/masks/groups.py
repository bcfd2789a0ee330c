"""Groups of weights that are kept or pruned together, and their selection by score."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Boundaries:
    """Lines between the groups of one layer's mask [N, K], in the permutation in which it obeys its pattern.

    Each number is the first row or column of a group, ascending, without the 0 of the first group.

    Args:
        rows: groups along the outputs: blocks, vectors, tiles.
        columns: groups along the inputs: blocks.
        windows: windows of n:m along the inputs, in columns.
    """

    rows: Sequence[int] = ()
    columns: Sequence[int] = ()
    windows: Sequence[int] = ()


def grid_boundaries(shape: tuple[int, int], block: tuple[int, int], m: int | None = None) -> Boundaries:
    """The lines of a fixed grid.

    Args:
        shape: [N, K].
        block: (outputs, inputs) of a group; a side of 1 has no lines, which would hide the weights.
        m: groups along K in a window; None = no windows.
    """
    rows, columns = (range(side, count, side) if side > 1 else () for count, side in zip(shape, block, strict=True))
    windows = () if m is None else range(block[1] * m, shape[1], block[1] * m)
    return Boundaries(rows, columns, windows)


@dataclass(frozen=True, eq=False)
class Guide:
    """Another ranking of the same groups, which decides a part of a step before their scores do.

    Args:
        scores: as in `Groups`, with its -inf and +inf.
        share: in [0, 1]: this fraction of the weights that the step prunes are its lowest ranked, and this fraction of those
            that it keeps are its highest ranked.
        start: target sparsity of the step before, from which the step's amount follows.
    """

    scores: Tensor
    share: float
    start: float


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups of one layer that a step keeps or prunes.

    Args:
        scores: float32 of any shape, one per group, larger = more worth keeping. -inf marks a group that is already
            pruned (never kept, not counted), +inf one that must be kept.
        sizes: weights pruned with the group, counting only those still alive: one number for all groups, or an integer tensor
            that broadcasts to the shape of scores.
        keep_of_last: for balanced patterns: exactly this many are kept along the last dimension of scores, independent of the
            allocation; else None.
        guide: another ranking with priority over the scores, or None.
        stays, gone: bool, shape of scores: override scores with +inf and -inf where True. If groups are single weights, this
            saves a copy of the importance of the whole network.
        multiple: along the last dimension of scores, the number kept is a multiple of this, or all.
    """

    scores: Tensor
    sizes: Tensor | int
    keep_of_last: int | None = None
    guide: Guide | None = None
    stays: Tensor | None = None
    gone: Tensor | None = None
    multiple: int = 1

    def mark(self) -> Tensor:
        """The scores with +inf where `stays` and -inf where `gone`."""
        scores = self.scores
        for places, value in ((self.gone, -math.inf), (self.stays, math.inf)):
            scores = scores if places is None else scores.masked_fill(places, value)
        return scores

    def at(self, places: Tensor) -> "Groups":
        """The groups at these indices of the flattened scores."""
        marks = (None if mark is None else mark.flatten()[places] for mark in (self.stays, self.gone))
        stays, removed = marks
        return Groups(self.scores.flatten()[places], self.sizes_at(places), stays=stays, gone=removed)

    def sizes_at(self, places: Tensor) -> Tensor:
        """The sizes, int64, of the groups at these indices of the flattened scores."""
        if isinstance(self.sizes, int):
            return torch.full_like(places, self.sizes)
        return self.sizes.expand(self.scores.shape).flatten()[places].long()

    def weights_in(self, chosen: Tensor) -> Tensor:
        """Number of weights in the chosen groups (bool, shape of scores); int64 scalar on their device."""
        if isinstance(self.sizes, int):
            return torch.count_nonzero(chosen) * self.sizes  # on a CPU twice as fast as the sum of a bool tensor
        return (chosen * self.sizes).sum()

    def alive_weights(self) -> Tensor:
        """Number of weights in all groups not yet pruned; int64 scalar on their device."""
        return self.weights_in(self.mark() > -math.inf)


def group_score(importance: Tensor, dims: tuple[int, ...], length: Tensor | int, aggregate: str) -> Tensor:
    """The score of groups, from the importance of their weights.

        l1              sum of the importance
        l2              root of the sum of squares (see `signed_norm`)
        mean            l1 / length
        rms             l2 / root of the length
        l2_over_length  l2 / length, as in the Tile-Wise authors' public pruning code (TileSparsity): of two groups with
                        equal mean importance the longer one scores lower

    For groups of equal length l1 ranks like mean, and l2 like rms and l2_over_length. mean and rms are independent of the
    length: a group of equal weights has their value as its score.

    Args:
        importance: float32, the weights of a group along `dims`; sums are taken in float64.
        dims: dimensions to reduce.
        length: weights in a group, a number or a tensor that broadcasts to the result.
        aggregate: one of the above.
    Returns:
        float32, importance's shape without `dims`.
    """
    if aggregate in ("l1", "mean"):
        total = importance.sum(dim=dims, dtype=torch.float64).float()
    else:
        total = signed_norm(importance, dims)
    if aggregate in ("l1", "l2"):
        return total
    return total / (length**0.5 if aggregate == "rms" else length)


def signed_norm(importance: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The l2 norm of the positive part minus that of the negative part.

    Movement scores have a sign: a group whose weights all shrink must not rank like one whose weights all grow.

    Args:
        importance: float32, of any scale: squares are summed in float64, where none overflow or underflow (Fisher scores of a
            trained network reach 1e-25, whose squares underflow in float32).
        dims: dimensions to reduce.
    Returns:
        float32.
    """
    if not bool((importance < 0).any()):
        return _norm(importance, dims).float()
    return (_norm(importance.clamp(min=0), dims) - _norm(importance.clamp(max=0), dims)).float()


def _norm(importance: Tensor, dims: tuple[int, ...]) -> Tensor:
    return torch.linalg.vector_norm(importance, dim=dims, dtype=torch.float64)


# Groups kept in multiples: the groups of a line, best first, split into runs that are kept or pruned together.


@dataclass(frozen=True, eq=False)
class Runs:
    """The groups of one layer as runs of `multiple` groups of a line (the last dimension of their scores).

    A run's score is the rms of its groups' scores (squares keep their sign), descending within a line: any threshold keeps a
    multiple of the line's groups, its best ones. With runs of equal size, the kept groups have the largest sum of squared scores
    for their number. The last run of a line may be shorter, so that a line keeps a multiple or all of its groups.

    Args:
        groups: one score and one size per run, [..., runs]; `multiple` is 1.
        order: int64 [..., groups of a line], the groups of a line, best first; ties go to the lower index.
        multiple: groups in a run.
    """

    groups: Groups
    order: Tensor
    multiple: int

    def survivors(self, kept: Tensor) -> Tensor:
        """bool mask of the kept groups, in the shape of their scores, from that of the kept runs [..., runs]."""
        ranked = kept.repeat_interleave(self.multiple, dim=-1)[..., : self.order.shape[-1]]
        return torch.zeros_like(ranked).scatter_(-1, self.order, ranked)


def in_runs(groups: Groups) -> Runs:
    """Split groups that are kept in multiples into runs.

    Pruned groups (-inf) do not count in the score and size of their run; one that must be kept (+inf) keeps its whole run.
    """
    marked = groups.mark()
    multiple = min(groups.multiple, marked.shape[-1])  # a line cannot keep more than all its groups
    scores, order = marked.sort(dim=-1, descending=True, stable=True)
    sizes = torch.as_tensor(groups.sizes, device=scores.device).expand(scores.shape).gather(-1, order)
    scores, alive = _cut(scores, multiple, -math.inf), _cut(scores > -math.inf, multiple, False)
    sizes = (_cut(sizes, multiple, 0) * alive).sum(dim=-1)
    runs = replace(groups, scores=_score(scores, alive), sizes=sizes, stays=None, gone=None, multiple=1)
    return Runs(runs, order, multiple)


def _cut(values: Tensor, length: int, fill: float) -> Tensor:
    """[..., n] as [..., ceil(n / length), length]; the last run is padded with `fill`."""
    runs = math.ceil(values.shape[-1] / length)
    filled = values.new_full((*values.shape[:-1], runs * length), fill)
    filled[..., : values.shape[-1]] = values
    return filled.unflatten(-1, (runs, length))


def _score(scores: Tensor, alive: Tensor) -> Tensor:
    """Scores of runs, float32 [..., runs], descending; -inf where all of a run is pruned. Arguments [..., runs, length]."""
    values = scores.double().masked_fill(~alive, 0.0)  # squares of float32 neither overflow nor underflow in float64
    mean = (values * values.abs()).sum(dim=-1) / alive.sum(dim=-1).clamp(min=1)
    rms = (mean.sign() * mean.abs().sqrt()).float().masked_fill(~alive.any(dim=-1), -math.inf)
    return rms.cummin(dim=-1).values  # rounding must not rank a run above a better one of its line


# The threshold on scores: exact, on any device, without sorting or concatenating the scores of the network.

SAMPLE = 2**16  # scores sampled to guess the threshold
SPREAD = 4.0  # width of the guess, in standard errors of the sample
SMALL_SHARE = 1 / 32  # of the weights: an interval with at most this is sorted


def find_threshold(groups: Sequence[Groups], allowed: int) -> tuple[float, int]:
    """The largest float32 t, above -inf, such that the groups with score < t have at most `allowed` weights.

    Bisects between two floats that bracket the threshold, first at guesses from a sample of the scores, in at most 32
    passes over all scores that count the weights below; a small remaining interval is sorted. A sort or quickselect of all 10^8
    scores would need their concatenation and 64-bit indices.

    Args:
        groups: one per layer, float32 scores on one device.
        allowed: at least the weights of the groups at -inf.
    Returns:
        t, and the number of weights in groups with score < t.
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
    """Ranks of two scores that probably bracket the threshold; `share`: fraction of the weights below it."""
    # An odd step, so that rows of even length are not sampled at the same few columns.
    step = sum(group.scores.numel() for group in groups) // SAMPLE | 1
    sampled = [torch.arange(0, group.scores.numel(), step, device=group.scores.device) for group in groups]
    scores, sizes = _join(groups, sampled)
    scores, order = scores.sort()
    shares = sizes[order].cumsum(0).double()
    shares /= shares[-1].clone()
    margin = SPREAD * math.sqrt(share * max(0.0, 1 - share) / len(scores)) + 1 / len(scores)
    ends = shares.new_tensor([share - margin, share + margin])
    places = torch.searchsorted(shares, ends).clamp(max=len(scores) - 1)
    lower, upper = scores[places].tolist()
    return [rank_of(upper) + 1, rank_of(lower)]  # + 1 includes ties with the upper one


def _by_sorting(groups: Sequence[Groups], allowed: int, low: int, high: int, below_low: int) -> tuple[float, int]:
    """`find_threshold` among the groups whose scores have ranks in [low, high); `below_low`: weights below them."""
    inside = []
    for group in groups:
        scores = group.mark()
        above = scores >= float_of(low)
        if high <= rank_of(math.inf):
            above &= scores < float_of(high)
        inside.append(above.flatten().nonzero().flatten())
    scores, sizes = _join(groups, inside)
    ascending, order = scores.sort()
    pruned_counts = sizes[order].cumsum(0) + below_low
    fitting = int((pruned_counts <= allowed).sum())
    # If all fit, high was never lowered: it is the end of the floats, and t is the largest.
    threshold = ascending[fitting].item() if fitting < len(ascending) else math.inf
    before = int((ascending < threshold).sum())
    return threshold, int(pruned_counts[before - 1]) if before else below_low


def _join(groups: Sequence[Groups], places: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Scores and sizes (int64) at indices of each layer's flattened scores, concatenated over layers."""
    chosen = [group.at(there) for group, there in zip(groups, places, strict=True)]
    return torch.cat([group.mark() for group in chosen]), torch.cat([group.sizes for group in chosen])


def _all_weights(groups: Groups) -> Tensor | int:
    if isinstance(groups.sizes, int):
        return groups.scores.numel() * groups.sizes
    return groups.sizes.expand(groups.scores.shape).sum()


def _weights_below(groups: Sequence[Groups], threshold: float) -> int:
    """Number of weights in groups with scores below the threshold."""
    return int(sum(group.weights_in(group.mark() < threshold) for group in groups))


def rank_of(value: float) -> int:
    """The index of a float32 in the ascending order of all float32 values, relative to 0.0."""
    bits = struct.unpack("<i", struct.pack("<f", value))[0]
    return bits if bits >= 0 else -(bits & 0x7FFFFFFF) - 1


def float_of(rank: int) -> float:
    """The inverse of `rank_of`."""
    bits = rank if rank >= 0 else (-(rank + 1)) | -0x80000000
    return struct.unpack("<f", struct.pack("<i", bits))[0]


# Members of a group up to which comparing all pairs is faster than sorting.
FEW = 16
JOINED = 2**23  # total number of groups up to which they are concatenated: 100 MB with their sizes


def select_in_layer(groups: Groups, numel: int, target: float) -> Tensor:
    """The kept groups of a single layer: bool, shape of the scores. `numel`: weights of the layer."""
    if groups.keep_of_last is not None:
        return keep_best_of_last(groups.scores, groups.keep_of_last)
    ranked = follow_guides([groups], numel, target)
    return keep_best(ranked, budget(ranked, numel, target))[0]


def follow_guides(groups: Sequence[Groups], numel: int, target: float) -> list[Groups]:
    """The groups of all layers, with scores of -inf or +inf where their guides decide. See `Guide`."""
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
    """Number of weights to prune from these groups so that at most the fraction `target` of `numel` weights is pruned."""
    pruned_count = numel - int(sum(group.alive_weights() for group in groups))
    # 0.57 * 100 is 56.99999999999999: rounding must not cost a weight
    return max(0, math.floor(target * numel + 1e-6) - pruned_count)


def keep_best_of_last(scores: Tensor, n: int) -> Tensor:
    """Keep the n best along the last dimension; ties go to the lower index, -inf is never kept."""
    if n == 1:  # one pass and one index per group, since a transposable tile has 90 candidates
        best = scores.argmax(dim=-1, keepdim=True)
    elif scores.shape[-1] <= FEW:
        return _keep_best_by_pairs(scores, n) & (scores > -math.inf)
    else:
        best = scores.sort(dim=-1, descending=True, stable=True).indices[..., :n]
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, True) & (scores > -math.inf)


def _keep_best_by_pairs(scores: Tensor, n: int) -> Tensor:
    """Compare all pairs of a group: for short groups 3 to 5 times faster than sorting, on a CPU."""
    members = [member.contiguous() for member in scores.unbind(dim=-1)]
    better = [torch.zeros_like(member, dtype=torch.uint8) for member in members]
    for i, lower in enumerate(members):
        for j in range(i + 1, len(members)):
            wins = lower >= members[j]  # ties go to the lower index
            better[j] += wins
            better[i] += wins.logical_not_()
    return torch.stack([count < n for count in better], dim=-1)


def keep_best(groups: Sequence[Groups], allowed: int) -> list[Tensor]:
    """Prune the groups with the lowest scores, ranked over all layers, up to `allowed` weights.

    Groups are pruned in order of ascending score and, among equal scores, descending index, later layers first, up to the
    first group that would exceed `allowed`. Groups kept in multiples are ranked and pruned as runs (see `Runs`).

    Args:
        groups: one per layer, float32 scores on one device.
        allowed: largest number of weights to prune, at least 0.
    Returns:
        per layer, bool in the shape of its scores, True = keep.
    """
    if not groups:
        return []
    if any(group.multiple > 1 for group in groups):
        runs = [in_runs(group) for group in groups]
        keeps = keep_best([run.groups for run in runs], allowed)
        return [run.survivors(survive) for run, survive in zip(runs, keeps, strict=True)]
    if len(groups) > 1 and sum(group.scores.numel() for group in groups) <= JOINED:
        return _keep_best_concatenated(groups, allowed)
    pruned_count = int(sum(group.weights_in(group.mark() == -math.inf) for group in groups))
    threshold, below = find_threshold(groups, pruned_count + allowed)
    keeps = [(group.mark() >= threshold).contiguous() for group in groups]
    if threshold == math.inf:  # only groups at +inf are kept
        return keeps
    left = pruned_count + allowed - below
    for group, survives in zip(reversed(groups), reversed(keeps), strict=True):
        if left == 0:  # true at once if no scores tie
            break
        ties = (group.mark() == threshold).flatten().nonzero().flatten().flip(0)
        spent = group.sizes_at(ties).cumsum(0)
        fitting = int((spent <= left).sum())
        survives.view(-1)[ties[:fitting]] = False
        if fitting < len(ties):
            break
        left -= int(spent[-1]) if fitting else 0
    return keeps


def _keep_best_concatenated(groups: Sequence[Groups], allowed: int) -> list[Tensor]:
    """`keep_best` with all layers concatenated: with few groups, a GPU is limited by launches."""
    sizes = [torch.as_tensor(group.sizes, device=group.scores.device).expand(group.scores.shape) for group in groups]
    joined = Groups(
        torch.cat([group.mark().flatten() for group in groups]), torch.cat([size.flatten() for size in sizes])
    )
    (keeps,) = keep_best([joined], allowed)
    parts = keeps.split([group.scores.numel() for group in groups])
    return [part.view(group.scores.shape) for part, group in zip(parts, groups, strict=True)]
