"""What recoveries with a teacher share: for how long they train, who teaches, and which hidden states are compared."""

from abc import abstractmethod
from typing import Any, ClassVar, Literal

from torch import nn

from sparsefront.artifacts.content_digest import file_digest
from sparsefront.errors import InvalidSetting
from sparsefront.models.blocks import block_names
from sparsefront.models.checkpoint import misfit, read_weights, weights_file
from sparsefront.recovery.base import RecoverySetup, Round
from sparsefront.recovery.finetune import Finetune
from sparsefront.recovery.lr_rewind import LearningRateRewind
from sparsefront.recovery.training import TrainingPlan, TrainingRecovery
from sparsefront.schedule.base import Schedule
from sparsefront.training.recipe import Recipe


class TaughtRecovery(TrainingRecovery):
    """Trains as another recovery does, for the loss of a teacher. Subclasses are settings classes with these fields.

    Attributes:
        along: finetune or lr_rewind; it goes with the schedules that this one goes with.
        epochs, lr: as of that recovery.
        hidden_layers: names of the modules whose outputs are compared; None = every block.
        teacher: checkpoint of a network of the same architecture, head included; None = the weights of the dense run.
    """

    along: Literal["finetune", "lr_rewind"]
    epochs: int | None
    lr: float | None
    hidden_layers: list[str] | None
    teacher: str | None

    fingerprinted: ClassVar[frozenset[str]] = frozenset({"teacher"})

    def __post_init__(self) -> None:
        if self.along == "lr_rewind" and self.lr is not None:
            raise InvalidSetting("lr", self.lr, "must be null with along=lr_rewind, which takes the dense run's rates")

    @property
    @abstractmethod
    def compares_hidden_states(self) -> bool:
        """Whether hidden states are part of the loss."""

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]  # of the instance: a checkpoint may teach instead
        return () if self.teacher else ("dense_net",)

    @property
    def repeats(self) -> bool:  # type: ignore[override]  # of the instance
        return self._along.repeats

    def follows(self, schedule: Schedule, sparsity: float) -> bool:
        """What `along` follows."""
        return self._along.follows(schedule, sparsity)

    def check_schedule(self, schedule: Schedule, sparsity: float) -> None:
        """`along` rules schedules out, not the teacher."""
        self._validate_schedule(schedule, sparsity, "recovery.along", self.along)

    @property
    def _along(self) -> TrainingRecovery:
        return Finetune(self.epochs, self.lr) if self.along == "finetune" else LearningRateRewind(self.epochs)

    def check(self, setup: RecoverySetup) -> None:
        super().check(setup)
        if self.teacher is None and not self.compares_hidden_states:
            return
        net = setup.architecture()
        if self.teacher is not None:
            self._teacher_weights(net)
        self.compared_layers(net, setup)

    def fingerprint(self) -> dict[str, Any]:
        return {} if self.teacher is None else {"teacher": file_digest(weights_file(self.teacher))}

    def plan(self, recipe: Recipe, steps_per_epoch: int) -> TrainingPlan:
        """That of `along`."""
        return self._along.plan(recipe, steps_per_epoch)

    def make_teacher(self, round: Round) -> nn.Module:
        """The teacher, read anew: it is no part of any training's state."""
        teacher = round.dense_net()
        if self.teacher is not None:
            teacher.load_state_dict(self._teacher_weights(teacher))
        return teacher

    def compared_layers(self, net: nn.Module, setup: RecoverySetup) -> list[str]:
        """Names of the modules whose outputs are compared.

        Raises:
            InvalidSetting: names that the network does not have, or no blocks to be found in it.
        """
        if not self.compares_hidden_states:
            return []
        blocks = block_names(net, setup.prunable(net))
        names = blocks if self.hidden_layers is None else self.hidden_layers
        unknown = sorted(set(names) - {name for name, _ in net.named_modules()})
        if unknown or not names:
            found = f"its blocks are {', '.join(blocks)}" if blocks else "it has no list of blocks: name its modules"
            raise InvalidSetting("recovery.hidden_layers", unknown or None, f"not in the network; {found}")
        return names

    def _teacher_weights(self, net: nn.Module) -> dict:
        """The state dict of the teacher's checkpoint.

        Raises:
            InvalidSetting: a file that does not exist or cannot be read, or that does not fit this architecture.
        """
        try:
            weights = read_weights(self.teacher)
        except InvalidSetting as error:
            raise InvalidSetting("recovery.teacher", self.teacher, error.allowed) from error
        own = {key: list(tensor.shape) for key, tensor in net.state_dict().items()}
        given = {key: list(tensor.shape) for key, tensor in weights.items()}
        complaint = misfit(
            missing=[key for key in own if key not in given],
            unexpected=[key for key in given if key not in own],
            reshaped=[f"{key} {given[key]} for {own[key]}" for key in own if given.get(key, own[key]) != own[key]],
        )
        if complaint:
            raise InvalidSetting("recovery.teacher", self.teacher, complaint)
        return weights
