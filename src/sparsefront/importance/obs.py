"""Importance from Optimal Brain Surgeon on each layer's own output."""

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
from sparsefront.obs.sweep import Damping, damp_hessian, input_hessian, inverse, saliency
from sparsefront.settings_class import Batches, settings_class


@settings_class()
class OptimalBrainSurgeon(Importance):
    """w_ij^2 / [H^-1]_jj, with H = 2 X^T X of the layer's inputs X [rows, K] over all calibration batches, damped.

    Half of it is the increase of the layer's squared output error when the weight is pruned and the others of its row are
    updated optimally; the 1/2 changes no mask and is left out. The score itself updates no weight; `recovery=obs_update`
    does.

    Args:
        batches: number of calibration batches.
        sequential: as in wanda.
        damping: added to H's diagonal, as a fraction of its mean.
    Source: Hassibi and Stork, "Second order derivatives for network pruning: Optimal Brain Surgeon", 1993; layer by
        layer and row by row as in Frantar and Alistarh, "SparseGPT", 2023, section 3.
    """

    batches: Batches = 16
    damping: Damping = 0.01
    sequential: bool = False
    name: ClassVar[str] = "obs"
    source: ClassVar[Source] = "inputs"

    def check(self, pruning: PruningParts) -> None:
        if self.sequential:
            check_sequential(pruning)

    def scores(self, weights: Mapping[str, Tensor], calibration: Calibration | None = None) -> dict[str, Tensor]:
        calibration = self.require(calibration)
        return scores_from_inputs(
            weights, calibration, self.batches, input_hessian, self._score, sequential=self.sequential
        )

    def _score(self, layer: str, matrix: Tensor, hessian: Tensor) -> Tensor:
        damped, dead = damp_hessian(hessian, self.damping, layer)
        return saliency(matrix, inverse(damped, layer).diagonal(), dead)
