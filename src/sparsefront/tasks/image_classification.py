"""One class per image."""

from typing import Any, ClassVar

import torch.nn.functional as F
from pytorch_lightning import LightningDataModule
from torch import Tensor, nn

from sparsefront.tasks.base import Batch, Optimizes, Task
from sparsefront.tasks.label_evaluator import LabelEvaluator


class ImageClassification(Task):
    """Cross-entropy and accuracy.

    The net is called as `net(x=[B, channels, size, size])` and returns logits [B, num_classes].
    """

    kind: ClassVar[str] = "image_classification"
    metric_name = "accuracy"

    def __init__(self, net: nn.Module, optimization: Optimizes | None = None, *, num_classes: int) -> None:
        super().__init__(net, optimization)
        self.num_classes = num_classes

    @classmethod
    def for_dataset(cls, net: nn.Module, dataset: Any, optimization: Optimizes | None = None) -> "ImageClassification":
        return cls(net, optimization, num_classes=dataset.info.num_classes)

    def net_inputs(self, batch: Batch) -> Batch:
        return {"x": batch["x"]}

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(output, batch["labels"])

    def logits(self, output: Tensor) -> tuple[Tensor, ...]:
        return (output,)

    def evaluator(self, data: LightningDataModule | None, split: str) -> LabelEvaluator:
        return LabelEvaluator((self.metric_name,), self.num_classes, logits_of=lambda output: output)
