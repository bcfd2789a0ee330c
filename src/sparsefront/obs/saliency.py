"""How much the output error grows when a single weight goes and the others make up for it."""

from torch import Tensor


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
