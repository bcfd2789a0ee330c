"""Groups of weights: their scores and sizes, the runs that are kept together, and where they begin."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

# Where the groups of a mask begin, for pictures of it.


@dataclass(frozen=True)
class Boundaries:
    """Lines between the groups of one layer's mask [N, K], in the order in which it obeys its pattern.

    Each number is the first row or column of a group, ascending; the first group's, 0, is left out.

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
        block: (outputs, inputs) of a group; a side of 1 has no lines, for they would cover the weights.
        m: groups along K in a window; None = there are no windows.
    """
    rows, columns = (range(side, count, side) if side > 1 else () for count, side in zip(shape, block, strict=True))
    windows = () if m is None else range(block[1] * m, shape[1], block[1] * m)
    return Boundaries(rows, columns, windows)


@dataclass(frozen=True, eq=False)
class Guide:
    """Another ranking of the same groups, which decides a part of a step before their scores do.

    Args:
        scores: as in `Groups`, and -inf and +inf where it has them.
        share: of the weights that the step takes, this share goes from the lowest ranked on; of those that it leaves, this
            share stays from the highest ranked on. In [0, 1].
        start: the target of the step before, which tells how much the step takes.
    """

    scores: Tensor
    share: float
    start: float


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups of one layer that a step keeps or prunes.

    Args:
        scores: float32 of any shape, one per group, larger = more worth keeping. -inf marks a group that is already
            gone (never kept, counts for nothing), +inf one that must stay.
        sizes: weights that go when the group goes, counting only those still alive: one number for all groups, or an
            integer tensor that broadcasts to the shape of scores.
        keep_of_last: set where the distribution is balanced: exactly this many survive along the last dimension of
            scores, and no allocation is asked.
        guide: another ranking that comes before the scores; None where there is none.
        stays, gone: bool, shape of scores: +inf and -inf where True, whatever the scores say. Where single weights are
            groups, this spares a marked copy of the importance of the whole network.
        multiple: along the last dimension of scores, the survivors are a multiple of this many, or all of them.
    """

    scores: Tensor
    sizes: Tensor | int
    keep_of_last: int | None = None
    guide: Guide | None = None
    stays: Tensor | None = None
    gone: Tensor | None = None
    multiple: int = 1

    def marked(self) -> Tensor:
        """The scores with what stays and what is gone."""
        scores = self.scores
        for places, value in ((self.gone, -math.inf), (self.stays, math.inf)):
            scores = scores if places is None else scores.masked_fill(places, value)
        return scores

    def at(self, places: Tensor) -> "Groups":
        """The groups at these places of the flattened scores."""
        marks = (None if mark is None else mark.flatten()[places] for mark in (self.stays, self.gone))
        stays, gone = marks
        return Groups(self.scores.flatten()[places], self.sizes_at(places), stays=stays, gone=gone)

    def sizes_at(self, places: Tensor) -> Tensor:
        """The sizes of the groups at these places of the flattened scores; int64."""
        if isinstance(self.sizes, int):
            return torch.full_like(places, self.sizes)
        return self.sizes.expand(self.scores.shape).flatten()[places].long()

    def weights_in(self, chosen: Tensor) -> Tensor:
        """How many weights the chosen groups hold (chosen: bool, shape of scores); int64 scalar on their device."""
        if isinstance(self.sizes, int):
            return torch.count_nonzero(chosen) * self.sizes  # on a CPU twice as fast as the sum of a bool tensor
        return (chosen * self.sizes).sum()

    def alive_weights(self) -> Tensor:
        """How many weights all groups together could still give up; int64 scalar on their device."""
        return self.weights_in(self.marked() > -math.inf)


