"""CAST: dense training that decays the weights to be pruned towards zero, with the dense network as teacher."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor, nn
from torch.optim import Optimizer

from sparsefront.errors import InvalidSetting
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.recovery.base import DenseBackend, RecoverySetup, Round, RoundRecord
from sparsefront.recovery.training import TrainingPlan, TrainingRecovery, fit_round, recovery_plan
from sparsefront.recovery.window_masks import WindowMasks, check_window_masks, scale_weights
from sparsefront.settings_class import LearningRate, Share, settings_class
from sparsefront.training.recipe import AdamS, Optimization, Recipe

if TYPE_CHECKING:
    import pytorch_lightning as pl


@settings_class()
class Cast(TrainingRecovery):
    """Settings of `recovery=cast`: continue training the dense network with AdamS, whose l1 decay pulls weights outside the
    mask towards zero, more strongly with each step and adapted per weight. The forward pass stays dense, masks are remade
    from the weights every few steps, learned scales of row parts compensate the decay, and the original dense network is the
    teacher. In the end, masks of the final weights prune the rest, and the scales are multiplied into the weights. The prune
    stage's masks only determine which layers take part.

    Args:
        decay: lambda of AdamS, relative to the gradients' momentum: 4e-7 for LLaMA2-7B and 7500 steps in the source. Short
            trainings need more: on the digits, with 126 steps, 1e-5 changes nothing and 1e-3 gives 7 points at 1:4.
        mask_every: steps between mask updates.
        scale_groups: parts of a row, each with its own scale.
        hardness: eta, the weight of the teacher; the labels have weight 1 - hardness.
        epochs: of this training; null = the recipe's recovery_epochs, else its epochs.
        lr: peak rate; null = the recipe's recovery_lr, else its lr.
        backend: dense: pruned weights are trained too.
    Source: Huang et al., "CAST: Continuous and Differentiable Semi-Structured Sparsity-Aware Training for Large Language
        Models", 2025: algorithms 1 and 2, equations 11 to 13. Departure: the learning rate follows the recipe's curve down to
        zero, which brings pruned weights closer to zero than a constant rate; the source does not specify a curve.
    """

    decay: Annotated[NonNegativeFloat, Field(description="0: masks settle by the momentum alone")] = 1e-3
    mask_every: PositiveInt = 10
    scale_groups: PositiveInt = 2
    hardness: Annotated[Share, Field(description="the weight of the teacher")] = 1 / 3
    epochs: Annotated[PositiveInt | None, Field(description="null: the recipe's")] = None
    lr: Annotated[LearningRate | None, Field(description="null: the recipe's")] = None
    backend: DenseBackend = "dense"

    name: ClassVar[str] = "cast"
    needs: ClassVar[tuple[str, ...]] = ("dense_net",)
    has_teacher: ClassVar[bool] = True
    starts_dense: ClassVar[bool] = True
    reads_logits: ClassVar[bool] = True

    def check(self, setup: RecoverySetup) -> None:
        super().check(setup)
        check_window_masks(self.name, setup)
        if setup.recipe.optimizer != "adamw":
            raise InvalidSetting(
                "recipe.optimizer",
                setup.recipe.optimizer,
                "must be adamw with recovery=cast, whose AdamS takes its place",
            )

    def plan(self, recipe: Recipe, steps_per_epoch: int) -> TrainingPlan:
        """A full learning-rate curve of its own."""
        return recovery_plan(self.epochs, self.lr or recipe.recovery_lr or recipe.lr, recipe, steps_per_epoch)

    def make_teaching(
        self, dense_net: Callable[[], nn.Module], setup: RecoverySetup, spec: MaskSpec | None = None
    ) -> "pl.Callback":
        from sparsefront.recovery.distillation import Distillation  # here: Lightning takes seconds to import

        return Distillation(dense_net(), hardness=self.hardness, temperature=1.0)

    def recover(self, round: Round) -> RoundRecord:
        from sparsefront.pruning.training_masks import PeriodicMasks
        from sparsefront.training.fit import steps_per_epoch

        pruning, steps = round.setup.pruning, steps_per_epoch(round.data, round.setup.trainer)
        plan = self.plan(round.setup.recipe, steps)
        windows = WindowMasks(pruning.pattern, pruning.importance, round.spec, round.sparsity)
        teacher = self.make_teaching(round.dense_net, round.setup)
        with scale_weights(round.net, list(round.masks), self.scale_groups) as weights:
            masks = PeriodicMasks(weights, make_masks=windows, every=self.mask_every)
            decaying = DecayingOptimization(**vars(plan.optimization), decay=self.decay, masks=masks.by_weight)
            trained = fit_round(round, replace(plan, optimization=decaying), (masks, teacher))
            final = masks.make()
        round.masked.set(final)
        return RoundRecord(**asdict(trained))


@dataclass(frozen=True)
class DecayingOptimization(Optimization):
    """AdamS with a learning-rate curve and no other weight decay.

    Args:
        decay, masks: see `AdamS`.
    """

    decay: float = 0.0
    masks: Mapping[Tensor, Tensor] = field(default_factory=dict)

    def make_optimizer(self, net: nn.Module) -> Optimizer:
        trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
        return AdamS(trained, lr=self.lr, decay=self.decay, total_steps=self.total_steps, masks=self.masks)
