"""Importance by the size of a weight times the size of the input that it multiplies."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor

from sparsefront.importance.base import Calibration, Importance, Source, float_matrices
from sparsefront.networks import require_finite
from sparsefront.settings_class import settings_class


@settings_class()
class Wanda(Importance):
    """|w_ij| * ||x_j||_2, the norm of input j taken over every row of the calibration batches.

    The source compares weights within each output: that is `pattern=uniform` with `allocation=per_layer`, or n_m. With
    another pattern the score is the same and the comparison group is the pattern's. A convolution's inputs are its
    unfolded patches, one row per output pixel; the padding of a text is no row.

    Args:
        batches: calibration batches to read.
    Source: Sun, Liu, Bair and Kolter, "A Simple and Effective Pruning Approach for Large Language Models", 2023, eq. 1.
    """

    batches: PositiveInt = 16
    name: ClassVar[str] = "wanda"
    source: ClassVar[Source] = "inputs"

    @torch.no_grad()
    def scores(self, weights: Mapping[str, Tensor], calibration: Calibration | None = None) -> dict[str, Tensor]:
        calibration = self.needed(calibration)
        squares = calibration.total(calibration.input_sums(self.batches, _squares))
        scores = {layer: matrix.abs() * squares[layer].sqrt() for layer, matrix in float_matrices(weights).items()}
        require_finite(scores)
        return scores


def _squares(inputs: Tensor) -> Tensor:
    """Per input the sum of its squares: [K] of [rows, K]."""
    return inputs.square().sum(dim=0)
