"""The Hessian of a layer's squared output error: from inputs, damped, inverted, factored."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

Damping = Annotated[float, Field(gt=0, le=1, description="a fraction of the mean diagonal of the Hessian")]


def input_hessian(inputs: Tensor) -> Tensor:
    """2 X^T X, [K, K], of inputs X [rows, K]; it adds up over rows, batches and ranks."""
    return 2 * (inputs.t() @ inputs)


def damped_hessian(hessian: Tensor, damping: float, layer: str = "the layer") -> tuple[Tensor, Tensor]:
    """A Hessian that can be inverted, and the inputs that it says nothing about.

    An input that was zero in every row (a dead one) has an empty row and column: its diagonal is set to the mean of the
    others, so that its weights neither change nor are changed by any other.

    Args:
        hessian: [K, K], symmetric, at least positive semidefinite; left as it is.
        damping: added to every diagonal element, as a fraction of the mean over the inputs that are not dead.
    Returns:
        [K, K] of the same dtype, and bool [K], True = dead.
    Raises:
        ValueError: inputs that were not finite; names the layer.
    Source: Frantar and Alistarh, "SparseGPT", 2023, section 4.1 (1 % of the mean); its code sets the diagonal of dead
        inputs to 1 before it takes the mean, which depends on the scale of the inputs.
    """
    diagonal = hessian.diagonal()
    if not bool(diagonal.isfinite().all()):  # the square of anything that is not finite is on the diagonal
        raise ValueError(f"{layer}: its inputs, or the sums of their squares, are not finite")
    dead = diagonal == 0
    mean = diagonal.sum() / (~dead).sum().clamp(min=1)
    mean = torch.where(mean > 0, mean, torch.ones_like(mean))  # every input is dead
    damped = hessian.clone()
    damped.diagonal().add_(damping * mean + mean * dead)
    return damped, dead


def inverse(hessian: Tensor, layer: str = "the layer") -> Tensor:
    """H^-1 [K, K] of a positive definite H, through its Cholesky factor.

    Raises:
        ValueError: H is not positive definite in its precision; names the layer and what helps.
    """
    factor, failed = torch.linalg.cholesky_ex(hessian)
    if int(failed):
        raise _not_positive_definite(layer)
    return torch.cholesky_inverse(factor)


def inverse_factor(hessian: Tensor, layer: str = "the layer") -> Tensor:
    """The upper triangular U [K, K] with U^T U = H^-1.

    Row j of U, divided by U_jj, is the first row of the inverse of H without the inputs before j, divided by its own
    first element: all that a sweep over the columns needs, and computed once for all rows of the weight.

    Raises:
        ValueError: as `inverse`.
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
    """w_ij^2 / [H^-1]_jj: twice the growth of the error.

    Args:
        weight: [N, K].
        inverse_diagonal: [K], the diagonal of H^-1, positive.
        dead: bool [K], inputs that were always zero: their weights cost nothing.
    Returns:
        [N, K], not negative.
    Source: Hassibi and Stork, "Optimal Brain Surgeon", 1993, eq. 5.
    """
    scores = weight.square() / inverse_diagonal
    return scores if dead is None else scores.masked_fill_(dead, 0.0)
