"""Recoveries with a teacher: the losses, the hidden states compared, and the callback that brings the teacher in."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
from sparsefront.tasks.base import Batch, Task, with_square_mask
from sparsefront.training.recipe import Recipe

# What the blocks of a network return on the way, read off by forward hooks.


class HiddenStates:
    """Keeps the output of named modules of a network, of one forward at a time.

    Args:
        net: the network; hooks stay on it until `remove`.
        names: of modules that return a tensor, or a tuple whose first entry is the hidden state.
    """

    def __init__(self, net: nn.Module, names: list[str]) -> None:
        self._names = names
        self._found: dict[str, Tensor] = {}
        self._listening = False
        self._handles = [net.get_submodule(name).register_forward_hook(self._keep(name)) for name in names]

    def listen(self) -> None:
        """Forget what was kept; keep what the next forward returns."""
        self._found.clear()
        self._listening = True

    def take(self) -> list[Tensor]:
        """The hidden states of the forward since `listen`, in the order of `names`; afterwards none are kept.

        Activations that are recomputed in the backward pass (gradient checkpointing) come later, and are not listened to.
        """
        self._listening = False
        return [self._found.pop(name) for name in self._names]

    def remove(self) -> None:
        """Take the hooks off the network."""
        for handle in self._handles:
            handle.remove()

    def _keep(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if self._listening:
                self._found[name] = output[0] if isinstance(output, tuple) else output

        return hook


# The callback that brings a teacher into a training, whatever loss compares the two networks.

StatePairs = list[tuple[Tensor, Tensor]]
"""Hidden states of the trained network and of the teacher, module by module."""


class TeacherCallback(pl.Callback, ABC):
    """Lightning callback that runs a teacher beside the trained network. While the fit lasts it sets the task's objective to
    `loss`. The teacher stays in eval mode and without gradients, on the device of the student; as no part of the task it is
    in no checkpoint. It runs in the precision of the training step.

    Args:
        teacher: takes the same inputs as the trained network.
        hidden_layers: names of the teacher's modules whose outputs are compared.
        learnt_layers: of the trained network's; None = the same names.
    """

    def __init__(
        self, teacher: nn.Module, hidden_layers: list[str] | None = None, learnt_layers: list[str] | None = None
    ) -> None:
        self.teacher = teacher.eval().requires_grad_(False)
        self.hidden_layers = hidden_layers or []
        self.learnt_layers = self.hidden_layers if learnt_layers is None else learnt_layers

    @abstractmethod
    def loss(self, task: Task, output: Any, target: Any, states: StatePairs, batch: Batch) -> Tensor:
        """What a training step minimizes, a scalar.

        Args:
            output, target: what the trained network and the teacher returned for this batch.
            states: of `hidden_layers`.
        """

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, Task)
        self.teacher.to(module.device)
        self._taught = HiddenStates(self.teacher, self.hidden_layers)
        self._learnt = HiddenStates(module.net, self.learnt_layers)
        module.objective = self.objective

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        self._learnt.listen()

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, Task)
        module.objective = None
        self._taught.remove()
        self._learnt.remove()

    def objective(self, task: Task, output: Any, batch: Batch) -> Tensor:
        """See `loss`; `output` is what the trained network returned in this training step."""
        self._taught.listen()
        with torch.no_grad():
            target = task.call(self.teacher, with_square_mask(task.net_inputs(batch), self.teacher))
        states = list(zip(self._learnt.take(), self._taught.take(), strict=True))
        return self.loss(task, output, target, states, batch)


def soft_target_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 * KL(teacher || student) of the distributions softmax(logits / T), mean over the predictions, in fp32.

    The factor T^2 keeps the size of the gradient when T changes. A single column is a score and no distribution: its
    squared difference is taken.

    Args:
        student, teacher: logits [predictions, classes], any float dtype.
    Source: Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network", 2015, section 2.
    """
    student, teacher = student.float(), teacher.float()
    if student.shape[-1] == 1:
        return F.mse_loss(student, teacher)
    log_student = F.log_softmax(student / temperature, dim=-1)
    log_teacher = F.log_softmax(teacher / temperature, dim=-1)
    return temperature**2 * F.kl_div(log_student, log_teacher, reduction="batchmean", log_target=True)


def prediction_loss(task: Task, output: Any, target: Any, temperature: float) -> Tensor:
    """`soft_target_loss` of what two networks returned, the mean over the task's distributions where it predicts several."""
    pairs = list(zip(task.logits(output), task.logits(target), strict=True))
    first, *others = (soft_target_loss(student, teacher, temperature) for student, teacher in pairs)
    return sum(others, first) / len(pairs)


