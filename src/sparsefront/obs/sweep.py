"""SparseGPT's sweep: the Hessian of a layer's squared output error, and column-by-column pruning with weight updates."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Protocol

import torch
from pydantic import Field
from torch import Tensor

from sparsefront.masks.groups import keep_best_of_last

# The Hessian of a layer's squared output error: computed from inputs, damped, inverted, factorized.

Damping = Annotated[float, Field(gt=0, le=1, description="a fraction of the mean diagonal of the Hessian")]


def input_hessian(inputs: Tensor) -> Tensor:
    """2 X^T X, [K, K], of inputs X [rows, K]; additive over rows, batches and ranks."""
    return 2 * (inputs.t() @ inputs)


def damp_hessian(hessian: Tensor, damping: float, layer: str = "the layer") -> tuple[Tensor, Tensor]:
    """Return an invertible Hessian and the dead inputs.

    An input that was zero in every row (dead) has an empty row and column. Its diagonal is set to the mean of the others, so
    that its weights neither change nor affect others.

    Args:
        hessian: [K, K], symmetric, at least positive semidefinite; not modified.
        damping: added to every diagonal element, as a fraction of the mean over the inputs that are not dead.
    Returns:
        [K, K] of the same dtype, and bool [K], True = dead.
    Raises:
        ValueError: inputs were not finite; names the layer.
    Source: Frantar and Alistarh, "SparseGPT", 2023, section 4.1 (1 % of the mean); its code sets the diagonal of dead
        inputs to 1 before it takes the mean, which depends on the scale of the inputs.
    """
    diagonal = hessian.diagonal()
    if not bool(diagonal.isfinite().all()):  # the diagonal shows every non-finite input, because it holds squares
        raise ValueError(f"{layer}: its inputs, or the sums of their squares, are not finite")
    dead = diagonal == 0
    mean = diagonal.sum() / (~dead).sum().clamp(min=1)
    mean = torch.where(mean > 0, mean, torch.ones_like(mean))  # if every input is dead
    damped = hessian.clone()
    damped.diagonal().add_(damping * mean + mean * dead)
    return damped, dead


def inverse(hessian: Tensor, layer: str = "the layer") -> Tensor:
    """H^-1 [K, K] of a positive definite H, via its Cholesky factor.

    Raises:
        ValueError: H is not positive definite in its precision; names the layer and a remedy.
    """
    factor, failed = torch.linalg.cholesky_ex(hessian)
    if int(failed):
        raise _not_positive_definite(layer)
    return torch.cholesky_inverse(factor)


def inverse_factor(hessian: Tensor, layer: str = "the layer") -> Tensor:
    """The upper triangular U [K, K] with U^T U = H^-1.

    Row j of U, divided by U_jj, is the first row of the inverse of H without the inputs before j, divided by its own
    first element. This is all that a sweep over the columns needs, and is shared by all rows of the weight.

    Raises:
        ValueError: as in `inverse`.
    Source: Frantar and Alistarh, "SparseGPT", 2023, section 3.3 and algorithm 1.
    """
    factor, failed = torch.linalg.cholesky_ex(inverse(hessian, layer), upper=True)
    if int(failed):
        raise _not_positive_definite(layer)
    return factor


def _not_positive_definite(layer: str) -> ValueError:
    return ValueError(
        f"{layer}: the Hessian of its inputs cannot be inverted; raise the damping, or read more calibration batches"
    )


def saliency(weight: Tensor, inverse_diagonal: Tensor, dead: Tensor | None = None) -> Tensor:
    """w_ij^2 / [H^-1]_jj: twice the increase of the error.

    Args:
        weight: [N, K].
        inverse_diagonal: [K], the diagonal of H^-1, positive.
        dead: bool [K], inputs that were always zero: pruning their weights costs nothing.
    Returns:
        [N, K], not negative.
    Source: Hassibi and Stork, "Optimal Brain Surgeon", 1993, eq. 5.
    """
    scores = weight.square() / inverse_diagonal
    return scores if dead is None else scores.masked_fill_(dead, 0.0)


# Which weights the sweep keeps when it reaches their columns: given beforehand, or selected by their current cost.


class Selection(Protocol):
    """Decides for `span` neighboring columns at once, when the sweep reaches the first of them."""

    @property
    def span(self) -> int | None:
        """Number of columns decided together; None = all columns of a sweep block."""
        ...

    def keep(self, saliency: Tensor, first: int) -> Tensor:
        """Bool [N, columns], True = keep, from the saliency [N, columns] of the columns from `first` on."""
        ...


@dataclass(frozen=True, eq=False)
class Given:
    """Keep a fixed mask."""

    mask: Tensor  # bool [N, K]
    span: int | None = None

    def keep(self, saliency: Tensor, first: int) -> Tensor:
        return self.mask[:, first : first + saliency.shape[1]]


@dataclass(frozen=True, eq=False)
class InWindows:
    """Keep the most costly weights of every m consecutive ones, window by window.

    Args:
        counts: int [N, K / m]: weights kept in each window.
        m: window; divides K.
        allowed: bool [N, K]: weights that may be kept; at least the count of each window.
    Source: Frantar and Alistarh, "SparseGPT", 2023, section 3.4 (n:m, with n the zeros there).
    """

    counts: Tensor
    m: int
    allowed: Tensor

    @property
    def span(self) -> int:
        return self.m

    def keep(self, saliency: Tensor, first: int) -> Tensor:
        last = first + saliency.shape[1]
        allowed = self.allowed[:, first:last]
        costs = saliency.masked_fill(~allowed, -torch.inf).unflatten(1, (-1, self.m))
        order = costs.sort(dim=2, descending=True, stable=True).indices
        best = torch.arange(self.m, device=costs.device) < self.counts[:, first // self.m : last // self.m, None]
        return torch.zeros_like(best.expand_as(costs)).scatter_(2, order, best).flatten(1) & allowed


@dataclass(frozen=True, eq=False)
class InBlocks:
    """Keep the most costly weights of a whole block of columns, over all rows; every block keeps the same share.

    The share is relative to the allowed weights, so that it can always be met; the counts add up to `keeping`.

    Args:
        keeping: number of weights kept in the whole matrix.
        allowed: bool [N, K]: weights that may be kept; at least `keeping`.
    Source: Frantar and Alistarh, "SparseGPT", 2023, section 3.3 (adaptive mask selection, blocks of 128 columns).
    """

    keeping: int
    allowed: Tensor
    span: int | None = None

    @cached_property
    def _kept_until(self) -> list[int]:
        """Number of weights kept in all columns before each of K + 1 columns; the last is `keeping`."""
        allowed_until = [0, *self.allowed.sum(dim=0).cumsum(dim=0).tolist()]
        return [self.keeping * allowed // max(1, allowed_until[-1]) for allowed in allowed_until]

    def keep(self, saliency: Tensor, first: int) -> Tensor:
        columns = saliency.shape[1]
        allowed = self.allowed[:, first : first + columns]
        count = self._kept_until[first + columns] - self._kept_until[first]
        return keep_best_of_last(saliency.masked_fill(~allowed, -torch.inf).flatten(), count).reshape(allowed.shape)


@torch.no_grad()
def sweep(
    weight: Tensor, factor: Tensor, selection: Selection, *, dead: Tensor | None = None, block: int = 128
) -> tuple[Tensor, Tensor]:
    """Prune a matrix and update its surviving weights; returns the new matrix and its mask.

    From left to right, pruned weights of each column become zero, and the columns to its right are updated to minimize the
    change of the layer's output. All rows share one factor because the inputs to the right are the same for each. Columns to
    the left do not change, which is the approximation: exact OBS would update them too. The result is exact for a row whose
    pruned weights all lie to the left of its kept ones.

    Within a block of columns the update is immediate; columns after the block are updated once per block: one matrix product
    instead of `block` passes over the whole matrix, with the same result.

    Args:
        weight: [N, K], float32 or float64; not modified.
        factor: [K, K], `inverse_factor` of the damped Hessian, same dtype.
        selection: which weights are kept.
        dead: bool [K], inputs that were always zero: the selection may prune their weights at no cost.
        block: columns per block; rounded to a multiple of the selection's span, so that no window is split.
    Returns:
        weights [N, K], exactly zero where pruned, and the mask, bool [N, K], True = keep.
    Source: Frantar and Alistarh, "SparseGPT: Massive Language Models Can Be Accurately Pruned in One-Shot", 2023,
            algorithm 1. Departure: its code zeroes all weights of dead inputs; here those that the mask keeps stay.
    """
    weight, mask = weight.clone(), torch.empty_like(weight, dtype=torch.bool)
    width = weight.shape[1]
    dead = torch.zeros(width, dtype=torch.bool, device=weight.device) if dead is None else dead
    step = block if selection.span is None else max(selection.span, block - block % selection.span)
    for start in range(0, width, step):
        inside, after = slice(start, min(start + step, width)), slice(start + step, width)
        errors = _sweep_block(weight, mask, factor, selection, dead, inside)
        weight[:, after] -= errors @ factor[inside, after]
    return weight, mask


def _sweep_block(
    weight: Tensor, kept: Tensor, factor: Tensor, selection: Selection, dead: Tensor, inside: slice
) -> Tensor:
    """Sweep over the columns `inside`, in place; returns each column's error in units of its pivot, [N, columns]."""
    panel, panel_kept, panel_factor = weight[:, inside], kept[:, inside], factor[inside, inside]
    pivots, panel_dead = panel_factor.diagonal(), dead[inside]
    columns = panel.shape[1]
    span = selection.span or columns
    errors = torch.zeros_like(panel)
    for column in range(columns):
        if column % span == 0:
            reached = slice(column, column + span)
            costs = saliency(panel[:, reached], pivots[reached].square(), panel_dead[reached])
            panel_kept[:, reached] = selection.keep(costs, inside.start + column)
        pruned = ~panel_kept[:, column]
        errors[:, column] = panel[:, column] * pruned / pivots[column]
        panel[:, column + 1 :].addr_(errors[:, column], panel_factor[column, column + 1 :], alpha=-1)
        panel[:, column].masked_fill_(pruned, 0.0)
    return errors
