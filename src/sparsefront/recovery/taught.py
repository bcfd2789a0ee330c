"""What recoveries with a teacher share: the training plan, the teacher, and the compared hidden states."""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import nn

from sparsefront.errors import InvalidSetting
from sparsefront.models.base import block_names
from sparsefront.models.checkpoint import misfit, read_weights, weights_fingerprint
from sparsefront.networks import has_blocks, load_state
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.recovery.base import RecoverySetup, Round
from sparsefront.recovery.finetune import Finetune
from sparsefront.recovery.lr_rewind import LearningRateRewind
from sparsefront.recovery.training import TrainingPlan, TrainingRecovery
from sparsefront.schedule.base import Schedule
from sparsefront.training.recipe import Recipe

if TYPE_CHECKING:
    import pytorch_lightning as pl


class TaughtRecovery(TrainingRecovery):
    """Trains like another recovery, but with a teacher's loss. Subclasses are settings classes with these fields.

    Attributes:
        along: finetune or lr_rewind, which also determines the supported schedules.
        epochs, lr: as in that recovery.
        hidden_layers: names of the modules whose outputs are compared; None = every block.
        teacher: checkpoint of a network of the same architecture, including the head; None = the weights of the dense run.
    """

    along: Literal["finetune", "lr_rewind"]
    epochs: int | None
    lr: float | None
    hidden_layers: list[str] | None
    teacher: str | None

    fingerprinted: ClassVar[frozenset[str]] = frozenset({"teacher"})
    has_teacher: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.along == "lr_rewind" and self.lr is not None:
            raise InvalidSetting("lr", self.lr, "must be null with along=lr_rewind, which takes the dense run's rates")

    @property
    @abstractmethod
    def compares_hidden_states(self) -> bool:
        """Whether the loss includes hidden states."""

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]  # of the instance: a checkpoint may teach instead
        return () if self.teacher else ("dense_net",)

    @property
    def repeats(self) -> bool:  # type: ignore[override]  # of the instance
        return self._along.repeats

    def follows(self, schedule: Schedule, sparsity: float) -> bool:
        """Whatever `along` supports."""
        return self._along.follows(schedule, sparsity)

    def check_schedule(self, schedule: Schedule, sparsity: float) -> None:
        """Blame `along`, not the teacher, for an unsupported schedule."""
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
            self._teacher_weights(self.teacher, net)
        self.list_compared(net, setup)

    def fingerprint(self) -> dict[str, Any]:
        return {} if self.teacher is None else {"teacher": weights_fingerprint(self.teacher)}

    def plan(self, recipe: Recipe, steps_per_epoch: int) -> TrainingPlan:
        """The plan of `along`."""
        return self._along.plan(recipe, steps_per_epoch)

    def callbacks(self, round: Round) -> "tuple[pl.Callback, ...]":
        return (self.make_teaching(round.dense_net, round.setup, round.spec),)

    def make_teacher(self, dense_net: Callable[[], nn.Module]) -> nn.Module:
        """Load the teacher anew: it is not part of any training state."""
        teacher = dense_net()
        if self.teacher is not None:
            load_state(teacher, self._teacher_weights(self.teacher, teacher))
        return teacher

    def list_compared(self, net: nn.Module, setup: RecoverySetup) -> list[str]:
        """Names of the modules whose outputs are compared.

        Raises:
            InvalidSetting: the network lacks a name, or has no known blocks.
        """
        if not self.compares_hidden_states:
            return []
        blocks = block_names(net, setup.prunable(net))
        names = blocks if self.hidden_layers is None else self.hidden_layers
        unknown = sorted(set(names) - {name for name, _ in net.named_modules()})
        if unknown or not names:
            hint = f"its blocks are {', '.join(blocks)}" if blocks else "it has no list of blocks: name its modules"
            raise InvalidSetting("recovery.hidden_layers", unknown or None, f"not in the network; {hint}")
        return names

    def pair_compared(
        self, teacher: nn.Module, setup: RecoverySetup, spec: MaskSpec | None
    ) -> tuple[list[str], list[str]]:
        """Names of the compared modules in the teacher and in the student, except in blocks that the student lacks.

        Args:
            spec: the student's mask spec; None = it has all blocks.
        Raises:
            InvalidSetting: the student lacks all of these blocks.
        """
        taught = self.list_compared(teacher, setup)
        removed = [] if spec is None else spec.removed_blocks
        if spec is None or not removed or not has_blocks(teacher, removed[0]):
            return taught, taught
        pairs = {name: left for name in taught if (left := spec.name_of_original(name)) is not None}
        if taught and not pairs:
            allowed = "are all in blocks that were taken out of the network"
            raise InvalidSetting("recovery.hidden_layers", taught, allowed)
        return list(pairs), list(pairs.values())

    def _teacher_weights(self, path: str, net: nn.Module) -> dict:
        """Load the state dict of the teacher's checkpoint at `path`.

        Raises:
            InvalidSetting: the file is missing, cannot be read, or does not fit this architecture.
        """
        try:
            weights = read_weights(path)
        except InvalidSetting as error:
            raise InvalidSetting("recovery.teacher", path, error.allowed) from error
        own = {key: list(tensor.shape) for key, tensor in net.state_dict().items()}
        shapes = {key: list(tensor.shape) for key, tensor in weights.items()}
        complaint = misfit(
            missing=[key for key in own if key not in shapes],
            unexpected=[key for key in shapes if key not in own],
            reshaped=[f"{key} {shapes[key]} for {own[key]}" for key in own if shapes.get(key, own[key]) != own[key]],
        )
        if complaint:
            raise InvalidSetting("recovery.teacher", path, complaint)
        return weights
