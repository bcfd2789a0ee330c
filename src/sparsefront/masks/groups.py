"""What a pattern's step gives to an allocation: one score and one size per group of weights."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


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
