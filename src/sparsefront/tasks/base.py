"""The part of training and evaluating that all tasks share."""

import inspect
from abc import ABC, abstractmethod
from functools import cache
from typing import Any, ClassVar, Protocol

from pytorch_lightning import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer

from sparsefront.tasks.outcomes import Outcomes

# Attention masks as a BERT takes them without looking inside, for which it would wait for the GPU in every training
# step.

MASK = "attention_mask"


def looks_into_masks(net: nn.Module) -> bool:
    """Whether the network is a BERT of transformers with PyTorch's attention: it leaves out a mask [B, length] that masks
    nothing, which it finds out by reading it.
    """
    config = getattr(net, "config", None)
    kind, attention = getattr(config, "model_type", None), getattr(config, "_attn_implementation", None)
    return kind == "bert" and attention == "sdpa" and not config.is_decoder


def without_full_mask(batch: dict[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
    """A batch that is still on the CPU, without `attention_mask` where that masks nothing; of other networks as it is."""
    if MASK not in batch or not looks_into_masks(net) or not batch[MASK].all():
        return batch
    return {name: value for name, value in batch.items() if name != MASK}


def with_square_mask(inputs: dict[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
    """Inputs with the mask as bool [B, 1, length, length], True = attend, equal to what transformers makes of [B, length]; of
    other networks as they are.
    """
    if MASK not in inputs or not looks_into_masks(net):
        return inputs
    mask = inputs[MASK]
    return inputs | {MASK: mask.bool()[:, None, None, :].expand(-1, 1, mask.shape[1], -1).contiguous()}


Batch = dict[str, Tensor]
TRAIN_LOSS = "train/loss"
"""What the loss of a training step is logged as."""


class Evaluator(Protocol):
    """Gathers the outputs of one pass over a split.

    Attributes:
        reduces_outputs: it takes what `Task.predict` gave where that is, in its dtype; others get it in fp32 on the CPU.
        signature: how the metric was taken, where it may be taken in several ways; else None.
    """

    reduces_outputs: bool = False
    signature: str | None = None

    def update(self, output: Any, batch: Batch) -> None:
        """Take in what `Task.predict` gave for one batch, on whatever device."""

    def compute(self) -> dict[str, float]:
        """The metrics of everything taken in, as fractions (correlations lie in [-1, 1], perplexity from 1 on, all others in
        [0, 1]).
        """

    def standard_errors(self) -> dict[str, float]:
        """Of the tracked metric at least, in the same unit: what the test set being a sample does to each."""

    def outcomes(self, metric: str) -> Outcomes:
        """What each sample adds to one of these metrics."""

    @property
    def samples(self) -> int:
        """How many inputs, or questions, were evaluated."""


class Objective(Protocol):
    """What a training minimizes instead of the task's own loss."""

    def __call__(self, task: "Task", output: Any, batch: Batch) -> Tensor:
        """Mean over a batch, a scalar.

        Args:
            output: what `task.net` returned.
        """


class Optimizes(Protocol):
    """Gives the optimizer, and its schedule, of a net."""

    def build(self, net: nn.Module) -> Any:
        """What Lightning's `configure_optimizers` may return."""


class Task(LightningModule, ABC):
    """Trains a network for one kind of task and evaluates it.

    Knows nothing of the network but the names of its inputs and the form of its output, so that a dense network, a
    masked one and one with sparse layers are trained and evaluated by the same lines.

    Args:
        net: taken as it is; it keeps the tensors that it has.
        optimization: needed to train, not to evaluate.
    Attributes:
        kind: what data sets (`DataInfo.kind`) and models (`kinds`) call this task.
        metric_name: the metric that is tracked, one of those that the evaluator computes. Of those that
            `tasks.outcomes.LOWER_IS_BETTER` names less is better, wherever networks are compared.
        objective: what is trained for; None = the task's own loss. Evaluation never asks for it.
        label_smoothing: share of the target of training that all classes get alike. Of a score, one column, nothing is
            smoothed. The loss that scores of weights are taken from stays as it is.
    """

    kind: ClassVar[str]
    metric_name: str

    def __init__(self, net: nn.Module, optimization: Optimizes | None = None) -> None:
        super().__init__()
        self.net = net
        self.optimization = optimization
        self.objective: Objective | None = None
        self.label_smoothing = 0.0
        self._evaluator: Evaluator | None = None

    @classmethod
    @abstractmethod
    def for_dataset(cls, net: nn.Module, dataset: Any, optimization: Optimizes | None = None) -> "Task":
        """The task as a data set poses it (how many classes, which metrics).

        Args:
            dataset: its settings; only `info` and what belongs to this kind of task are asked for.
        """

    @abstractmethod
    def net_inputs(self, batch: Batch) -> Batch:
        """The part of a batch that the net takes, by the names of its arguments."""

    @abstractmethod
    def loss(self, output: Any, batch: Batch) -> Tensor:
        """Mean loss of a batch, a scalar.

        Args:
            output: what the net returned, a tensor or a Hugging Face output.
        """

    @abstractmethod
    def logits(self, output: Any) -> tuple[Tensor, ...]:
        """Each distribution that the net predicts, as logits [predictions, classes]; one column is a score, not a distribution.

        Args:
            output: what the net returned.
        """

    def training_loss(self, output: Any, batch: Batch) -> Tensor:
        """What a training step minimizes: the objective where one is set, else the loss of the labels."""
        return self.label_loss(output, batch) if self.objective is None else self.objective(self, output, batch)

    def label_loss(self, output: Any, batch: Batch) -> Tensor:
        """The loss of the smoothed labels, a scalar: (1 - e) * loss + e * cross-entropy to the even distribution, with e the
        label smoothing; the mean where the task predicts several distributions.
        """
        loss = self.loss(output, batch)
        if self.label_smoothing == 0.0:
            return loss
        even = [-logits.float().log_softmax(dim=-1).mean() for logits in self.logits(output) if logits.shape[-1] > 1]
        return loss if not even else (1 - self.label_smoothing) * loss + self.label_smoothing * sum(even) / len(even)

    @abstractmethod
    def evaluator(self, data: LightningDataModule, split: str) -> Evaluator:
        """A fresh evaluator.

        Args:
            data: whose batches it will see; from the loader of `split`.
            split: `val` or `test`.
        """

    def forward(self, batch: Batch) -> Any:
        return self.call(self.net, self.net_inputs(batch))

    def call(self, net: nn.Module, inputs: Batch) -> Any:
        """What the network, or a teacher of it, returns for inputs by name."""
        return net(**inputs)

    def predict(self, net: nn.Module, inputs: Batch) -> Any:
        """What an evaluator is given for a batch: what the network returns, or what is made of it, such as a translation."""
        return net(**inputs)

    def configure_optimizers(self) -> Any:
        if self.optimization is None:
            raise ValueError("this task was built to evaluate, without an optimization: it cannot be trained")
        return self.optimization.build(self.net)

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """By the global norm, as Lightning does it, whose own raises for fused optimizers even where no loss scaler leaves the
        gradients to them: see `TrainerSettings.fuses_optimizer`.
        """
        if gradient_clip_val:
            trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            nn.utils.clip_grad_norm_(trained, gradient_clip_val)

    def on_fit_start(self) -> None:
        if not self.net.training:  # pretrained networks arrive in eval mode, which would train them without dropout
            self.net.train()  # of a network in training mode frozen modules stay in eval mode

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        output = self.call(self.net, with_square_mask(self.net_inputs(batch), self.net))
        loss = self.training_loss(output, batch)
        # Not for the bar by `prog_bar`, for which Lightning would read it, and so wait for the GPU, in every step.
        self.log(TRAIN_LOSS, loss, batch_size=len(next(iter(batch.values()))))
        return loss

    def on_validation_epoch_start(self) -> None:
        self._evaluator = self.evaluator(self.trainer.datamodule, "val")

    def validation_step(self, batch: Batch, batch_index: int) -> None:
        self._evaluator.update(self(batch), batch)

    def on_validation_epoch_end(self) -> None:
        metrics = self._evaluator.compute()
        self.log_dict({f"val/{name}": value for name, value in metrics.items()}, prog_bar=True)
        self._evaluator = None


TEXT_INPUTS = ("input_ids", MASK, "token_type_ids")


def text_inputs(batch: Batch, net: nn.Module) -> Batch:
    """Of the three inputs, int64 [B, length], by Hugging Face's names, those that the network's forward takes.

    The mask is absent where `without_full_mask` took it out.
    """
    return {name: batch[name] for name in _taken(type(net)) if name != MASK or name in batch}


@cache
def _taken(network: type[nn.Module]) -> tuple[str, ...]:
    parameters = inspect.signature(network.forward).parameters
    named = tuple(name for name in TEXT_INPUTS if name in parameters)
    return named or TEXT_INPUTS  # a network that names none of them hands on whatever it is given
