"""Masks of a network as it is at the moment."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from sparsefront.pruning.calibration import score_weights
from sparsefront.pruning.make_masks import make_masks
from sparsefront.pruning.mask_layout import MaskLayout
from sparsefront.pruning.movement import AccumulateMovement
from sparsefront.pruning.settings import PruningSettings
from sparsefront.tasks.base import Batch, Task


@dataclass(frozen=True, eq=False)
class MaskMaker:
    """Called with a sparsity, and the masks so far, it scores the task's network and makes masks of it.

    Args:
        pruning: how masks are made.
        task: the network and its loss, on the device where scores are wanted.
        layers: those that are pruned.
        layout: fixed before the first masks.
        open_loader, movement: see `score_weights`.
    """

    pruning: PruningSettings
    task: Task
    layers: list[str]
    layout: MaskLayout
    open_loader: Callable[[], Iterable[Batch]]
    movement: AccumulateMovement | None = None

    def __call__(self, sparsity: float, previous: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        pruning = self.pruning
        scores = score_weights(
            self.task,
            self.layers,
            importance=pruning.importance,
            open_loader=self.open_loader,
            movement=self.movement,
        )
        return make_masks(
            scores,
            pruning.pattern,
            pruning.allocation,
            sparsity,
            final_sparsity=pruning.sparsity,
            previous=previous,
            nested=pruning.schedule.masks_nest,
            layout=self.layout,
        )
