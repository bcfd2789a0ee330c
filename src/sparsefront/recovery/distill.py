"""Knowledge distillation from the dense network."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import nn

from sparsefront.errors import InvalidSetting
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.recovery.base import Backend, RecoverySetup
from sparsefront.recovery.taught import TaughtRecovery
from sparsefront.recovery.training import DenseAfter
from sparsefront.settings_class import LearningRate, OneOrMore, Share, settings_class

if TYPE_CHECKING:
    import pytorch_lightning as pl


@settings_class()
class Distill(TaughtRecovery):
    """Settings of `recovery=distill`: train the surviving weights on the labels and on the teacher's softened predictions,
    with the epochs and learning rates of `along` (Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network",
    2015; `Distillation` states the loss).

    Args:
        along: finetune or lr_rewind, which also determines the supported schedules.
        epochs, lr: as in that recovery.
        hardness: weight of the teacher; the labels have weight 1 - hardness.
        temperature: T, by which the logits of both networks are divided.
        hidden_states: weight of the mean squared difference of hidden states; 0 = outputs only.
        hidden_layers: names of the modules whose outputs are compared; null = every block.
        teacher: checkpoint of a network of the same architecture, including the head; null = the weights of the dense run.
        store_teacher: compute the teacher's logits once for every training row, for all points with this teacher, instead of
            in each step; for texts of one label, since other inputs or predictions change from batch to batch.
        quantize, backend, dense_after: as in that recovery, for the student only.
    """

    along: Literal["finetune", "lr_rewind"] = "finetune"
    epochs: PositiveInt | None = None
    lr: LearningRate | None = None
    hardness: Annotated[Share, Field(description="the weight of the teacher")] = 0.9
    temperature: PositiveFloat = 2.0
    hidden_states: NonNegativeFloat = 0.0
    hidden_layers: OneOrMore[str] | None = None
    teacher: str | None = None
    store_teacher: bool = False  # type: ignore[misc]  # of the instance
    quantize: bool = False
    backend: Backend = "dense"
    dense_after: DenseAfter = None

    name: ClassVar[str] = "distill"
    trains_as_found: ClassVar[bool] = True
    reads_logits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_layers is not None and not self.hidden_states:
            raise InvalidSetting("hidden_layers", self.hidden_layers, "needs hidden_states above 0")
        if self.store_teacher and self.hidden_states:
            raise InvalidSetting("store_teacher", True, "stores logits alone: it needs hidden_states=0")

    @property
    def compares_hidden_states(self) -> bool:
        return self.hidden_states > 0

    def make_teaching(
        self, dense_net: Callable[[], nn.Module], setup: RecoverySetup, spec: MaskSpec | None = None
    ) -> "pl.Callback":
        from sparsefront.recovery.distillation import Distillation  # here: Lightning takes seconds to import

        teacher = None if self.store_teacher else self.make_teacher(dense_net)
        taught, learnt = ([], []) if teacher is None else self.pair_compared(teacher, setup, spec)
        return Distillation(
            teacher,
            hardness=self.hardness,
            temperature=self.temperature,
            hidden_states=self.hidden_states,
            hidden_layers=taught,
            learnt_layers=learnt,
        )