class Distillation(TeacherCallback):
    """Trains the network to give what a teacher gives: (1 - hardness) * loss + hardness * T^2 * KL(teacher || student), the
    mean over the task's distributions where it predicts several, plus `hidden_states` times the mean squared difference of
    the hidden states (Hinton et al., 2015; hidden states as in Jiao et al., "TinyBERT", 2020, without its projection, since
    both networks are equally wide). Losses are taken in fp32.

    Args:
        teacher, hidden_layers, learnt_layers: see `TeacherCallback`.
        hardness: weight of the teacher, in [0, 1].
        temperature: T.
        hidden_states: weight of the hidden states.
    """

    def __init__(
        self,
        teacher: nn.Module,
        *,
        hardness: float,
        temperature: float,
        hidden_states: float = 0.0,
        hidden_layers: list[str] | None = None,
        learnt_layers: list[str] | None = None,
    ) -> None:
        super().__init__(teacher, hidden_layers, learnt_layers)
        self.hardness, self.temperature, self.hidden_states = hardness, temperature, hidden_states

    def loss(self, task: Task, output: Any, target: Any, states: StatePairs, batch: Batch) -> Tensor:
        soft = prediction_loss(task, output, target, self.temperature)
        loss = (1 - self.hardness) * task.label_loss(output, batch) + self.hardness * soft
        if not states:
            return loss
        distance = sum(F.mse_loss(student.float(), teacher.float()) for student, teacher in states) / len(states)
        return loss + self.hidden_states * distance


# What recoveries with a teacher share: for how long they train, who teaches, and which hidden states are compared.


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
    has_teacher: ClassVar[bool] = True

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
            self._teacher_weights(self.teacher, net)
        self.compared_layers(net, setup)

    def fingerprint(self) -> dict[str, Any]:
        return {} if self.teacher is None else {"teacher": weights_fingerprint(self.teacher)}

    def plan(self, recipe: Recipe, steps_per_epoch: int) -> TrainingPlan:
        """That of `along`."""
        return self._along.plan(recipe, steps_per_epoch)

    def callbacks(self, round: Round) -> tuple[pl.Callback, ...]:
        return (self.taught_by(round.dense_net, round.setup, round.spec),)

    def make_teacher(self, dense_net: Callable[[], nn.Module]) -> nn.Module:
        """The teacher, read anew: it is no part of any training's state."""
        teacher = dense_net()
        if self.teacher is not None:
            load_state(teacher, self._teacher_weights(self.teacher, teacher))
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

    def compared_pairs(
        self, teacher: nn.Module, setup: RecoverySetup, spec: MaskSpec | None
    ) -> tuple[list[str], list[str]]:
        """Names of the modules whose outputs are compared, in the teacher and in the trained network; those of blocks that the
        latter lacks are left out.

        Args:
            spec: of the trained network's masks; None: it is whole.
        Raises:
            InvalidSetting: all of them are in such blocks.
        """
        taught = self.compared_layers(teacher, setup)
        if spec is None or spec.blocks is None or not has_blocks(teacher, spec.blocks):
            return taught, taught
        pairs = {name: left for name in taught if (left := spec.name_left(name)) is not None}
        if taught and not pairs:
            allowed = "are all in blocks that were taken out of the network"
            raise InvalidSetting("recovery.hidden_layers", taught, allowed)
        return list(pairs), list(pairs.values())

    def _teacher_weights(self, path: str, net: nn.Module) -> dict:
        """The state dict of the teacher's checkpoint, at `path`.

        Raises:
            InvalidSetting: a file that does not exist or cannot be read, or that does not fit this architecture.
        """
        try:
            weights = read_weights(path)
        except InvalidSetting as error:
            raise InvalidSetting("recovery.teacher", path, error.allowed) from error
        own = {key: list(tensor.shape) for key, tensor in net.state_dict().items()}
        given = {key: list(tensor.shape) for key, tensor in weights.items()}
        complaint = misfit(
            missing=[key for key in own if key not in given],
            unexpected=[key for key in given if key not in own],
            reshaped=[f"{key} {given[key]} for {own[key]}" for key in own if given.get(key, own[key]) != own[key]],
        )
        if complaint:
            raise InvalidSetting("recovery.teacher", path, complaint)
        return weights
