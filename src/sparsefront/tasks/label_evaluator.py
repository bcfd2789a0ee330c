"""Judging one label per input, for images and sentences alike."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import BinaryF1Score, MulticlassAccuracy, MulticlassMatthewsCorrCoef
from torchmetrics.regression import PearsonCorrCoef, SpearmanCorrCoef

METRICS: dict[str, Callable[[int], Metric]] = {
    "accuracy": lambda classes: MulticlassAccuracy(classes, average="micro"),
    "f1": lambda classes: BinaryF1Score(),
    "matthews_correlation": lambda classes: MulticlassMatthewsCorrCoef(classes),
    "pearson": lambda classes: PearsonCorrCoef(),
    "spearman": lambda classes: SpearmanCorrCoef(),
}
"""Name -> metric for that many classes. `f1` is of class 1 of two; correlations of scores need one output."""


class LabelEvaluator:
    """Metrics of logits against labels.

    Args:
        metrics: names out of `METRICS`.
        num_classes: outputs of the net; 1 = a score.
        logits_of: finds the logits [B, num_classes] in what the net returns.
    """

    def __init__(self, metrics: tuple[str, ...], num_classes: int, logits_of: Callable[[Any], Tensor]) -> None:
        self._metrics = MetricCollection({name: METRICS[name](num_classes) for name in metrics})
        self._num_classes = num_classes
        self._logits_of = logits_of

    @torch.no_grad()
    def update(self, output: Any, batch: dict[str, Tensor]) -> None:
        logits = self._logits_of(output)
        predicted = logits.squeeze(-1).float() if self._num_classes == 1 else logits.argmax(-1)
        # On the logits' device: nothing waits for a GPU here, and several processes can add up their counts.
        self._metrics.to(predicted.device).update(predicted, batch["labels"].to(predicted.device))

    def compute(self) -> dict[str, float]:
        """As `Evaluator.compute`; a correlation with a constant output, which is not defined, counts as 0."""
        values = {name: float(value) for name, value in self._metrics.compute().items()}
        return {name: 0.0 if math.isnan(value) else value for name, value in values.items()}