def group_score(importance: Tensor, dims: tuple[int, ...], length: Tensor | int, aggregate: str) -> Tensor:
    """The score of groups, from the importance of their weights.

        l1              sum of the importance
        l2              root of the sum of squares (see `signed_norm`)
        mean            l1 / length
        rms             l2 / root of the length
        l2_over_length  l2 / length, as in the Tile-Wise authors' public pruning code (TileSparsity): of two groups with
                        equal mean importance the longer one scores lower

    Of groups of one length l1 ranks as mean, and l2 as rms and l2_over_length. mean and rms are corrected for the length: a
    group of weights of one size scores that size, however long it is.

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
    """The l2 norm of what is positive less that of what is negative; the plain l2 norm where nothing is negative.

    Movement scores have a sign: a group whose weights all shrink must not rank like one whose weights all grow.

    Args:
        importance: float32, of any scale: squares are summed in float64, where none overflows or vanishes (Fisher scores of
            a trained network reach 1e-25, whose squares float32 takes for zero).
        dims: dimensions to reduce.
    Returns:
        float32.
    """
    if not bool((importance < 0).any()):
        return _norm(importance, dims).float()
    return (_norm(importance.clamp(min=0), dims) - _norm(importance.clamp(max=0), dims)).float()


def _norm(importance: Tensor, dims: tuple[int, ...]) -> Tensor:
    return torch.linalg.vector_norm(importance, dim=dims, dtype=torch.float64)


# Groups that survive in multiples: the groups of a line, best first, cut into runs that are kept or pruned together.


@dataclass(frozen=True, eq=False)
class Runs:
    """The groups of one layer as runs of `multiple` groups of a line (the last dimension of their scores).

    A run scores the rms of its groups' scores (squares keep their sign), and a line's runs descend: whichever of them fall
    below a threshold, a multiple of the line's groups is left, its best ones. Of runs of one size, those that stay hold the
    greatest sum of squared scores that so many groups can have. Where a line does not divide, its last run is shorter, so
    that a line keeps a multiple or all that it has.

    Args:
        groups: one score and one size per run, [..., runs]; `multiple` is 1.
        order: int64 [..., groups of a line], the groups of a line from the best on; ties go to the lower index.
        multiple: groups in a run.
    """

    groups: Groups
    order: Tensor
    multiple: int

    def survivors(self, kept: Tensor) -> Tensor:
        """Which groups survive, bool in the shape of their scores, from which runs do, bool [..., runs]."""
        ranked = kept.repeat_interleave(self.multiple, dim=-1)[..., : self.order.shape[-1]]
        return torch.zeros_like(ranked).scatter_(-1, self.order, ranked)


def in_runs(groups: Groups) -> Runs:
    """The runs of groups that survive in multiples.

    What is gone (-inf) does not count in the score and the size of its run; what must stay (+inf) holds its whole run.
    """
    marked = groups.marked()
    multiple = min(groups.multiple, marked.shape[-1])  # a line may keep all that it has, and no more
    scores, order = marked.sort(dim=-1, descending=True, stable=True)
    sizes = torch.as_tensor(groups.sizes, device=scores.device).expand(scores.shape).gather(-1, order)
    scores, alive = _cut(scores, multiple, -math.inf), _cut(scores > -math.inf, multiple, False)
    sizes = (_cut(sizes, multiple, 0) * alive).sum(dim=-1)
    runs = replace(groups, scores=_score(scores, alive), sizes=sizes, stays=None, gone=None, multiple=1)
    return Runs(runs, order, multiple)


def _cut(values: Tensor, length: int, fill: float) -> Tensor:
    """[..., n] as [..., ceil(n / length), length]; the last run is filled up."""
    runs = math.ceil(values.shape[-1] / length)
    filled = values.new_full((*values.shape[:-1], runs * length), fill)
    filled[..., : values.shape[-1]] = values
    return filled.unflatten(-1, (runs, length))


def _score(scores: Tensor, alive: Tensor) -> Tensor:
    """[..., runs] float32, descending along the runs; -inf where nothing of a run is alive. Both [..., runs, length]."""
    values = scores.double().masked_fill(~alive, 0.0)  # squares of float32 neither overflow nor vanish in float64
    mean = (values * values.abs()).sum(dim=-1) / alive.sum(dim=-1).clamp(min=1)
    rms = (mean.sign() * mean.abs().sqrt()).float().masked_fill(~alive.any(dim=-1), -math.inf)
    return rms.cummin(dim=-1).values  # the last digit of a sum must not lift a run above a better one of its line
