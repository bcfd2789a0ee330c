"""Image and sequence classification, and regression of a score."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pytorch_lightning import LightningDataModule
from torch import Tensor, nn
from torchmetrics import MetricCollection

from sparsefront.errors import InvalidSetting
from sparsefront.tasks.base import Batch, Optimizes, mean_counted, text_inputs
from sparsefront.tasks.lightning_modules import LightningTask
from sparsefront.tasks.metrics import METRICS
from sparsefront.tasks.outcomes import (
    Outcomes,
    constants_allowed,
    error_by_bootstrap,
    error_of_proportion,
    samples_digest,
)


class LabelEvaluator:
    """Metrics of logits against labels.

    Args:
        metrics: names from `METRICS`.
        num_classes: outputs of the net; 1 = a score.
        logits_of: extracts the logits [B, num_classes] from the net's output.
    """

    def __init__(self, metrics: tuple[str, ...], num_classes: int, logits_of: Callable[[Any], Tensor]) -> None:
        self._metrics = MetricCollection({name: METRICS[name](num_classes) for name in metrics})
        self._num_classes = num_classes
        self._logits_of = logits_of
        self._seen: list[tuple[Tensor, Tensor]] = []  # (predicted, labels), on their device to avoid synchronization
        self._undefined: list[Tensor] = []  # per batch, the number of inputs with NaN logits

    @torch.no_grad()
    def update(self, output: Any, batch: dict[str, Tensor]) -> None:
        logits = self._logits_of(output)
        predicted = logits.squeeze(-1).float() if self._num_classes == 1 else logits.argmax(-1)
        # Keep counts on the logits' device: no synchronization, and several processes can sum them.
        self._seen.append((predicted, batch["labels"].to(predicted.device)))
        self._undefined.append(logits.isnan().any(-1).sum())  # `argmax` treats NaN as the largest
        self._metrics.to(predicted.device).update(*self._seen[-1])

    def compute(self) -> dict[str, float]:
        """See `Evaluator.compute`; an undefined correlation with a constant output counts as 0.

        Raises:
            InvalidSetting: outputs are NaN.
        """
        undefined = sum(map(int, self._undefined))
        if undefined:
            nan_share = f"NaN for {undefined} of {self.samples} inputs"
            allowed = (
                "must be numbers: look for NaN in weights and data, or values too large for the dtype (measure.dtype)"
            )
            raise InvalidSetting("outputs", nan_share, allowed)
        with constants_allowed():
            values = {name: float(value) for name, value in self._metrics.compute().items()}
        return {name: 0.0 if math.isnan(value) else value for name, value in values.items()}

    @property
    def samples(self) -> int:
        return sum(len(labels) for _, labels in self._seen)

    def standard_errors(self) -> dict[str, float]:
        """See `Evaluator.standard_errors`: in closed form for accuracy, by bootstrap for other metrics."""
        predicted, labels = (torch.cat(parts).cpu() for parts in zip(*self._seen))
        return {name: self._standard_error(name, predicted, labels) for name in self._metrics}

    def outcomes(self, metric: str) -> Outcomes:
        """See `Evaluator.outcomes`: correctness for accuracy, prediction and label for other metrics."""
        predicted, labels = (torch.cat(parts).cpu().numpy() for parts in zip(*self._seen))
        samples = samples_digest(labels.tolist())
        if metric == "accuracy":
            return Outcomes(metric, (predicted == labels).astype(np.uint8), None, samples)
        return Outcomes(metric, predicted, labels, samples)

    def _standard_error(self, name: str, predicted: Tensor, labels: Tensor) -> float:
        if name == "accuracy":
            return error_of_proportion(float((predicted == labels).double().mean()), len(labels))
        metric = METRICS[name](self._num_classes)
        with constants_allowed():  # bootstrap draws may be constant
            return error_by_bootstrap(lambda chosen: float(metric(predicted[chosen], labels[chosen])), len(labels))


class ImageClassification(LightningTask):
    """Cross-entropy and accuracy.

    The net is called as `net(x=[B, channels, size, size])` and returns logits [B, num_classes]. In mixed batches, the loss is
    that of `labels` and `mixed_labels`, weighted by `mixed_share` (`split_data.ImageArrays`).
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
        if "mixed_labels" not in batch:
            return F.cross_entropy(output, batch["labels"])
        own, mixed = (F.cross_entropy(output, batch[name], reduction="none") for name in ("labels", "mixed_labels"))
        return own.lerp(mixed, batch["mixed_share"].to(own.dtype)).mean()

    def logits(self, output: Tensor) -> tuple[Tensor, ...]:
        return (output,)

    def evaluator(self, data: LightningDataModule | None, split: str) -> LabelEvaluator:
        return LabelEvaluator((self.metric_name,), self.num_classes, logits_of=lambda output: output)


class SequenceClassification(LightningTask):
    """Cross-entropy, or squared error if the label is a score; metrics are set by the data set.

    The net is called with Hugging Face's argument names and returns an output with `logits` [B, num_classes].

    Args:
        num_classes: 1 = the label is a score.
        metrics: names from `tasks.metrics.METRICS`; the first is tracked.
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
        labeled = self.labeled(batch)
        if labeled is None:
            return F.cross_entropy(output.logits, batch["labels"])
        return mean_counted(F.cross_entropy(output.logits, batch["labels"], reduction="none"), labeled)

    def labeled(self, batch: Batch) -> Tensor | None:
        """The rows with a label, bool [B], if the data set adds rows without, whose label is -100."""
        return batch.get("labeled")

    def logits(self, output: Any) -> tuple[Tensor, ...]:
        return (output.logits,)

    def evaluator(self, data: LightningDataModule | None, split: str) -> LabelEvaluator:
        return LabelEvaluator(self.metrics, self.num_classes, logits_of=lambda output: output.logits)
