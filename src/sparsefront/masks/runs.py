"""Groups that survive in multiples: the groups of a line, best first, cut into runs that are kept or pruned together."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparsefront.masks.groups import Groups


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
