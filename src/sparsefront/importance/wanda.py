"""Importance by weight magnitude times input norm."""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from sparsefront.importance.base import (
    Calibration,
    Importance,
    PruningParts,
    Source,
    check_sequential,
    scores_from_inputs,
)
from sparsefront.settings_class import Batches, settings_class


@settings_class()
class Wanda(Importance):
    """|w_ij| * ||x_j||_2, with the norm of input j over all rows of the calibration batches.

    The source compares weights within each output, which is `pattern=uniform` with `allocation=per_layer`, or n_m. Other
    patterns use the same score with their own comparison groups. The inputs of a convolution are its unfolded patches, one
    row per output pixel; padding tokens are excluded.

    Args:
        batches: number of calibration batches.
        sequential: for causal language models: compute a block's inputs with the pruned blocks before it, as in the authors'
            code. false: with the dense network.
    Source: Sun, Liu, Bair and Kolter, "A Simple and Effective Pruning Approach for Large Language Models", 2023, eq. 1.
    """

    batches: Batches = 16
    sequential: bool = False
    name: ClassVar[str] = "wanda"
    source: ClassVar[Source] = "inputs"

    def check(self, pruning: PruningParts) -> None:
        if self.sequential:
            check_sequential(pruning)

    def scores(self, weights: Mapping[str, Tensor], calibration: Calibration | None = None) -> dict[str, Tensor]:
        calibration = self.require(calibration)
        return scores_from_inputs(weights, calibration, self.batches, _squares, _score, sequential=self.sequential)


def _score(layer: str, matrix: Tensor, squares: Tensor) -> Tensor:
    return matrix.abs() * squares.sqrt()


def _squares(inputs: Tensor) -> Tensor:
    """Sum of squares per input: [rows, K] -> [K]."""
    return inputs.square().sum(dim=0)
