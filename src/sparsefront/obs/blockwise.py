"""SparseGPT's sweep: prune a matrix column by column, each column's error made up for by the columns after it."""

import torch
from torch import Tensor

from sparsefront.obs.hessian import saliency
from sparsefront.obs.selection import Selection


@torch.no_grad()
def sweep(
    weight: Tensor, factor: Tensor, selection: Selection, *, dead: Tensor | None = None, block: int = 128
) -> tuple[Tensor, Tensor]:
    """The pruned matrix with its surviving weights updated, and its mask.

    From left to right every column's pruned weights become zero, and the columns to its right move so that the layer's
    output changes least: all rows share one factor because the inputs to the right are the same for each. Columns to the
    left stay as they are, which is the approximation: exact OBS would move them too. The result is exact for a row whose
    pruned weights all lie left of its kept ones.

    Inside a block of columns the update is applied at once, to the columns after the block once the block is done: one
    matrix product instead of `block` passes over the whole matrix, with the same result.

    Args:
        weight: [N, K], float32 or float64; left as it is.
        factor: [K, K], `inverse_factor` of the damped Hessian, same dtype.
        selection: which weights are kept.
        dead: bool [K], inputs that were always zero: their weights cost nothing where the selection chooses.
        block: columns of a block; rounded to a multiple of the selection's span, so that no window is cut.
    Returns:
        weights [N, K], exactly zero where pruned, and the mask, bool [N, K], True = keep.
    Source: Frantar and Alistarh, "SparseGPT: Massive Language Models Can Be Accurately Pruned in One-Shot", 2023,
        algorithm 1. Departure: its code zeroes the weights of dead inputs; here those that the mask keeps stay.
    """
    weight, kept = weight.clone(), torch.empty_like(weight, dtype=torch.bool)
    width = weight.shape[1]
    dead = torch.zeros(width, dtype=torch.bool, device=weight.device) if dead is None else dead
    step = block if selection.span is None else max(selection.span, block - block % selection.span)
    for start in range(0, width, step):
        inside, after = slice(start, min(start + step, width)), slice(start + step, width)
        errors = _sweep_block(weight, kept, factor, selection, dead, inside)
        weight[:, after] -= errors @ factor[inside, after]
    return weight, kept


def _sweep_block(
    weight: Tensor, kept: Tensor, factor: Tensor, selection: Selection, dead: Tensor, inside: slice
) -> Tensor:
    """Sweep over the columns `inside`, in place; returns every column's error in units of its pivot, [N, columns]."""
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
