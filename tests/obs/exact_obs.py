"""The Optimal Brain Surgeon without any approximation, one weight after the other: for small layers and for tests."""

import torch
from torch import Tensor


def exact_update(weight: Tensor, hessian: Tensor, mask: Tensor) -> Tensor:
    """The weights that lose the least when exactly those outside the mask go.

    Removes a row's pruned weights one at a time, each time moving all that are left, and takes the removed input out of
    the inverse Hessian. The result does not depend on the order: it is the least-squares solution on the kept inputs.

    Args:
        weight: [N, K].
        hessian: [K, K], positive definite, same dtype.
        mask: bool [N, K], True = keep.
    Returns:
        [N, K], zero outside the mask.
    Cost: N * K inverse Hessians of [K, K] are touched, O(N K^3).
    Source: Hassibi and Stork, "Optimal Brain Surgeon", 1993; the downdate of H^-1 as in Frantar and Alistarh, "Optimal
        Brain Compression", 2022, lemma 1.
    """
    inverse = torch.linalg.inv(hessian)
    return torch.stack([_row_without(row, inverse, (~kept).nonzero().flatten()) for row, kept in zip(weight, mask)])


def exact_prune(weight: Tensor, hessian: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """Greedy exact OBS: each row loses, one at a time, the weight whose loss costs least at that moment.

    Args:
        weight: [N, K].
        hessian: [K, K], positive definite, same dtype.
        keep: weights that stay in each row.
    Returns:
        weights [N, K] and mask bool [N, K]; among equals the higher index goes first.
    """
    inverse = torch.linalg.inv(hessian)
    pruned = [_greedy_row(row, inverse, keep) for row in weight]
    return torch.stack([row for row, _ in pruned]), torch.stack([kept for _, kept in pruned])


def _row_without(row: Tensor, inverse: Tensor, removed: Tensor) -> Tensor:
    row, inverse = row.clone(), inverse.clone()
    for column in removed.tolist():
        _remove(row, inverse, column)
    row[removed] = 0  # exactly, where rounding left almost zero
    return row


def _greedy_row(row: Tensor, inverse: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    row, inverse = row.clone(), inverse.clone()
    kept = torch.ones_like(row, dtype=torch.bool)
    for _ in range(len(row) - keep):
        left = kept.nonzero().flatten()
        costs = row[left].square() / inverse.diagonal()[left]
        column = int(left[(costs == costs.min()).nonzero()[-1]])
        _remove(row, inverse, column)
        kept[column] = False
    return row.masked_fill(~kept, 0.0), kept


def _remove(row: Tensor, inverse: Tensor, column: int) -> None:
    """Take one input away, in place: the row makes up for it, and the inverse becomes that of H without it."""
    direction, pivot = inverse[column].clone(), inverse[column, column].clone()
    row -= row[column] / pivot * direction
    inverse -= torch.outer(direction, direction) / pivot
    # What is left of the removed input is rounding; it must not come back through later steps.
    inverse[column], inverse[:, column], row[column] = 0, 0, 0
