"""Importance by the change of the loss that a first-order Taylor expansion predicts."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import torch
from torch import Tensor

from sparsefront.errors import InvalidSetting
from sparsefront.importance.base import GradientBatches, Importance
from sparsefront.importance.finite import refuse_non_finite
from sparsefront.patterns.weight_view import as_matrix


@dataclass(frozen=True)
class Taylor(Importance):
    """|w * dL/dw|, summed over calibration batches: the loss change if the weight became zero.

    Args:
        batches: calibration batches to read; fewer are read where there are fewer.
    Source: Molchanov et al., "Importance Estimation for Neural Network Pruning", 2019, as used by Guo et al.,
        Tile-Wise Sparsity, 2020 (slide "Importance Score": the root of the squared product, hence the absolute value).
    """

    batches: int = 16
    name: ClassVar[str] = "taylor"
    needs_gradients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.batches, bool) or not isinstance(self.batches, int) or self.batches < 1:
            raise InvalidSetting("batches", self.batches, "a whole number of at least 1")

    @torch.no_grad()
    def scores(
        self, weights: Mapping[str, Tensor], gradient_batches: GradientBatches | None = None
    ) -> dict[str, Tensor]:
        matrices = {layer: as_matrix(weight.detach()).float() for layer, weight in weights.items()}
        scores = {layer: torch.zeros_like(matrix) for layer, matrix in matrices.items()}
        read = 0
        for gradients in islice(gradient_batches or (), self.batches):
            for layer, matrix in matrices.items():
                if gradients.get(layer) is None:
                    raise ValueError(f"taylor: batch {read} holds no gradient of {layer}")
                scores[layer] += (matrix * as_matrix(gradients[layer].detach()).float()).abs_()
            read += 1
        if read == 0:
            raise ValueError("taylor: no calibration batch was given, so there is no gradient to score by")
        refuse_non_finite(scores)
        return scores
