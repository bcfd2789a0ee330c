"""SquareHead distillation: each block of the dense network teaches the same block of the pruned one."""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import nn

from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.recovery.base import Backend, RecoverySetup
from sparsefront.recovery.taught import TaughtRecovery
from sparsefront.settings_class import LearningRate, OneOrMore, settings_class

if TYPE_CHECKING:
    import pytorch_lightning as pl


@settings_class()
class SquareHead(TaughtRecovery):
    """Settings of `recovery=square_head`: train the surviving weights on the labels and on the hidden states of every block of
    the dense network. Each block's error is relative to the size of its target, so that no block dominates and no loss weight
    needs tuning. Epochs and learning rates are those of `along`.

    Args:
        along: finetune or lr_rewind, which also determines the supported schedules.
        epochs, lr: as in that recovery.
        hidden_states: weight of the sum over the blocks; the labels have weight 1.
        soft_targets: weight of the teacher's softened predictions, as in `distill`; 0 = none, as in the source.
        temperature: T of the softened predictions.
        hidden_layers: names of the modules whose outputs are compared; null = every block.
        teacher: checkpoint of a network of the same architecture, including the head; null = the weights of the dense run.
        quantize, backend: as in that recovery, for the student only.
    Source: Kurtic et al., "Sparse Fine-tuning for Inference Acceleration of Large Language Models", 2023, section 2
        (SquareHead).
    """

    along: Literal["finetune", "lr_rewind"] = "finetune"
    epochs: PositiveInt | None = None
    lr: LearningRate | None = None
    hidden_states: PositiveFloat = 1.0
    soft_targets: NonNegativeFloat = 0.0
    temperature: PositiveFloat = 1.0
    hidden_layers: OneOrMore[str] | None = None
    teacher: str | None = None
    quantize: bool = False
    backend: Backend = "dense"

    name: ClassVar[str] = "square_head"
    trains_as_found: ClassVar[bool] = True

    @property
    def compares_hidden_states(self) -> bool:
        return True

    @property
    def reads_logits(self) -> bool:  # type: ignore[override]  # of the instance
        return self.soft_targets > 0

    def make_teaching(
        self, dense_net: Callable[[], nn.Module], setup: RecoverySetup, spec: MaskSpec | None = None
    ) -> "pl.Callback":
        from sparsefront.recovery.distillation import SquareHeadDistillation  # here: Lightning takes seconds to import

        teacher = self.make_teacher(dense_net)
        taught, learnt = self.pair_compared(teacher, setup, spec)
        return SquareHeadDistillation(
            teacher,
            taught,
            learnt_layers=learnt,
            hidden_states=self.hidden_states,
            soft_targets=self.soft_targets,
            temperature=self.temperature,
        )
