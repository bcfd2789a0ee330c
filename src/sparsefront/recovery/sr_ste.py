"""Train from the initial weights with masks that change at every step."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from sparsefront.declared.settings_class import settings_class
from sparsefront.errors import InvalidSetting
from sparsefront.importance.base import WeightImportance
from sparsefront.masks.weight_view import as_matrix
from sparsefront.option_classes import options_where
from sparsefront.patterns.base import Pattern
from sparsefront.pruning.mask_layout import MaskLayout
from sparsefront.pruning.straight_through import StraightThrough
from sparsefront.recovery.base import RecoverySetup, Round, RoundRecord
from sparsefront.recovery.training import TrainingPlan, TrainingRecovery, fit_round, recovery_epochs
from sparsefront.training.fit import steps_per_epoch
from sparsefront.training.optimization import Optimization
from sparsefront.training.recipe import Recipe


@settings_class()
class SrSte(TrainingRecovery):
    """Settings of `recovery=sr_ste`: the network is trained once more from where the dense run began, pretrained or random
    weights, with the sparse-refined straight-through estimator (`StraightThrough`). The prune stage's masks only say
    which layers take part; the result is pruned by the mask of the last weights.

    Made for SGD. Under Adam the masked weights spoil the estimate of the second moment and cost accuracy (Lu et al.,
    "STEP: Learning N:M Structured Sparsity Masks from Scratch with Precondition", 2023, which fixes it otherwise).

    Args:
        decay: lambda_W, how strongly pruned weights are drawn to zero; 2e-4 in the source's experiments on ImageNet.
        epochs: of this training; null = the recipe's recovery_epochs, else its epochs.
        lr: peak rate; null = the recipe's lr.
    Source: Zhou et al., "Learning N:M Fine-grained Structured Sparse Neural Networks From Scratch", 2021.
    """

    decay: Annotated[NonNegativeFloat, Field(description="0: the plain straight-through estimator")] = 2e-4
    epochs: Annotated[PositiveInt | None, Field(description="null: the recipe's")] = None
    lr: Annotated[PositiveFloat | None, Field(description="null: the recipe's")] = None

    name: ClassVar[str] = "sr_ste"
    needs: ClassVar[tuple[str, ...]] = ("initial_net",)

    def check(self, setup: RecoverySetup) -> None:
        """Only masks that each layer's own weights decide, window by window, can change at every step."""
        pattern, importance = setup.pruning.pattern, setup.pruning.importance
        if not pattern.balanced:
            balanced = " or ".join(options_where("sparsefront.patterns", lambda other: other.balanced))
            raise InvalidSetting(
                "recovery",
                self.name,
                f"needs n of every m kept: pattern={balanced}, or pattern.distribution=balanced where a pattern takes "
                f"it, not {pattern.name} as it is set",
            )
        if not isinstance(importance, WeightImportance):
            ranked = " or ".join(
                options_where("sparsefront.importance", lambda other: isinstance(other, WeightImportance))
            )
            raise InvalidSetting(
                "recovery", self.name, f"ranks weights by importance={ranked}, not by {importance.name}"
            )
        if setup.recipe.ema is not None:
            raise InvalidSetting(
                "recipe.ema",
                setup.recipe.ema,
                "must be null with recovery=sr_ste: it would average weights under different masks",
            )

    def plan(self, recipe: Recipe, steps_per_epoch: int) -> TrainingPlan:
        """A whole learning-rate curve of its own."""
        epochs = recovery_epochs(self.epochs, recipe)
        optimization = Optimization(recipe, lr=self.lr or recipe.lr, total_steps=epochs * steps_per_epoch)
        return TrainingPlan(epochs, optimization, "recovery.lr")

    def recover(self, round: Round) -> RoundRecord:
        pruning = round.setup.pruning
        steps = steps_per_epoch(round.data, round.setup.trainer)
        plan = self.plan(round.setup.recipe, steps)
        round.net.load_state_dict(round.initial_net().state_dict())
        windows = WindowMasks(pruning.pattern, pruning.importance, round.layout, round.sparsity)
        refined = StraightThrough(round.net, list(round.masks), make_masks=windows, decay=self.decay)
        trained = fit_round(round, plan, (refined,))
        round.masked.set(refined.masks())
        return RoundRecord(**asdict(trained))


@dataclass(frozen=True, eq=False)
class WindowMasks:
    """Masks of weights by a balanced pattern, each layer on its own."""

    pattern: Pattern
    importance: WeightImportance
    layout: MaskLayout
    sparsity: float

    @torch.no_grad()
    def __call__(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Layer name -> bool [N, K], from layer name -> weight."""
        return {layer: self._mask(layer, weight) for layer, weight in weights.items()}

    def _mask(self, layer: str, weight: Tensor) -> Tensor:
        # Unchecked: a check would wait for the GPU at every layer.
        scores = self.importance.of(as_matrix(weight).float())
        permutation = self.layout.permutation(layer)
        everything = torch.ones_like(scores, dtype=torch.bool)
        sparsity = self.layout.sparsity_of(layer, self.sparsity)
        return permutation.invert(self.pattern.layer_mask(permutation.apply(scores), everything, sparsity))
