"""One class, or one score, per sentence or pair of sentences."""

from typing import Any, ClassVar

import torch.nn.functional as F
from pytorch_lightning import LightningDataModule
from torch import Tensor, nn

from sparsefront.tasks.base import Batch, Optimizes, Task, text_inputs
from sparsefront.tasks.label_evaluator import LabelEvaluator


class SequenceClassification(Task):
    """Cross-entropy, or squared error where the label is a score; metrics as the data set says.

    The net is called by Hugging Face's names and returns an output with `logits` [B, num_classes].

    Args:
        num_classes: 1 = the label is a score.
        metrics: names out of `label_evaluator.METRICS`; the first is tracked.
    """

    kind: ClassVar[str] = "sequence_classification"

    def __init__(
        self,
        net: nn.Module,
        optimization: Optimizes | None = None,
        *,
        num_classes: int,
        metrics: tuple[str, ...] = ("accuracy",),
    ) -> None:
        super().__init__(net, optimization)
        self.num_classes = num_classes
        self.metrics = tuple(metrics)
        self.metric_name = self.metrics[0]

    @classmethod
    def for_dataset(
        cls, net: nn.Module, dataset: Any, optimization: Optimizes | None = None
    ) -> "SequenceClassification":
        return cls(net, optimization, num_classes=dataset.info.num_classes, metrics=dataset.metrics)

    def net_inputs(self, batch: Batch) -> Batch:
        return text_inputs(batch, self.net)

    def loss(self, output: Any, batch: Batch) -> Tensor:
        if self.num_classes == 1:
            return F.mse_loss(output.logits.squeeze(-1), batch["labels"])
        return F.cross_entropy(output.logits, batch["labels"])

    def logits(self, output: Any) -> tuple[Tensor, ...]:
        return (output.logits,)

    def evaluator(self, data: LightningDataModule | None, split: str) -> LabelEvaluator:
        return LabelEvaluator(self.metrics, self.num_classes, logits_of=lambda output: output.logits)
