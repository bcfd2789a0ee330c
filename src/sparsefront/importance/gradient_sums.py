"""Sums over calibration batches of something made of a weight and its gradient."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from sparsefront.importance.base import Calibration, float_matrices
from sparsefront.masks.weight_view import as_matrix


@torch.no_grad()
def sum_over_gradients(
    weights: Mapping[str, Tensor],
    calibration: Calibration,
    batches: int,
    term: Callable[[Tensor, Tensor], Tensor],
) -> dict[str, Tensor]:
    """Per layer the sum of `term(weight, gradient)` over the batches of all ranks.

    Args:
        weights: layer name -> weight, any float dtype.
        batches: how many, all ranks together.
        term: of float32 [N, K] weight and gradient, to float32 [N, K].
    Returns:
        layer name -> float32 [N, K] on the weight's device.
    Raises:
        ValueError: a layer without a gradient; names it.
    """
    matrices = float_matrices(weights)
    sums = {layer: torch.zeros_like(matrix) for layer, matrix in matrices.items()}
    for read, gradients in enumerate(calibration.gradients(batches)):
        for layer, matrix in matrices.items():
            if gradients.get(layer) is None:
                raise ValueError(f"calibration batch {read} has no gradient of {layer}: the loss does not depend on it")
            sums[layer] += term(matrix, as_matrix(gradients[layer].detach()).float())
    return calibration.total(sums)
