"""Importance by the size of a weight times the size of the input that it multiplies."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import PositiveInt
from torch import Tensor

from sparsefront.importance.base import (
    Calibration,
    Importance,
    PruningParts,
    Source,
    check_sequential,
    scores_from_inputs,
)
from sparsefront.settings_class import settings_class


@settings_class()
class Wanda(Importance):
    """|w_ij| * ||x_j||_2, the norm of input j taken over every row of the calibration batches.

    The source compares weights within each output: that is `pattern=uniform` with `allocation=per_layer`, or n_m. With
    another pattern the score is the same and the comparison group is the pattern's. A convolution's inputs are its
    unfolded patches, one row per output pixel; the padding of a text is no row.

    Args:
        batches: calibration batches to read.
        sequential: of a network that writes text: a block's inputs are what the pruned blocks before it give, as in the authors'
            code. false: as the dense network gives them.
    Source: Sun, Liu, Bair and Kolter, "A Simple and Effective Pruning Approach for Large Language Models", 2023, eq. 1.
    """

    batches: PositiveInt = 16
    sequential: bool = False
    name: ClassVar[str] = "wanda"
    source: ClassVar[Source] = "inputs"

    def check(self, pruning: PruningParts) -> None:
        if self.sequential:
            check_sequential(pruning)

    def scores(self, weights: Mapping[str, Tensor], calibration: Calibration | None = None) -> dict[str, Tensor]:
        calibration = self.needed(calibration)
        return scores_from_inputs(weights, calibration, self.batches, _squares, _score, sequential=self.sequential)


def _score(layer: str, matrix: Tensor, squares: Tensor) -> Tensor:
    return matrix.abs() * squares.sqrt()


def _squares(inputs: Tensor) -> Tensor:
    """Per input the sum of its squares: [K] of [rows, K]."""
    return inputs.square().sum(dim=0)
