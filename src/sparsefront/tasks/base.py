"""The base of all tasks: training steps, evaluators and objectives."""

import inspect
from abc import ABC, abstractmethod
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from sparsefront.tasks.outcomes import Outcomes

if TYPE_CHECKING:
    from pytorch_lightning import LightningDataModule

# Attention masks for BERT in a form it does not inspect; inspecting synchronizes with the GPU in every training step.

MASK = "attention_mask"


def looks_into_masks(net: nn.Module) -> bool:
    """Whether the network is a BERT of transformers with PyTorch's attention, which reads its mask [B, length] to skip it if it
    masks nothing.
    """
    config = getattr(net, "config", None)
    kind, attention = getattr(config, "model_type", None), getattr(config, "_attn_implementation", None)
    return kind == "bert" and attention == "sdpa" and not config.is_decoder


def without_full_mask(batch: dict[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
    """Drop `attention_mask` from a batch on the CPU if it masks nothing; only for such networks."""
    if MASK not in batch or not looks_into_masks(net) or not batch[MASK].all():
        return batch
    return {name: value for name, value in batch.items() if name != MASK}


def with_square_mask(inputs: dict[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
    """Replace the mask by bool [B, 1, length, length], True = attend, equal to what transformers derives from [B, length]; only
    for such networks.
    """
    if MASK not in inputs or not looks_into_masks(net):
        return inputs
    mask = inputs[MASK]
    return inputs | {MASK: mask.bool()[:, None, None, :].expand(-1, 1, mask.shape[1], -1).contiguous()}


Batch = dict[str, Tensor]
TEACHER_LOGITS = "teacher_logits"
"""Name in batches of the teacher's stored logits, fp32 [B, classes]."""


class Evaluator(Protocol):
    """Accumulates the outputs of one pass over a split.

    Attributes:
        reduces_outputs: takes the output of `Task.predict` on its device, in its dtype; others get it in fp32 on the CPU.
        signature: how the metric was computed, if it has variants; else None.
        texts: what the network wrote, if that is its task; else None.
    """

    reduces_outputs: bool = False
    signature: str | None = None
    texts: list[str] | None = None

    def update(self, output: Any, batch: Batch) -> None:
        """Add the output of `Task.predict` for one batch, on any device."""

    def compute(self) -> dict[str, float]:
        """The metrics of all added batches, as fractions: in [0, 1], except correlations (in [-1, 1]) and perplexity (>= 1)."""

    def standard_errors(self) -> dict[str, float]:
        """Standard errors due to the finite test set, in the same unit; at least of the tracked metric."""

    def outcomes(self, metric: str) -> Outcomes:
        """Per-sample contributions to one of these metrics."""

    @property
    def samples(self) -> int:
        """Number of evaluated inputs or questions."""


class Objective(Protocol):
    """A training objective that replaces the task's own loss."""

    def __call__(self, task: "Task", output: Any, batch: Batch) -> Tensor:
        """The mean over a batch, a scalar.

        Args:
            output: what `task.net` returned.
        """


class Optimizes(Protocol):
    """Builds the optimizer of a net and its learning-rate schedule."""

    def build(self, net: nn.Module) -> Any:
        """The return value of Lightning's `configure_optimizers`."""


class Task(nn.Module, ABC):
    """One kind of task: what a network is called with, its losses, and how it is evaluated; `LightningTask` trains.

    A task knows only the names of the network's inputs and the form of its output, so dense, masked and sparse networks are
    trained and evaluated by the same code.

    Args:
        net: used without a copy.
        optimization: required for training, not for evaluation.
    Attributes:
        kind: name used by data sets (`DataInfo.kind`) and models (`kinds`).
        metric_name: the tracked metric, one that the evaluator computes. Higher is better unless
            `tasks.outcomes.LOWER_IS_BETTER` contains it.
        objective: training objective; None = the task's own loss. Not used for evaluation.
        states: `training.graphs.HiddenStates` that the objective reads of `net`; None = no objective does.
        teacher: the network that the objective runs, in eval mode, and its states.
        label_smoothing: smoothing of the training labels; scores (one column) are not smoothed. The loss for importance
            scores is not affected.
    """

    kind: ClassVar[str]
    metric_name: str

    def __init__(self, net: nn.Module, optimization: Optimizes | None = None) -> None:
        super().__init__()
        self.net = net
        self.optimization = optimization
        self.objective: Objective | None = None
        self.states: Any = None
        self.teacher: tuple[nn.Module, Any] | None = None  # in a tuple, so that it is no part of this module
        self.label_smoothing = 0.0

    @classmethod
    @abstractmethod
    def for_dataset(cls, net: nn.Module, dataset: Any, optimization: Optimizes | None = None) -> "Task":
        """Create the task of a data set (number of classes, metrics).

        Args:
            dataset: its settings; only `info` and what belongs to this kind of task are read.
        """

    @abstractmethod
    def net_inputs(self, batch: Batch) -> Batch:
        """The arguments of the net in a batch, by name."""

    @abstractmethod
    def loss(self, output: Any, batch: Batch) -> Tensor:
        """The mean loss of a batch, a scalar.

        Args:
            output: what the net returned, a tensor or a Hugging Face output.
        """

    @abstractmethod
    def logits(self, output: Any) -> tuple[Tensor, ...]:
        """Logits [predictions, classes] of each predicted distribution; a single column is a score, not a distribution.

        Args:
            output: what the net returned.
        """

    def counted(self, batch: Batch) -> Tensor | None:
        """Which predictions are of a token and not of padding, bool [predictions] in the order of `logits`; None = all."""
        return None

    def labeled(self, batch: Batch) -> Tensor | None:
        """Which predictions the loss of the labels is a mean over, as in `counted`."""
        return self.counted(batch)

    def training_loss(self, output: Any, batch: Batch) -> Tensor:
        """The loss of a training step: the objective if set, else the loss of the labels."""
        return self.label_loss(output, batch) if self.objective is None else self.objective(self, output, batch)

    def label_loss(self, output: Any, batch: Batch) -> Tensor:
        """The loss with smoothed labels, a scalar: (1 - e) * loss + e * cross-entropy to the uniform distribution, where e is the
        label smoothing; averaged if the task predicts several distributions.
        """
        loss = self.loss(output, batch)
        if self.label_smoothing == 0.0:
            return loss
        labeled = self.labeled(batch)
        even = [
            -mean_counted(logits.float().log_softmax(dim=-1).mean(-1), labeled)
            for logits in self.logits(output)
            if logits.shape[-1] > 1
        ]
        return loss if not even else (1 - self.label_smoothing) * loss + self.label_smoothing * sum(even) / len(even)

    @abstractmethod
    def evaluator(self, data: "LightningDataModule", split: str) -> Evaluator:
        """Create an evaluator.

        Args:
            data: the source of its batches, from the loader of `split`.
            split: `val` or `test`.
        """

    def forward(self, batch: Batch) -> Any:
        return self.call(self.net, self.net_inputs(batch))

    def call(self, net: nn.Module, inputs: Batch) -> Any:
        """Call the network, or its teacher, with named inputs."""
        return net(**inputs)

    def predict(self, net: nn.Module, inputs: Batch) -> Any:
        """The output given to an evaluator: the network's own, or what is derived from it, such as a translation."""
        return net(**inputs)

    def get_trained(self) -> nn.Module:
        """The module whose parameters are trained."""
        return self.net


def mean_counted(values: Tensor, counted: Tensor | None) -> Tensor:
    """Mean of the values [predictions] that are `Task.counted`, in shapes that do not depend on how many are; 0 of none."""
    return values.mean() if counted is None else torch.where(counted, values, 0.0).sum() / counted.sum().clamp(min=1)


TEXT_INPUTS = ("input_ids", MASK, "token_type_ids")


def text_inputs(batch: Batch, net: nn.Module) -> Batch:
    """The inputs, int64 [B, length], under Hugging Face's three names, restricted to those that the network's forward takes.

    The mask is absent if `without_full_mask` dropped it.
    """
    return {name: batch[name] for name in _list_inputs(type(net)) if name != MASK or name in batch}


@cache
def _list_inputs(network: type[nn.Module]) -> tuple[str, ...]:
    parameters = inspect.signature(network.forward).parameters
    text_arguments = tuple(name for name in TEXT_INPUTS if name in parameters)
    return text_arguments or TEXT_INPUTS  # a network that names none of them forwards all of them
