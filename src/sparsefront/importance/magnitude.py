"""Importance by the size of a weight."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sparsefront.errors import InvalidSetting
from sparsefront.finite import require_finite
from sparsefront.importance.base import Calibration, Importance, float_matrices


@dataclass(frozen=True)
class Magnitude(Importance):
    """|w| (l1) or w^2 (l2). Single weights rank the same by both; groups of weights do not.

    Source: Han et al., "Learning both Weights and Connections for Efficient Neural Networks", 2015.
    """

    norm: str = "l1"
    name: ClassVar[str] = "magnitude"

    def __post_init__(self) -> None:
        if self.norm not in ("l1", "l2"):
            raise InvalidSetting("norm", self.norm, "l1 (absolute value) or l2 (square)")

    @torch.no_grad()
    def scores(self, weights: Mapping[str, Tensor], calibration: Calibration | None = None) -> dict[str, Tensor]:
        # Squares are taken in fp32: those of small fp16 weights would vanish.
        scores = {layer: self.of(matrix) for layer, matrix in float_matrices(weights).items()}
        require_finite(scores)
        return scores

    def of(self, matrix: Tensor) -> Tensor:
        """Scores of one float32 matrix, unchecked."""
        return matrix.abs() if self.norm == "l1" else matrix.square()
