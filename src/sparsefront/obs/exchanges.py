"""Better masks for weights that stay as they are: one kept weight for one pruned one of the same row, again and again.

For a row w of a layer Y = X W^T with the Gram matrix G = X^T X, pruning costs L = r^T G r with r the pruned part of w. Let
c = G r. Pruning a kept weight p and bringing back a pruned weight u changes it by

    2 w_p c_p + w_p^2 G_pp  -  2 w_u c_u + w_u^2 G_uu  -  2 w_p w_u G_pu

so that G and c tell the best of all exchanges exactly, and c follows each of them by two columns of G.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

# Of a row's own size: what a gain has to exceed, so that rounding cannot exchange two weights back and forth.
SMALLEST_GAIN = 1e-9
# Weights of either kind that are paired in a long row: first few, and more only where the bound on the others asks for it.
CANDIDATES = (64, 512)
# Pairs of weights in memory at once, 8 bytes each, a few times over.
PAIRS = 2**24


@dataclass(frozen=True)
class Exchanged:
    """Args:
    mask: bool [N, K], True = keep.
    exchanges: exchanges of all rows together.
    error_before, error_after: sum of L over the rows.
    """

    mask: Tensor
    exchanges: int
    error_before: float
    error_after: float


@torch.no_grad()
def exchange_weights(
    weight: Tensor,
    mask: Tensor,
    gram: Tensor,
    *,
    span: int | None = None,
    allowed: Tensor | None = None,
    limit: int | None = None,
) -> Exchanged:
    """The mask that is left when no single exchange within a span of a row lowers the error any more.

    Each row takes its best exchange at a time, in float64. Every span keeps as many weights as before.

    Args:
        weight: [N, K], unpruned, any float dtype.
        mask: bool [N, K], where it starts.
        gram: [K, K], symmetric, positive semidefinite, up to a factor.
        span: neighboring columns within which weights change places; it divides K. None = the whole row.
        allowed: bool [N, K]: nothing else is brought back; None = everything may be.
        limit: most exchanges of a row; None = as many as help.
    Source: Zimmer et al., "SparseSwaps: Tractable LLM Pruning Mask Refinement at Scale", 2025, the 1-swap algorithm. The
        bounds by which most pairs of a long row need no look are ours; they change no result.
    """
    weight, gram = weight.double(), gram.double()
    mask, pairs = mask.clone(), _Pairs(gram, span)
    addable = torch.ones_like(mask) if allowed is None else allowed
    pruned = weight.masked_fill(mask, 0.0)
    correlation = pruned @ gram  # c of every row, [N, K]
    before = float((pruned * correlation).sum())
    least = SMALLEST_GAIN * (weight.square() @ gram.diagonal())
    active, exchanges, taken = torch.arange(len(weight), device=weight.device), 0, 0
    while len(active) and (limit is None or taken < limit):
        single, square = 2 * weight[active] * correlation[active], weight[active].square() * gram.diagonal()
        prune = (square + single).masked_fill(~mask[active], torch.inf)
        restore = (square - single).masked_fill(mask[active] | ~addable[active], torch.inf)
        change, out, back = pairs.best(weight[active], prune, restore, -least[active])
        better = change < -least[active]
        active, out, back = active[better], out[better], back[better]
        mask[active, out], mask[active, back] = False, True
        correlation[active] += weight[active, out, None] * gram[out] - weight[active, back, None] * gram[back]
        exchanges, taken = exchanges + len(active), taken + 1
    pruned = weight.masked_fill(mask, 0.0)
    return Exchanged(mask, exchanges, before, float((pruned * (pruned @ gram)).sum()))


Exchange = tuple[Tensor, Tensor, Tensor]
"""Of each row: change of L, column to prune, column to bring back."""


class _Pairs:
    """Finds the best exchange of rows in one layer.

    Args:
        gram, span: see `exchange_weights`.
    """

    def __init__(self, gram: Tensor, span: int | None) -> None:
        self.gram, self.span = gram, span
        size = gram.diagonal().sqrt()
        cosines = (gram / (size[:, None] * size)).nan_to_num(0.0).abs().fill_diagonal_(0.0)
        # |G_pu| <= coherence_p sqrt(G_pp G_uu) for every other u; a little more, for rounding.
        self.coherence = cosines.amax(dim=1).clamp(max=1.0) * (1 + 1e-9)

    def best(self, weight: Tensor, prune: Tensor, restore: Tensor, wanted: Tensor) -> Exchange:
        """The best exchange of each row.

        Args:
            weight: [rows, K].
            prune, restore: [rows, K], the change of L by one weight alone; infinite where it cannot be.
            wanted: [rows], changes that are larger need not be told apart.
        """
        rows, columns = weight.shape
        if self.span is not None and self.span < columns:
            return _in_parts(
                lambda part: self._in_windows(weight[part], prune[part], restore[part]), rows, columns * self.span
            )
        size = weight.abs() * self.gram.diagonal().sqrt()
        bounds = [
            alone + other.amin(dim=1, keepdim=True) - 2 * self.coherence * size * _largest(size, other)
            for alone, other in ((prune, restore), (restore, prune))
        ]
        most = [max(1, int(alone.isfinite().sum(dim=1).amax())) for alone in (prune, restore)]
        change, out, back = (torch.empty(rows, dtype=kind, device=weight.device) for kind in (size.dtype, int, int))
        unsure = torch.arange(rows, device=weight.device)
        for level in (*CANDIDATES, columns):
            counts = [min(level, limit) for limit in most]
            outs, backs = (_lowest(bound[unsure], count) for bound, count in zip(bounds, counts, strict=True))

            def among(part: Tensor, rows: Tensor = unsure, outs: Tensor = outs, backs: Tensor = backs) -> Exchange:
                of = rows[part]
                return self._among(weight[of], prune[of], restore[of], outs[part], backs[part])

            change[unsure], out[unsure], back[unsure] = _in_parts(among, len(unsure), counts[0] * counts[1])
            others = torch.stack([_next(bound[unsure], count) for bound, count in zip(bounds, counts, strict=True)])
            unsure = unsure[others.amin(dim=0) < torch.minimum(change, wanted)[unsure]]
            if not len(unsure):
                break
        return change, out, back

    def _in_windows(self, weight: Tensor, prune: Tensor, restore: Tensor) -> Exchange:
        """The best exchange within a span of columns, of each row."""
        rows, columns = weight.shape
        windows = columns // self.span
        places = torch.arange(columns, device=weight.device).reshape(windows, self.span)
        shared = self.gram[places[:, :, None], places[:, None, :]]  # [windows, span, span]
        weight, prune, restore = (part.reshape(rows, windows, self.span) for part in (weight, prune, restore))
        change = prune[..., :, None] + restore[..., None, :] - 2 * weight[..., :, None] * weight[..., None, :] * shared
        best, place = change.flatten(1).min(dim=1)
        start, pair = place // self.span**2 * self.span, place % self.span**2
        return best, start + pair // self.span, start + pair % self.span

    def _among(self, weight: Tensor, prune: Tensor, restore: Tensor, outs: Tensor, backs: Tensor) -> Exchange:
        """The best exchange of each row between two lists of columns [rows, count]."""
        shared = self.gram[outs[:, :, None], backs[:, None, :]]
        shared *= 2 * weight.gather(1, outs)[:, :, None] * weight.gather(1, backs)[:, None, :]
        change = prune.gather(1, outs)[:, :, None] + restore.gather(1, backs)[:, None, :] - shared
        best, place = change.flatten(1).min(dim=1)
        out, back = place // backs.shape[1], place % backs.shape[1]
        return best, outs.gather(1, out[:, None])[:, 0], backs.gather(1, back[:, None])[:, 0]


def _in_parts(found, rows: int, pairs: int) -> Exchange:
    """What `found` gives for all rows, of as many at a time as memory takes; `pairs`: of a row."""
    parts = torch.arange(rows).split(max(1, PAIRS // pairs))
    change, out, back = zip(*(found(part) for part in parts), strict=True)
    return torch.cat(change), torch.cat(out), torch.cat(back)


def _largest(size: Tensor, change: Tensor) -> Tensor:
    """The largest |w| sqrt(G) of the weights that may change, [rows, 1]."""
    return size.masked_fill(change.isinf(), 0.0).amax(dim=1, keepdim=True)


def _lowest(bound: Tensor, count: int) -> Tensor:
    """The columns of the lowest bounds, [rows, count], in the order of the columns."""
    return bound.topk(count, dim=1, largest=False).indices.sort(dim=1).values


def _next(bound: Tensor, count: int) -> Tensor:
    """The lowest bound but for the `count` lowest, [rows]; infinite where there is none."""
    if count == bound.shape[1]:
        return torch.full_like(bound[:, 0], torch.inf)
    return bound.kthvalue(count + 1, dim=1).values
